// A CPU allocator for torch that counts every byte, keeps a hard limit and serves planned addresses.
//
// It is installed once per process through c10::SetCPUAllocator and never removed, since every tensor
// that it made holds its deleter. It always counts; a limit, a recording and a replay come and go.
//
//     address ^            arena, one mmap                 heap (c10's own), one block each
//             | +--A--+ +----C----+                        survivors of the step, other threads,
//             | +--+--B-----+  +-D-+                       everything after a divergence
//             +----+--------+--+---+-> allocation event
//
// Charged bytes are what the limit holds: heap blocks rounded up to 64, plus each arena by its state:
//     leased    in full                     the only state in which blocks are placed in it
//     idle      in full, until another allocation would break the limit: then only the pages that
//               hold live blocks, and the others go back to the system
//     retired   only the pages that hold live blocks; unmapped with the last of them
//
// Threads: allocate and the deleter may be called from any thread at any time. The tr_* functions may
// be called from any thread too; tr_begin_record and tr_begin_replay make the calling thread the
// owner, and only the owner's allocations are recorded or placed (frees count from any thread). At
// most one recording and one replay are active in a process; they may overlap. One mutex guards all
// state, and no call to torch that could allocate happens under it. A forked child starts without a
// limit, a recording or a replay: its memory is its own.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using Bytes = int64_t;
using Lock = std::lock_guard<std::mutex>;

constexpr Bytes kAlignment = 64;
constexpr Bytes kLargest = Bytes{1} << 60;
constexpr uint8_t kPriority = 1;

Bytes round_up(Bytes size, Bytes unit) { return (size + unit - 1) / unit * unit; }

const Bytes kPage = sysconf(_SC_PAGESIZE);

struct Event {
  int64_t index;  // of the allocation in the recording; -1 = made before it
  Bytes bytes;
  bool is_free;
};

struct Block {
  Bytes bytes;         // as requested
  int64_t index;       // in that recording, or -1 when it was not recorded
  uint64_t recording;  // the last one begun when the block was made

  Bytes size() const { return round_up(bytes, kAlignment); }
};

struct Plan {
  std::vector<Bytes> sizes;
  std::vector<int64_t> offsets;
  Bytes extent = 0;
};

struct Arena {
  enum class State { leased, idle, retired };

  char* base = nullptr;
  Bytes bytes = 0;
  Bytes charge = 0;
  State state = State::leased;
  bool trimmed = false;  // charged by live pages
  std::map<int64_t, Block> blocks;

  ~Arena() { munmap(base, static_cast<size_t>(round_up(bytes, kPage))); }

  bool holds(const void* pointer) const { return pointer >= base && pointer < base + bytes; }

  bool overlaps(int64_t offset, Bytes size) const {
    const auto after = blocks.lower_bound(offset);
    if (after != blocks.end() && after->first < offset + size) return true;
    return after != blocks.begin() && std::prev(after)->first + std::prev(after)->second.size() > offset;
  }

  // Gives pages [first, last) back to the system; returns their bytes.
  Bytes release(int64_t first, int64_t last) {
    if (first >= last) return 0;
    madvise(base + first * kPage, static_cast<size_t>((last - first) * kPage), MADV_DONTNEED);
    return std::min(last * kPage, bytes) - first * kPage;
  }

  // Gives back all pages without a live block, and is charged by page from now on.
  void trim() {
    int64_t next = 0;
    charge = bytes;
    for (const auto& [offset, block] : blocks) {
      charge -= release(next, offset / kPage);
      next = std::max(next, round_up(offset + block.size(), kPage) / kPage);
    }
    charge -= release(next, round_up(bytes, kPage) / kPage);
    trimmed = true;
    advise_huge_pages(false);  // the system would fill the gaps again to build huge pages
  }

  void advise_huge_pages([[maybe_unused]] bool wanted) {
#ifdef MADV_HUGEPAGE
    madvise(base, static_cast<size_t>(round_up(bytes, kPage)), wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
  }

  void erase(std::map<int64_t, Block>::iterator block) {
    int64_t first = block->first / kPage;
    int64_t last = round_up(block->first + block->second.size(), kPage) / kPage;
    const auto next = blocks.erase(block);
    if (!trimmed) return;
    // Blocks share at most the page at their border.
    if (next != blocks.end()) last = std::min(last, next->first / kPage);
    if (next != blocks.begin()) {
      const auto before = std::prev(next);
      first = std::max(first, round_up(before->first + before->second.size(), kPage) / kPage);
    }
    charge -= release(first, last);
  }
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
};

struct Refused {
  Bytes charged, limit;
};

class State {
 public:
  std::mutex mutex;
  Stats stats;
  Bytes limit = -1;
  c10::DeleterFnPtr previous_deleter = nullptr;

  std::optional<Replay> replay;
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
    if (replay && pthread_equal(replay->owner, pthread_self())) {
      if (void* planned = place(bytes)) return planned;
    }
    const Bytes size = round_up(bytes, kAlignment);
    make_room(size);
    void* pointer = c10::alloc_cpu(static_cast<size_t>(bytes));
    heap_.emplace(pointer, logged(bytes));
    stats.heap_live += size;
    charge(size);
    add_live(size);
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

