// The C interface of an allocator with planned addresses; included once by each, behind its `State` and `state`.
//
// Functions that can fail return -1 (used against the rules, or the device failed) or -2 (over the limit); tr_error
// then says why. No exception leaves them: Python calls them without a frame that could catch one.
#pragma once

namespace {

using Lock = std::lock_guard<decltype(state->mutex)>;

std::string refusal(Bytes asked, const Refused& refused) {
  return "tightrope: asked " + std::to_string(asked) + " bytes; " + std::to_string(refused.charged) +
         " are charged now and the limit is " + std::to_string(refused.limit) +
         " bytes. Raise the budget, use a smaller batch, or free tensors before this step." + refused.note;
}

// Asks for room to be made, where the calling thread may be asked; a request that is granted after all was
// not refused.
bool relieved(const Refused& refused) {
  Relief* relief = nullptr;
  {
    Lock lock(state->mutex);
    if (!state->may_relieve()) return false;
    relief = state->relief;
  }
  if (relief() == 0) return false;
  Lock lock(state->mutex);
  state->stats.refused = refused.before.first;
  state->stats.heap_refused = refused.before.second;
  return true;
}

thread_local std::string error;

int64_t fail(const std::string& message) {
  error = message;
  return -1;
}

// Runs what may refuse or throw; `undo` puts back what it changed then.
template <class Act, class Undo>
int64_t guarded(Bytes asked, Act act, Undo undo) {
  try {
    return act();
  } catch (const Refused& refused) {
    undo();
    fail(refusal(asked, refused));
    return -2;
  } catch (const std::exception& failed) {
    undo();
    const std::string said = failed.what();
    return fail(said.substr(0, said.find('\n')));
  }
}

template <class Act>
int64_t guarded(Act act) {
  return guarded(0, act, [] {});
}

Arena* find(int64_t id) {
  const auto found = state->arenas.find(id);
  return found == state->arenas.end() ? nullptr : found->second.get();
}

bool replaying(const Arena* arena) { return state->replay && state->replay->arena.get() == arena; }

}  // namespace

extern "C" {

const char* tr_error() { return error.c_str(); }

void tr_set_note(const char* note) {
  Lock lock(state->mutex);
  state->note = note;
}

int64_t tr_set_limit(Bytes limit) {
  Lock lock(state->mutex);
  return guarded([&] { return state->set_limit(limit), int64_t{0}; });
}

// From now on, what the calling thread is refused is asked of `relief` first: it makes room and returns 1, or
// returns 0. Null = nobody is asked.
void tr_set_relief(Relief* relief) {
  Lock lock(state->mutex);
  state->relief = relief;
  state->relief_thread = pthread_self();
}

Bytes tr_limit() {
  Lock lock(state->mutex);
  return state->limit;
}

void tr_stats(int64_t* out) {
  Lock lock(state->mutex);
  const Stats now = state->counters();
  const int64_t values[] = {now.charged,         now.charged_peak, now.heap_live, now.live,        now.live_peak,
                            now.num_allocations, now.refused,      now.heap_peak, now.heap_refused};
  std::copy(std::begin(values), std::end(values), out);
}

void tr_reset_peaks() {
  Lock lock(state->mutex);
  state->reset_peaks();
}

void tr_set_live_peak(Bytes bytes) {
  Lock lock(state->mutex);
  state->stats.live_peak = std::max(bytes, state->stats.live);
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
  return guarded(
      bytes,
      [&] {
        const int64_t id = state->open_arena(bytes);
        return id < 0 ? fail("the system refused to map the arena") : id;
      },
      [] {});
}

int64_t tr_lease(int64_t id) {
  Lock lock(state->mutex);
  Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  if (replaying(arena)) return fail("the arena is being replayed");
  const Arena::State before = arena->state;
  return guarded(
      arena->bytes - arena->charge, [&] { return state->lease(*arena) ? int64_t{1} : int64_t{0}; },
      [&] { arena->state = before; });
}

// Leases an arena in which blocks are alive, so that a replay goes on in it.
int64_t tr_resume(int64_t id) {
  Lock lock(state->mutex);
  Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  if (replaying(arena)) return fail("the arena is being replayed");
  const Arena::State before = arena->state;
  return guarded(
      arena->bytes - arena->charge, [&] { return state->resume(*arena), int64_t{0}; },
      [&] { arena->state = before; });
}

int64_t tr_idle(int64_t id) {
  Lock lock(state->mutex);
  Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  if (replaying(arena)) return fail("the arena is being replayed");
  arena->state = Arena::State::idle;
  return 0;
}

// Gives the free pages of an idle arena back now; it is charged by live pages from here on.
int64_t tr_trim(int64_t id) {
  Lock lock(state->mutex);
  Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  if (arena->state != Arena::State::idle) return fail("the arena is leased");
  return guarded([&] { return state->trim(*arena), int64_t{0}; });
}

int64_t tr_retire(int64_t id) {
  Lock lock(state->mutex);
  Arena* arena = find(id);
  if (arena == nullptr) return fail("no such arena, or it was retired");
  if (replaying(arena)) return fail("the arena is being replayed");
  return guarded([&] { return state->retire(id, *arena), int64_t{0}; });
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

int64_t tr_register_plan(int64_t count, const Bytes* sizes, const int64_t* offsets, Bytes alignment) {
  if (alignment < kAlignment || alignment % kAlignment != 0 || alignment > kLargest)
    return fail("alignment " + std::to_string(alignment) + " is not a multiple of 64");
  auto plan = std::make_shared<Plan>();
  plan->alignment = alignment;
  plan->sizes.assign(sizes, sizes + count);
  plan->offsets.assign(offsets, offsets + count);
  for (int64_t k = 0; k < count; ++k) {
    if (sizes[k] <= 0 || sizes[k] > kLargest) return fail("size " + std::to_string(k) + " is not an allocation");
    if (offsets[k] == -1) continue;
    if (offsets[k] < 0 || offsets[k] > kLargest || offsets[k] % alignment != 0)
      return fail("offset " + std::to_string(k) + " is neither -1 nor a multiple of " + std::to_string(alignment));
    plan->extent = std::max(plan->extent, offsets[k] + round_up(sizes[k], alignment));
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
  Replay<Arena> replay;
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
  const Replay<Arena>& now = *state->replay;
  const int64_t values[] = {now.next, now.reason, now.expected, now.got, now.outside};
  std::copy(std::begin(values), std::end(values), out);
  state->replay.reset();
  return 0;
}

// tr_begin_replay behind a look at the counters, whose peaks start afresh; one call, as there is one for each group
// of gradients that is announced.
int64_t tr_begin_span(int64_t arena_id, int64_t plan_id, int64_t start, int64_t* out) {
  tr_stats(out);
  tr_reset_peaks();
  return tr_begin_replay(arena_id, plan_id, start);
}

// tr_end_replay, tr_stats and tr_reset_peaks: writes what the first does, then what the second does.
int64_t tr_end_span(int64_t* out) {
  const int64_t ended = tr_end_replay(out);
  tr_stats(out + 5);
  tr_reset_peaks();
  return ended;
}

}  // extern "C"
