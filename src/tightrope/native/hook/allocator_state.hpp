// What the allocator of the CPU knows: heap blocks, arenas, and what a `Ledger` holds.
//
// Nothing here locks: the caller holds `mutex` around every call.
#pragma once

#include "allocator_arena.hpp"
#include "allocator_ledger.hpp"
#include "evicting.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <memory>
#include <unordered_map>
#include <utility>

namespace tightrope_allocator {

class State : public Ledger<Arena> {
 public:
  c10::DeleterFnPtr previous_deleter = nullptr;
  tightrope_evicting::Evicting* evicting = nullptr;

  State() { heap_.reserve(1 << 14); }

  void* allocate(Bytes bytes) {
    const bool planned_here = is_owner();
    if (planned_here) {
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
    if (planned_here && replay->reason != kNone) replay->outside += size;
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

  // Maps an arena that may grow to `most` bytes.
  int64_t open_arena(Bytes bytes, Bytes most = 0) {
    const Bytes size = round_up(std::max<Bytes>(bytes, 1), kAlignment);
    make_room(size);
    const Bytes mapped = round_up(std::max(size, most), kPage);
    void* base = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return -1;
    auto arena = std::make_shared<Arena>();
    arena->base = static_cast<char*>(base);
    arena->bytes = arena->charge = size;
    arena->mapped = mapped;
    arena->advise_huge_pages(true);
    charge(size);
    by_base_[arena->base] = arena.get();
    arenas[next_id] = std::move(arena);
    return next_id++;
  }

  // Lets the arena of an eviction grow into what was freed outside of it since it was opened, or, where nothing
  // else helps, to the limit.
  void grow_evicting(Bytes bytes, bool to_limit = false) {
    const Bytes room = (to_limit && evicting->charged_at_most > 0 ? limit : std::min(evicting->charged_at_most, limit)) - stats.charged;
    if (room <= 0) return;
    Arena& arena = *arenas.at(evicting->of_state);
    const Bytes size = evicting->arena().missing(bytes, std::min(room, arena.mapped - arena.bytes));
    if (size == 0) return;
    arena.bytes += size;
    arena.charge += size;
    charge(size);
    evicting->arena().grow(size);
    evicting->grown += size;
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

  // Gives `need` bytes of pages without a live block back to the system; all of them by default.
  void trim(Arena& arena, Bytes need = kLargest) {
    const Bytes before = arena.charge;
    arena.give_back(need);
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

  void unmap(Arena& arena) {
    stats.charged -= arena.charge;
    by_base_.erase(arena.base);
  }

  // Throws Refused unless `bytes` more fit under the limit, after idle arenas gave back what free pages that takes:
  // pages that come back have to be filled with zeros first, and near the limit each step would pay for all.
  void make_room(Bytes bytes) {
    if (limit < 0 || stats.charged + bytes <= limit) return;
    for (const auto& [id, arena] : arenas) {
      if (arena->state != Arena::State::idle || (arena->trimmed && arena->kept == 0)) continue;
      trim(*arena, round_up(stats.charged + bytes - limit, kAtOnce));
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
};

}  // namespace tightrope_allocator