  bool lease(Arena& arena) {
    if (!arena.blocks.empty()) return false;
    arena.state = Arena::State::leased;  // not to be trimmed while room is made for it
    make_room(arena.bytes - arena.charge);
    charge(arena.bytes - arena.charge);
    arena.charge = arena.bytes;
    if (arena.trimmed) arena.advise_huge_pages(true);
    arena.trimmed = false;
    return true;
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

  void trim(Arena& arena) {
    const Bytes before = arena.charge;
    arena.trim();
    stats.charged -= before - arena.charge;
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
    throw Refused{stats.charged, limit};
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
    const Bytes size = round_up(bytes, kAlignment);
    if (now.reason == kNone) {
      const bool past_end = k >= static_cast<int64_t>(plan.sizes.size());
      now.expected = past_end ? 0 : plan.sizes[k];
      if (past_end) now.reason = kPastEnd;
      else if (plan.sizes[k] != bytes) now.reason = kSize;
      else if (plan.offsets[k] >= 0 && now.arena->overlaps(plan.offsets[k], size)) now.reason = kOverlap;
      now.got = bytes;
    }
    if (now.reason != kNone) {
      now.outside += size;
      return nullptr;
    }
    ++now.next;
    if (plan.offsets[k] < 0) return nullptr;
    now.arena->blocks.emplace(plan.offsets[k], logged(bytes));
    add_live(size);
    return now.arena->base + plan.offsets[k];
  }
};

State* state = nullptr;  // lives as long as the process: tensors may die after static destructors

void deallocate(void* pointer) {
  if (pointer == nullptr) return;
  State::Owner owner;
  {
    Lock lock(state->mutex);
    owner = state->free(pointer);
  }
  if (owner == State::Owner::heap) {
    c10::profiledCPUMemoryReporter().Delete(pointer);
    c10::free_cpu(pointer);
  } else if (owner == State::Owner::other) {
    state->previous_deleter(pointer);  // raw memory from before the installation
  }
}

std::string refusal(Bytes asked, const Refused& refused) {
  return "tightrope: asked " + std::to_string(asked) + " bytes; " + std::to_string(refused.charged) +
         " are charged now and the limit is " + std::to_string(refused.limit) +
         " bytes. Raise the budget, use a smaller batch, or free tensors before this step.";
}

struct Hook final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &deallocate, cpu};
    TORCH_CHECK(bytes <= static_cast<size_t>(kLargest), "tightrope: cannot allocate ", bytes, " bytes");
    void* pointer = nullptr;
    try {
      Lock lock(state->mutex);
      pointer = state->allocate(static_cast<Bytes>(bytes));
    } catch (const Refused& refused) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false, refusal(static_cast<Bytes>(bytes), refused));
    }
    c10::profiledCPUMemoryReporter().New(pointer, bytes);
    return {pointer, pointer, &deallocate, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

thread_local std::string error;

int64_t fail(const std::string& message) {
  error = message;
  return -1;
}

Arena* find(int64_t id) {
  const auto found = state->arenas.find(id);
  return found == state->arenas.end() ? nullptr : found->second.get();
}

bool replaying(const Arena* arena) { return state->replay && state->replay->arena.get() == arena; }

void forget_in_child() {
  state->limit = -1;
  state->recording = false;
  state->replay.reset();
  state->mutex.unlock();
}

}  // namespace

