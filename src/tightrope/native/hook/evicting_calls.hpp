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
  const int64_t id = tr_open_arena(options->bytes);
  if (id < 0) return nullptr;
  Lock lock(state->mutex);
  Arena& mapped = *find(id);
  auto* made = new Evicting(*options, mapped.base, mapped.bytes, &deallocate);
  made->of_state = id;
  made->poison = poison != 0;
  state->evicting = made;
  return made;
}

tightrope_evict::Arena* tr_evict_arena(Evicting* self) { return &self->arena(); }

int64_t* tr_evict_rows(Evicting* self) { return self->io.data(); }

int64_t tr_evict_columns() { return Evicting::kColumns; }

int64_t tr_evict_kind(Evicting* self, int64_t opaque) {
  self->opaque.push_back(opaque != 0);
  return static_cast<int64_t>(self->opaque.size()) - 1;
}

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

void tr_evict_open_frame(Evicting* self) {
  Lock lock(state->mutex);
  self->open_frame();
}

// Pins what is resident of `count` inputs of the innermost op that waits, in the row of keys; the first that is not, or -1.
int64_t tr_evict_pin_resident(Evicting* self, int64_t count) {
  Lock lock(state->mutex);
  return self->pin_resident(count);
}

void tr_evict_close_frame(Evicting* self) {
  Lock lock(state->mutex);
  self->close_frame();
}

// Up to four storages come as arguments; of more, all stand in the row of keys.
int64_t tr_evict_inputs(Evicting* self, int64_t kind, int64_t shape, int64_t writes, int64_t aside, int64_t count,
                        int64_t a, int64_t b, int64_t c, int64_t d) {
  Lock lock(state->mutex);
  if (count <= 4) {
    const int64_t keys[] = {a, b, c, d};
    std::copy(keys, keys + count, self->row(Evicting::kKeys));
  }
  return self->inputs(kind, shape, writes, aside, count);
}

void tr_evict_prepare(Evicting* self, int64_t kind, int64_t shape, int64_t aside, int64_t count) {
  Lock lock(state->mutex);
  self->prepare(kind, shape, aside, count);
}

int64_t tr_evict_finish(Evicting* self, int64_t kind, int64_t ns, int64_t outputs, int64_t changed, int64_t a, int64_t b,
                        int64_t c) {
  std::vector<tightrope_evicting::Held> dropped;  // outlives the lock
  Lock lock(state->mutex);
  if (outputs <= 3) {
    const int64_t keys[] = {a, b, c};
    std::copy(keys, keys + outputs, self->row(Evicting::kOutputs));
  }
  const int64_t forgotten = self->finish(kind, ns, outputs, changed);
  dropped.swap(self->dropped);
  return forgotten;
}

void tr_evict_abandon(Evicting* self) {
  Lock lock(state->mutex);
  self->abandon();
}

int64_t tr_evict_find(Evicting* self, c10::StorageImpl* impl) {
  Lock lock(state->mutex);
  return self->find(impl);
}

// 0 on success; -1: the fresh storage is not of the arena.
int64_t tr_evict_restore(Evicting* self, int64_t id, c10::StorageImpl* from) {
  Lock lock(state->mutex);
  return self->restore(static_cast<tightrope_evict::Id>(id), from) ? 0 : fail("a recomputed tensor lies outside the arena");
}

c10::StorageImpl* tr_evict_storage(Evicting* self, int64_t id) {
  Lock lock(state->mutex);
  return self->storage(static_cast<tightrope_evict::Id>(id));
}

// Takes back the reference that tr_evict_storage gave.
void tr_evict_unref(c10::StorageImpl* impl) { c10::intrusive_ptr<c10::StorageImpl>::reclaim(impl); }

int64_t tr_evict_pins(Evicting* self, int64_t id) {
  return self->arena().record(static_cast<tightrope_evict::Id>(id)).pins;
}

int64_t tr_evict_is_inside(Evicting* self, int64_t id) {
  return self->is_outside(static_cast<tightrope_evict::Id>(id)) ? 0 : 1;
}

// Whether somebody beside the arena refers to it.
int64_t tr_evict_is_held(Evicting* self, int64_t id) {
  return self->arena().record(static_cast<tightrope_evict::Id>(id)).held ? 1 : 0;
}

int64_t tr_evict_forgotten(Evicting* self) {
  std::vector<tightrope_evicting::Held> dropped;  // outlives the lock
  Lock lock(state->mutex);
  const int64_t forgotten = self->forgotten(self->row(Evicting::kForgotten), Evicting::kColumns - 1);
  dropped.swap(self->dropped);
  return forgotten;
}

// From now on, releases are noted.
void tr_evict_note_released(Evicting* self) { self->arena().note_released = true; }

// Writes ids that were released since the last call into the row of keys; returns how many.
int64_t tr_evict_released(Evicting* self) {
  Lock lock(state->mutex);
  return self->arena().take_released(self->row(Evicting::kKeys), Evicting::kColumns);
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

// Moves a held resident storage from the arena to the heap; -2: it does not fit there.
int64_t tr_evict_move_out(Evicting* self, int64_t id) {
  const auto key = static_cast<tightrope_evict::Id>(id);
  const bool before = std::exchange(self->suspended, true);
  try {
    auto to = c10::GetCPUAllocator()->allocate(static_cast<size_t>(self->slot(key).bytes));
    Lock lock(state->mutex);
    self->move_outside(key, std::move(to));
  } catch (const std::exception& refused) {
    self->suspended = before;
    fail(refused.what());
    return -2;
  }
  self->suspended = before;
  return 0;
}

// Moves a storage that a closed arena still holds to the heap; -2: it does not fit there.
int64_t tr_evict_to_heap(c10::StorageImpl* impl) {
  try {
    auto to = c10::GetCPUAllocator()->allocate(impl->nbytes());
    std::memcpy(to.get(), impl->data(), impl->nbytes());
    impl->set_data_ptr_noswap(std::move(to));
  } catch (const std::exception& refused) {
    fail(refused.what());
    return -2;
  }
  return 0;
}

// Loses the bytes of a held storage for good: reading it raises.
void tr_evict_lose(Evicting* self, int64_t id) {
  Lock lock(state->mutex);
  self->lose(static_cast<tightrope_evict::Id>(id));
}

// Ends it. Blocks that live on keep their addresses until they are freed; returns how many.
int64_t tr_evict_close(Evicting* self) {
  int64_t count = 0;
  {
    Lock lock(state->mutex);
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
  return count;
}

}  // extern "C"
