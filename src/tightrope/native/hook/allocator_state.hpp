// What the allocator knows: counters, heap blocks, arenas, the recording and the replay.
//
// Nothing here locks: the caller holds `mutex` around every call.
#pragma once

#include "allocator_arena.hpp"
#include "evicting.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tightrope_allocator {

struct Event {
  int64_t index;  // of the allocation in the recording; -1 = made before it
  Bytes bytes;
  bool is_free;
};

struct Plan {
  std::vector<Bytes> sizes;
  std::vector<int64_t> offsets;
  Bytes alignment = kAlignment;
  Bytes extent = 0;
};

enum Reason : int64_t { kNone = 0, kSize = 1, kPastEnd = 2, kOverlap = 3 };

struct Replay {
  pthread_t owner{};
  std::shared_ptr<Arena> arena;
  std::shared_ptr<const Plan> plan;
  int64_t next = 0;
  Reason reason = kNone;
  Bytes expected = 0;
  Bytes got = 0;
  Bytes outside = 0;
};

struct Stats {
  Bytes charged = 0, charged_peak = 0, heap_live = 0, live = 0, live_peak = 0;
  int64_t num_allocations = 0;
  Bytes refused = 0;  // most that a refused allocation would have charged
  Bytes heap_peak = 0;
  Bytes heap_refused = 0;  // most that the heap would have held with a refused allocation in it
};

struct Refused {
  Bytes charged, limit;
  std::string note;
  std::pair<Bytes, Bytes> before;  // what had been refused before, in all and on the heap
};

using Relief = int64_t();

class State {
 public:
  std::mutex mutex;
  Stats stats;
  Bytes limit = -1;
  std::string note;  // ends every refusal
  Relief* relief = nullptr;
  pthread_t relief_thread{};
  c10::DeleterFnPtr previous_deleter = nullptr;

  std::optional<Replay> replay;
  tightrope_evicting::Evicting* evicting = nullptr;
  std::unordered_map<int64_t, std::shared_ptr<Arena>> arenas;
  std::unordered_map<int64_t, std::shared_ptr<const Plan>> plans;
  int64_t next_id = 1;

  bool recording = false;
  pthread_t recorder{};
  uint64_t recording_id = 0;
  int64_t num_recorded = 0;
  std::vector<Event> events;

  State() { heap_.reserve(1 << 14); }

  void* allocate(Bytes bytes) {
    const bool is_owner = replay && pthread_equal(replay->owner, pthread_self());
    if (is_owner) {
      if (void* planned = place(bytes)) return planned;
    }
    const Bytes size = round_up(bytes, kAlignment);
    try {
      make_room(size);
    } catch (const Refused&) {
      stats.heap_refused = std::max(stats.heap_refused, stats.heap_live + size);
      throw;
    }
    void* pointer = c10::alloc_cpu(static_cast<size_t>(bytes));
    heap_.emplace(pointer, logged(bytes));
    stats.heap_live += size;
    stats.heap_peak = std::max(stats.heap_peak, stats.heap_live);
    charge(size);
    add_live(size);
    if (is_owner && replay->reason != kNone) replay->outside += size;
    return pointer;
  }

  enum class Owner { heap, arena, other };

  Owner free(void* pointer) {
    if (const auto found = heap_.find(pointer); found != heap_.end()) {
      log_free(found->second);
      const Bytes size = found->second.size();
      heap_.erase(found);
      stats.heap_live -= size;
      stats.charged -= size;
      stats.live -= size;
      return Owner::heap;
    }
    Arena* arena = arena_of(pointer);
    if (arena == nullptr) return Owner::other;
    c10::profiledCPUMemoryReporter().Delete(pointer);  // before the address can be given out again
    free_block(*arena, static_cast<char*>(pointer) - arena->base);
    return Owner::arena;
  }

  bool owns(const void* pointer) const { return heap_.contains(pointer) || arena_of(pointer) != nullptr; }

  int64_t open_arena(Bytes bytes) {
    const Bytes size = round_up(std::max<Bytes>(bytes, 1), kAlignment);
    make_room(size);
    const auto mapped = static_cast<size_t>(round_up(size, kPage));
    void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return -1;
    auto arena = std::make_shared<Arena>();
    arena->base = static_cast<char*>(base);
    arena->bytes = arena->charge = size;
    arena->advise_huge_pages(true);
    charge(size);
    by_base_[arena->base] = arena.get();
    arenas[next_id] = std::move(arena);
    return next_id++;
  }

  // A block that an eviction leaves in its arena.
  void adopt(Arena& arena, int64_t offset, Bytes bytes) {
    const Block block{bytes, -1, 0};
    arena.blocks.emplace(offset, block);
    add_live(block.size());
  }