// The C interface. Functions that can fail return -1 (used against the rules) or -2 (over the limit);
// tr_error then says why.
extern "C" {

const char* tr_error() { return error.c_str(); }

int64_t tr_install() {
  if (state != nullptr) return 0;
  c10::Allocator* previous = c10::GetCPUAllocator();
  if (previous->raw_deleter() == nullptr) return fail("the CPU allocator in place has no raw deleter");
  auto* made = new State;
  made->previous_deleter = previous->raw_deleter();
  state = made;
  auto* hook = new Hook;
  c10::SetCPUAllocator(hook, kPriority);
  if (c10::GetCPUAllocator() != hook) {
    state = nullptr;
    return fail("another CPU allocator with a higher priority is in place");
  }
  pthread_atfork([] { state->mutex.lock(); }, [] { state->mutex.unlock(); }, forget_in_child);
  return 0;
}

void tr_set_limit(Bytes limit) {
  Lock lock(state->mutex);
  state->limit = limit;
}

Bytes tr_limit() {
  Lock lock(state->mutex);
  return state->limit;
}

void tr_stats(int64_t* out) {
  Lock lock(state->mutex);
  const Stats& now = state->stats;
  const int64_t values[] = {now.charged, now.charged_peak, now.heap_live, now.live, now.live_peak, now.num_allocations};
  std::copy(std::begin(values), std::end(values), out);
}

void tr_reset_peaks() {
  Lock lock(state->mutex);
  state->stats.charged_peak = state->stats.charged;
  state->stats.live_peak = state->stats.live;
}

int64_t tr_owns(const void* pointer) {
  Lock lock(state->mutex);
  return state->owns(pointer) ? 1 : 0;
}

int64_t tr_begin_record() {
  Lock lock(state->mutex);
  if (state->recording) return fail("a recording is active already");
  state->recording = true;
  state->recorder = pthread_self();
  ++state->recording_id;
  state->num_recorded = 0;
  state->events.clear();
  return 0;
}

int64_t tr_num_events() {
  Lock lock(state->mutex);
  return static_cast<int64_t>(state->events.size());
}

int64_t tr_end_record() {
  Lock lock(state->mutex);
  if (!state->recording) return fail("no recording is active");
  state->recording = false;
  return static_cast<int64_t>(state->events.size());
}

// Copies the last recording: per event, the allocation's index (-1 = made before it began), its
// bytes, and 1 for a free. Each array has tr_num_events() entries.
void tr_copy_events(int64_t* index, Bytes* bytes, int64_t* is_free) {
  Lock lock(state->mutex);
  for (const Event& event : state->events) {
    *index++ = event.index;
    *bytes++ = event.bytes;
    *is_free++ = event.is_free;
  }
}

int64_t tr_open_arena(Bytes bytes) {
  if (bytes < 0 || bytes > kLargest) return fail("an arena needs between 0 and 2^60 bytes");
  Lock lock(state->mutex);
  try {
    const int64_t id = state->open_arena(bytes);
    return id < 0 ? fail("the system refused to map the arena") : id;
  } catch (const Refused& refused) {
    fail(refusal(bytes, refused));
    return -2;
  }
}

int64_t tr_lease(int64_t id) {
  Lock lock(state->mutex);
  Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  if (replaying(arena)) return fail("the arena is being replayed");
  const Arena::State before = arena->state;
  try {
    return state->lease(*arena) ? 1 : 0;
  } catch (const Refused& refused) {
    arena->state = before;
    fail(refusal(arena->bytes - arena->charge, refused));
    return -2;
  }
}

int64_t tr_idle(int64_t id) {
  Lock lock(state->mutex);
  Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  if (replaying(arena)) return fail("the arena is being replayed");
  arena->state = Arena::State::idle;
  return 0;
}

int64_t tr_retire(int64_t id) {
  Lock lock(state->mutex);
  Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  if (replaying(arena)) return fail("the arena is being replayed");
  state->retire(id, *arena);
  return 0;
}

// Writes base address, bytes, charge and number of live blocks.
int64_t tr_arena(int64_t id, int64_t* out) {
  Lock lock(state->mutex);
  const Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  out[0] = reinterpret_cast<int64_t>(arena->base);
  out[1] = arena->bytes;
  out[2] = arena->charge;
  out[3] = static_cast<int64_t>(arena->blocks.size());
  return 0;
}

int64_t tr_register_plan(int64_t count, const Bytes* sizes, const int64_t* offsets) {
  auto plan = std::make_shared<Plan>();
  plan->sizes.assign(sizes, sizes + count);
  plan->offsets.assign(offsets, offsets + count);
  for (int64_t k = 0; k < count; ++k) {
    if (sizes[k] <= 0 || sizes[k] > kLargest) return fail("size " + std::to_string(k) + " is not an allocation");
    if (offsets[k] == -1) continue;
    if (offsets[k] < 0 || offsets[k] > kLargest || offsets[k] % kAlignment != 0)
      return fail("offset " + std::to_string(k) + " is neither -1 nor a multiple of 64");
    plan->extent = std::max(plan->extent, offsets[k] + round_up(sizes[k], kAlignment));
  }
  Lock lock(state->mutex);
  state->plans[state->next_id] = std::move(plan);
  return state->next_id++;
}

int64_t tr_drop_plan(int64_t id) {
  Lock lock(state->mutex);
  return state->plans.erase(id) ? 0 : fail("no such plan");
}

int64_t tr_begin_replay(int64_t arena_id, int64_t plan_id, int64_t start) {
  Lock lock(state->mutex);
  const auto arena = state->arenas.find(arena_id);
  const auto plan = state->plans.find(plan_id);
  if (state->replay) return fail("a replay is active already");
  if (arena == state->arenas.end()) return fail("no such arena, or it was retired");
  if (plan == state->plans.end()) return fail("no such plan");
  if (arena->second->state != Arena::State::leased) return fail("the arena is not leased");
  if (plan->second->extent > arena->second->bytes) return fail("the plan needs more bytes than the arena has");
  if (start < 0 || start > static_cast<int64_t>(plan->second->sizes.size())) return fail("start lies outside the plan");
  Replay replay;
  replay.owner = pthread_self();
  replay.arena = arena->second;
  replay.plan = plan->second;
  replay.next = start;
  state->replay = std::move(replay);
  return 0;
}

// Writes the number of allocations reached, the reason of the divergence (0 = none), the bytes
// expected and got there, and the bytes that the owner got from the heap since.
int64_t tr_end_replay(int64_t* out) {
  Lock lock(state->mutex);
  if (!state->replay) return fail("no replay is active");
  const Replay& now = *state->replay;
  const int64_t values[] = {now.next, now.reason, now.expected, now.got, now.outside};
  std::copy(std::begin(values), std::end(values), out);
  state->replay.reset();
  return 0;
}

}  // extern "C"
