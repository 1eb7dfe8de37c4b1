// What the allocator of one CUDA device knows: heap blocks, slabs, and what a `Ledger` holds.
//
// Heap blocks and slabs come from torch's caching allocator, so that everything counts there too: the limit is its
// own limit on reserved bytes, and what is charged are the bytes that it cannot give back: active blocks, and free
// pieces of segments that hold active ones.
#pragma once

#include "../hook/allocator_ledger.hpp"

#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

namespace tightrope_allocator {

using Device = c10::cuda::CUDACachingAllocator::CUDAAllocator;

struct Arena : Slab {
  c10::Stream stream;                                    // whose order its reuse follows
  std::unordered_map<int64_t, std::vector<c10::Stream>> others;  // offset -> streams that use the block there, too
  Device* device;

  Arena(Device* from, c10::Stream of) : stream(of), device(from) {}
  ~Arena() { give_back(); }

  void give_back() {
    if (base != nullptr) device->raw_delete(base);
    base = nullptr;
  }

  // Ends a block: what comes next on the stream of the slab waits for the other streams that use it.
  void erase(std::map<int64_t, Block>::iterator block) {
    if (const auto used = others.find(block->first); used != others.end()) {
      for (const c10::Stream& other : used->second) {
        c10::Event event(c10::DeviceType::CUDA);
        event.record(other);
        event.block(stream);
      }
      others.erase(used);
    }
    blocks.erase(block);
  }
};

class State : public Ledger<Arena> {
 public:
  // Torch may end blocks of other tensors while it looks for memory, on this thread and while it holds this.
  std::recursive_mutex mutex;
  Device* device = nullptr;
  c10::DeviceIndex index = 0;
  size_t total = 0;
  double most = 1.0;  // share of the device that torch was limited to before

  State(Device* base, c10::DeviceIndex of) : device(base), index(of) {
    heap_.reserve(1 << 14);
    total = base->getMemoryInfo(of).second;
    most = base->getMemoryFraction(of);
  }

  c10::Stream stream() const { return c10::cuda::getCurrentCUDAStream(index).unwrap(); }

  void set_limit(Bytes bytes) {
    limit = bytes;
    const double fraction = static_cast<double>(bytes) / static_cast<double>(total);
    device->setMemoryFraction(bytes < 0 ? most : std::min(fraction, most), index);
  }

  Stats counters() {
    Stats now = stats;
    now.charged = charged();
    now.charged_peak = stats.charged_peak = std::max(stats.charged_peak, now.charged);
    return now;
  }

  void reset_peaks() {
    stats.charged = charged();
    Ledger::reset_peaks();
  }

  // The planned address, or null: then the caller asks the heap and tells by `adopt`.
  void* planned(Bytes bytes) {
    return is_owner() ? place(bytes, stream() != replay->arena->stream) : nullptr;
  }

  void adopt(void* pointer, Bytes bytes) {
    const Block block = logged(bytes);
    const Bytes size = round_up(bytes, kDeviceAlignment);
    heap_.insert_or_assign(pointer, block);
    stats.heap_live += size;
    stats.heap_peak = std::max(stats.heap_peak, stats.heap_live);
    add_live(size);
    stats.charged_peak = std::max(stats.charged_peak, charged());
    if (is_owner() && replay->reason != kNone) replay->outside += size;
  }

  // Whether the block was in a slab; otherwise the caller gives it back to the heap.
  bool free(void* pointer) {
    if (const auto found = heap_.find(pointer); found != heap_.end()) {
      log_free(found->second);
      const Bytes size = round_up(found->second.bytes, kDeviceAlignment);
      heap_.erase(found);
      stats.heap_live -= size;
      stats.live -= size;
      return false;
    }
    Arena* arena = arena_of(pointer);
    if (arena == nullptr) return false;
    const auto block = arena->blocks.find(static_cast<char*>(pointer) - arena->base);
    TORCH_INTERNAL_ASSERT(block != arena->blocks.end(), "tightrope: freed twice in a slab");
    log_free(block->second);
    stats.live -= block->second.size();
    arena->erase(block);
    if (arena->state == Arena::State::retired && arena->blocks.empty()) retired_.erase(forgotten(*arena));
    return true;
  }