  bool lease(Arena& arena) {
    if (!arena.blocks.empty()) return false;
    resume(arena);
    return true;
  }

  // Charges the arena in full again, whatever lives in it.
  void resume(Arena& arena) {
    arena.state = Arena::State::leased;  // not to be trimmed while room is made for it
    make_room(arena.bytes - arena.charge);
    charge(arena.bytes - arena.charge);
    arena.charge = arena.bytes;
    if (arena.trimmed) arena.advise_huge_pages(true);
    arena.trimmed = false;
  }

  void trim(Arena& arena) {
    const Bytes before = arena.charge;
    arena.trim();
    stats.charged -= before - arena.charge;
  }

  void retire(int64_t id, Arena& arena) {
    arena.state = Arena::State::retired;
    trim(arena);
    if (arena.blocks.empty()) unmap(arena);
    else retired_[arena.base] = std::move(arenas.at(id));
    arenas.erase(id);
  }

 private:
  std::unordered_map<const void*, Block> heap_;
  std::map<const char*, Arena*> by_base_;
  std::unordered_map<const char*, std::shared_ptr<Arena>> retired_;

  void charge(Bytes bytes) {
    stats.charged += bytes;
    stats.charged_peak = std::max(stats.charged_peak, stats.charged);
  }

  void add_live(Bytes bytes) {
    ++stats.num_allocations;
    stats.live += bytes;
    stats.live_peak = std::max(stats.live_peak, stats.live);
  }

  void unmap(Arena& arena) {
    stats.charged -= arena.charge;
    by_base_.erase(arena.base);
  }

  // Throws Refused unless `bytes` more fit under the limit, after idle arenas gave back their free pages.
  void make_room(Bytes bytes) {
    if (limit < 0 || stats.charged + bytes <= limit) return;
    for (const auto& [id, arena] : arenas) {
      if (arena->state != Arena::State::idle || arena->trimmed) continue;
      trim(*arena);
      if (stats.charged + bytes <= limit) return;
    }
    const std::pair before{stats.refused, stats.heap_refused};
    stats.refused = std::max(stats.refused, stats.charged + bytes);
    throw Refused{stats.charged, limit, note, before};
  }

  Arena* arena_of(const void* pointer) const {
    if (replay && replay->arena->holds(pointer)) return replay->arena.get();
    auto after = by_base_.upper_bound(static_cast<const char*>(pointer));
    if (after == by_base_.begin()) return nullptr;
    Arena* arena = std::prev(after)->second;
    return arena->holds(pointer) ? arena : nullptr;
  }

  void free_block(Arena& arena, int64_t offset) {
    const auto block = arena.blocks.find(offset);
    TORCH_INTERNAL_ASSERT(block != arena.blocks.end(), "tightrope: freed twice at arena offset ", offset);
    log_free(block->second);
    stats.live -= block->second.size();
    const Bytes before = arena.charge;
    arena.erase(block);
    stats.charged -= before - arena.charge;
    if (arena.state == Arena::State::retired && arena.blocks.empty()) {
      unmap(arena);
      retired_.erase(arena.base);
    }
  }

  Block logged(Bytes bytes) {
    if (!recording || !pthread_equal(recorder, pthread_self())) return {bytes, -1, recording_id};
    events.push_back({num_recorded, bytes, false});
    return {bytes, num_recorded++, recording_id};
  }

  void log_free(const Block& block) {
    if (!recording) return;
    const bool older = block.recording != recording_id;
    if (older || block.index >= 0) events.push_back({older ? -1 : block.index, block.bytes, true});
  }

  // The planned address of the owner's next allocation, or null when it belongs to the heap.
  void* place(Bytes bytes) {
    Replay& now = *replay;
    const Plan& plan = *now.plan;
    const int64_t k = now.next;
    const Bytes size = round_up(bytes, plan.alignment);
    if (now.reason == kNone) {
      const bool past_end = k >= static_cast<int64_t>(plan.sizes.size());
      now.expected = past_end ? 0 : plan.sizes[k];
      if (past_end) now.reason = kPastEnd;
      else if (plan.sizes[k] != bytes) now.reason = kSize;
      else if (plan.offsets[k] >= 0 && now.arena->overlaps(plan.offsets[k], size)) now.reason = kOverlap;
      now.got = bytes;
    }
    if (now.reason != kNone) return nullptr;
    ++now.next;
    if (plan.offsets[k] < 0) return nullptr;
    Block block = logged(bytes);
    block.alignment = plan.alignment;
    now.arena->blocks.emplace(plan.offsets[k], block);
    add_live(size);
    return now.arena->base + plan.offsets[k];
  }
};

}  // namespace tightrope_allocator
