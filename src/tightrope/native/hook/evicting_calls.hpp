// The C interface of `Evicting`, part of allocator.cpp: it knows `state`, `Lock`, `fail` and `refusal`.

namespace tightrope_evicting {

void delete_tombstone(void* tombstone) {
  const auto* gone = static_cast<Tombstone*>(tombstone);
  {
    Lock lock(state->mutex);
    gone->of->tombstone_gone(gone->id);
  }
  delete gone;
}

}  // namespace tightrope_evicting

using tightrope_evicting::Evicting;

// Bytes charged outside of the arena of an eviction; the caller holds the mutex.
static int64_t charged_outside() { return state->stats.charged - state->arenas.at(state->evicting->of_state)->charge; }

extern "C" {

Evicting* tr_evicting() {
  Lock lock(state->mutex);
  return state->evicting;
}

// Opens an arena of `options->bytes` for what the calling thread allocates; null: tr_error says why.
Evicting* tr_evict_open(const tightrope_evict::Options* options, int64_t poison) {
  if (tr_evicting() != nullptr) {
    fail("an eviction is active already");
    return nullptr;
  }
  if (options->bytes < 0 || options->bytes > kLargest) {
    fail("an arena needs between 0 and 2^60 bytes");
    return nullptr;
  }
  Lock lock(state->mutex);
  const Bytes outside = state->limit < 0 ? 0 : state->stats.charged;  // it may be freed while the arena is open
  const int64_t id = guarded(
      options->bytes,
      [&] {
        const int64_t opened = state->open_arena(options->bytes, options->bytes + outside);
        return opened < 0 ? fail("the system refused to map the arena") : opened;
      },
      [] {});
  if (id < 0) return nullptr;
  Arena& mapped = *find(id);
  auto* made = new Evicting(*options, mapped.base, mapped.mapped, &deallocate, &charged_outside);
  made->of_state = id;
  made->poison = poison != 0;
  state->evicting = made;
  return made;
}

tightrope_evict::Arena* tr_evict_arena(Evicting* self) { return &self->arena(); }

// Copies the walls of the last refusal; returns how many integers there are.
int64_t tr_evict_walls(Evicting* self, int64_t* out, int64_t capacity) {
  Lock lock(state->mutex);
  std::copy_n(self->walls.begin(), std::min<int64_t>(capacity, static_cast<int64_t>(self->walls.size())), out);
  return static_cast<int64_t>(self->walls.size());
}

// Its address is known to others: it stays where it is.
void tr_evict_root(Evicting* self, int64_t id) {
  Lock lock(state->mutex);
  self->arena().root(static_cast<tightrope_evict::Id>(id));
}

void tr_evict_soft(Evicting* self, int64_t soft) { self->soft = soft != 0; }

int64_t tr_evict_find(Evicting* self, c10::StorageImpl* impl) {
  Lock lock(state->mutex);
  return self->find(impl);
}

int64_t tr_evict_is_inside(Evicting* self, int64_t id) {
  return self->is_outside(static_cast<tightrope_evict::Id>(id)) ? 0 : 1;
}

// From now on, releases are noted.
void tr_evict_note_released(Evicting* self) { self->arena().note_released = true; }

// Writes ids that were released since the last call; returns how many.
int64_t tr_evict_released(Evicting* self, int64_t* out, int64_t capacity) {
  Lock lock(state->mutex);
  return self->arena().take_released(out, capacity);
}

// Drops the bytes of a record where it may go now.
void tr_evict_evict_idle(Evicting* self, int64_t id) {
  Lock lock(state->mutex);
  self->arena().evict_idle(static_cast<tightrope_evict::Id>(id));
}

// Returns what it was.
int64_t tr_evict_suspend(Evicting* self, int64_t suspended) {
  Lock lock(state->mutex);
  return std::exchange(self->suspended, suspended != 0) ? 1 : 0;
}

// Lists held storages of the arena into `out`, up to `capacity`; returns how many there are.
int64_t tr_evict_held(Evicting* self, int64_t resident, int64_t* out, int64_t capacity) {
  Lock lock(state->mutex);
  const auto found = self->held(resident != 0);
  std::copy_n(found.begin(), std::min<int64_t>(capacity, static_cast<int64_t>(found.size())), out);
  return static_cast<int64_t>(found.size());
}

int64_t tr_evict_bytes(Evicting* self, int64_t id) {
  Lock lock(state->mutex);
  return self->slot(static_cast<tightrope_evict::Id>(id)).bytes;
}

// Whether the heap takes so many bytes without others giving theirs back, which may free what is to move.
static bool has_room(int64_t bytes) {
  Lock lock(state->mutex);
  return state->limit < 0 || state->stats.charged + tightrope_evict::round_up(bytes) <= state->limit;
}

// Moves a held resident storage from the arena to the heap; -2: it does not fit there.
int64_t tr_evict_move_out(Evicting* self, int64_t id) {
  const auto key = static_cast<tightrope_evict::Id>(id);
  const bool before = std::exchange(self->suspended, true);
  try {
    if (!has_room(self->slot(key).bytes)) throw std::runtime_error("the heap has no room");
    auto to = c10::GetCPUAllocator()->allocate(static_cast<size_t>(self->slot(key).bytes));
    Lock lock(state->mutex);
    // nobody holds it any more where what was brought back before let go of it
    if (self->slot(key).impl != nullptr && self->arena().resident(key)) self->move_outside(key, std::move(to));
  } catch (const std::exception& refused) {
    self->suspended = before;
    fail(refused.what());
    return -2;
  }
  self->suspended = before;
  return 0;
}

// Loses the bytes of a held storage for good: reading it raises.
void tr_evict_lose(Evicting* self, int64_t id) {
  Lock lock(state->mutex);
  self->lose(static_cast<tightrope_evict::Id>(id));
}

// Ends it. Blocks that live on keep their addresses until they are freed; returns how many. Those of `leaving` move
// to the heap where that has room, once the arena is charged by the pages of what it holds.
int64_t tr_evict_close(Evicting* self, const int64_t* leaving, int64_t num_leaving) {
  int64_t count = 0;
  std::vector<tightrope_evicting::Held> moving;
  {
    Lock lock(state->mutex);
    for (int64_t k = 0; k < num_leaving; ++k) {
      auto* impl = self->slot(static_cast<tightrope_evict::Id>(leaving[k])).impl;
      if (impl != nullptr) moving.push_back(tightrope_evicting::Held::reclaim_copy(impl));
    }
    Arena& mapped = *find(self->of_state);
    self->each_block([&](int64_t offset, int64_t bytes, bool held) {
      if (!held && !self->is_raw(offset)) return;
      state->adopt(mapped, offset, bytes);
      ++count;
    });
    state->evicting = nullptr;
    mapped.state = Arena::State::idle;
    state->retire(self->of_state, mapped);
  }
  delete self;
  for (const auto& impl : moving) {
    if (!has_room(static_cast<int64_t>(impl->nbytes()))) continue;
    auto to = c10::GetCPUAllocator()->allocate(impl->nbytes());
    std::memcpy(to.get(), impl->data(), impl->nbytes());
    impl->set_data_ptr_noswap(std::move(to));
  }
  return count;
}

// The most bytes that tensors of the arena held at once, evicted ones and temporaries included.
int64_t tr_evict_most_held(Evicting* self) { return self->most_held; }

// The same with what was charged outside of the arena then.
int64_t tr_evict_most_in_all(Evicting* self) { return self->most_in_all; }

// From now on the arena may grow into what is freed outside of it.
void tr_evict_let_grow(Evicting* self) {
  Lock lock(state->mutex);
  self->charged_at_most = state->stats.charged;
}

// Bytes that the arena grew by.
int64_t tr_evict_grown(Evicting* self) {
  Lock lock(state->mutex);
  return self->grown;
}

}  // extern "C"