  bool owns(const void*) const { return true; }  // the device counts all of its blocks

  // Notes that another stream uses a block; false where it is in no slab.
  bool also_used(const void* pointer, c10::Stream other) {
    Arena* arena = arena_of(pointer);
    if (arena == nullptr) return false;
    if (other != arena->stream) arena->others[static_cast<const char*>(pointer) - arena->base].push_back(other);
    return true;
  }

  int64_t open_arena(Bytes bytes) {
    auto arena = std::make_shared<Arena>(device, stream());
    arena->bytes = round_up(std::max<Bytes>(bytes, 1), kDeviceAlignment);
    fill(*arena);
    arenas[next_id] = std::move(arena);
    return next_id++;
  }

  bool lease(Arena& arena) {
    if (!arena.blocks.empty() || stream() != arena.stream) return false;
    resume(arena);
    return true;
  }

  void resume(Arena& arena) {
    arena.state = Arena::State::leased;
    if (arena.base == nullptr) fill(arena);
  }

  void trim(Arena& arena) {
    if (!arena.blocks.empty() || arena.base == nullptr) return;
    by_base_.erase(arena.base);
    arena.give_back();
    arena.charge = 0;
    arena.trimmed = true;
  }

  // Gives back idle slabs in which nothing lives, and what the device keeps free; tells whether that may help.
  bool trim_idle() {
    bool some = false;
    for (const auto& [id, arena] : arenas) {
      if (arena->state != Arena::State::idle || arena->base == nullptr || !arena->blocks.empty()) continue;
      trim(*arena);
      some = true;
    }
    return some;
  }

  void retire(int64_t id, Arena& arena) {
    arena.state = Arena::State::retired;
    if (arena.blocks.empty()) trim(arena);
    else retired_[arena.base] = std::move(arenas.at(id));
    arenas.erase(id);
  }

  // Says that `bytes` could not be had.
  [[noreturn]] void refuse(Bytes bytes) {
    const std::pair before{stats.refused, stats.heap_refused};
    const Bytes now = charged();
    stats.refused = std::max(stats.refused, now + bytes);
    stats.heap_refused = std::max(stats.heap_refused, stats.heap_live + bytes);
    throw Refused{now, limit, note, before};
  }

  static constexpr Bytes kDeviceAlignment = 512;

 private:
  std::unordered_map<const void*, Block> heap_;
  std::map<const char*, Arena*> by_base_;
  std::unordered_map<const char*, std::shared_ptr<Arena>> retired_;

  Bytes charged() {
    const auto now = device->getDeviceStats(index);
    return now.active_bytes[0].current + now.inactive_split_bytes[0].current;
  }

  // Takes the bytes of a slab; under the lock, so no observer of refusals may wait for another thread.
  void fill(Arena& arena) {
    void* base = nullptr;
    device->emptyCache();  // or a slab lies in a part of an older, larger block
    try {
      base = device->raw_alloc(static_cast<size_t>(arena.bytes));
    } catch (const c10::OutOfMemoryError&) {
      if (!trim_idle()) refuse(arena.bytes);
      device->emptyCache();
      try {
        base = device->raw_alloc(static_cast<size_t>(arena.bytes));
      } catch (const c10::OutOfMemoryError&) {
        refuse(arena.bytes);
      }
    }
    arena.base = static_cast<char*>(base);
    arena.charge = arena.bytes;
    arena.trimmed = false;
    by_base_[arena.base] = &arena;
    stats.charged_peak = std::max(stats.charged_peak, charged());
  }

  const char* forgotten(Arena& arena) {
    by_base_.erase(arena.base);
    return arena.base;
  }

  Arena* arena_of(const void* pointer) const {
    auto after = by_base_.upper_bound(static_cast<const char*>(pointer));
    if (after == by_base_.begin()) return nullptr;
    Arena* arena = std::prev(after)->second;
    return arena->holds(pointer) ? arena : nullptr;
  }
};

}  // namespace tightrope_allocator
