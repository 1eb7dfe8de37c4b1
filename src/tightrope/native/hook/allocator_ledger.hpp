// What every allocator with planned addresses has in common, whatever device its bytes are on: counters, plans, the
// recording and the replay.
//
// Nothing here locks: the caller holds `mutex` around every call.
#pragma once

#include "allocator_slab.hpp"

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

enum Reason : int64_t { kNone = 0, kSize = 1, kPastEnd = 2, kOverlap = 3, kStream = 4 };

template <class Arena>
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

template <class Arena>
class Ledger {
 public:
  std::mutex mutex;
  Stats stats;
  Bytes limit = -1;
  std::string note;  // ends every refusal
  Relief* relief = nullptr;
  pthread_t relief_thread{};

  std::optional<Replay<Arena>> replay;
  std::unordered_map<int64_t, std::shared_ptr<Arena>> arenas;
  std::unordered_map<int64_t, std::shared_ptr<const Plan>> plans;
  int64_t next_id = 1;

  bool recording = false;
  pthread_t recorder{};
  uint64_t recording_id = 0;
  int64_t num_recorded = 0;
  std::vector<Event> events;

  void set_limit(Bytes bytes) { limit = bytes; }

  const Stats& counters() const { return stats; }

  void reset_peaks() {
    stats.charged_peak = stats.charged;
    stats.live_peak = stats.live;
    stats.refused = stats.heap_refused = 0;
    stats.heap_peak = stats.heap_live;
  }

  bool is_owner() const { return replay && pthread_equal(replay->owner, pthread_self()); }

  bool may_relieve() const { return relief != nullptr && pthread_equal(relief_thread, pthread_self()); }

 protected:
  void charge(Bytes bytes) {
    stats.charged += bytes;
    stats.charged_peak = std::max(stats.charged_peak, stats.charged);
  }

  void add_live(Bytes bytes) {
    ++stats.num_allocations;
    stats.live += bytes;
    stats.live_peak = std::max(stats.live_peak, stats.live);
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

  // The planned address of the owner's next allocation, or null when it belongs to the heap. `foreign`: it is for
  // another stream than the plan's.
  void* place(Bytes bytes, bool foreign = false) {
    Replay<Arena>& now = *replay;
    const Plan& plan = *now.plan;
    const int64_t k = now.next;
    const Bytes size = round_up(bytes, plan.alignment);
    if (now.reason == kNone) {
      const bool past_end = k >= static_cast<int64_t>(plan.sizes.size());
      now.expected = past_end ? 0 : plan.sizes[k];
      if (past_end) now.reason = kPastEnd;
      else if (plan.sizes[k] != bytes) now.reason = kSize;
      else if (foreign) now.reason = kStream;
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
