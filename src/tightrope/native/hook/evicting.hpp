// Tensors whose bytes lie in an arena of `solvers/evict.hpp`, and lose them when the arena needs room.
//
// While an `Evicting` is on, what its thread allocates through torch is placed in its arena. An op's results are
// tied to the records of the arena by their StorageImpl. When the arena evicts one, the StorageImpl keeps its
// size, its views and its place in autograd's graph; its DataPtr is replaced by a tombstone: no data, and a
// deleter that tells when the last reference is gone. Reading through it raises torch's own error.
//
//     StorageImpl --DataPtr--> bytes in the arena      held, resident
//     StorageImpl --DataPtr--> Tombstone               held, evicted
//                              bytes in the arena      not held, resident: needed to make others again
//     StorageImpl --DataPtr--> bytes in the arena      lent: the same, while an op that runs again reads them
//
// The caller holds the allocator's mutex around every call. No Python runs here, and nothing allocates by torch.
#pragma once

#include "evicting_slots.hpp"
#include "last_reference.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tightrope_evicting {

using tightrope_evict::Arena;
using tightrope_evict::Options;

constexpr Id kNobody = -1, kElsewhere = -2;
inline const char* const kEvicted =
    "tightrope: this tensor's bytes were evicted, and something reads them other than by an op of torch. Read it by "
    "an op, or call .numpy(), .data_ptr() or .untyped_storage() on it first, which bring them back.";

inline const char* const kLost =
    "tightrope: this tensor was evicted when an error left tightrope.evict, and there was no room to bring it back.";

class Evicting {
 public:
  pthread_t owner = pthread_self();
  int64_t (*outside)();
  bool suspended = false, poison = false;
  bool soft = false;  // inputs of ops that wait for other inputs may go where nothing else can
  int64_t of_state = 0;  // id of the mapping in the allocator's books
  int64_t charged_at_most = 0;  // the arena may grow until the process is charged that much; 0: it may not
  int64_t grown = 0;
  std::vector<Held> dropped;  // last references, for the caller to let go of once the mutex is free: that locks it

  // `outside` tells the bytes that are charged outside of the arena.
  Evicting(const Options& options, char* base, int64_t bytes, c10::DeleterFnPtr deleter, int64_t (*outside)())
      : outside(outside), arena_(options), base_(base), bytes_(bytes), deleter_(deleter) {
    arena_.on_evicted(&Evicting::evicted, this);
    arena_.on_moved(&Evicting::moved, this);
  }

  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  bool holds(const void* pointer) const { return pointer >= base_ && pointer < base_ + bytes_; }
  bool serves() const { return !suspended && pthread_equal(owner, pthread_self()); }

  void* allocate(int64_t bytes) {
    Id id = arena_.place(bytes, !running_ && waiting_.empty());
    for (size_t k = 0; soft && id == kNobody && k + 1 < waiting_.size(); ++k) {
      Waiting& frame = waiting_[k];
      if (frame.pinned.empty() || ++frame.tries > kTries) continue;
      for (const Id pinned : frame.pinned) arena_.unpin(pinned);
      frame.pinned.clear();
      id = arena_.place(bytes);
    }
    if (id == kNobody) {
      note_walls();
      refused = true;
      // Another try begins with room for this much: then what the op reads may move, too.
      if (running_) {
        Taken& taken = taken_[shape_];
        taken.bytes = std::max(most_live_, live_ + tightrope_evict::round_up(bytes));
        taken.largest = std::max(largest_, bytes);
      }
      return nullptr;
    }
    live_ += tightrope_evict::round_up(bytes);
    most_live_ = std::max(most_live_, live_);
    largest_ = std::max(largest_, bytes);
    Slot& slot = fresh(id);
    slot.address = base_ + arena_.offset(id);
    slot.bytes = bytes;
    by_address_[slot.address] = id;
    return slot.address;
  }

  // The DataPtr of a block is gone.
  void free(void* pointer) {
    const auto found = by_address_.find(pointer);
    TORCH_INTERNAL_ASSERT(found != by_address_.end(), "tightrope: freed twice in the evicting arena");
    const Id id = found->second;
    Slot& slot = slots_[id];
    const bool was_lent = slot.lent;
    if (running_ && slot.impl == nullptr && !arena_.record(id).named)  // a temporary of the op that runs
      live_ -= std::min(live_, tightrope_evict::round_up(slot.bytes));
    forget_impl(slot);
    if (was_lent) return;
    const int64_t bytes = slot.bytes;
    if (!arena_.release(id)) return;
    if (poison) std::memset(pointer, 0xFF, static_cast<size_t>(bytes));
    by_address_.erase(pointer);
    if (slots_[id].address == pointer) slots_[id].address = nullptr;
  }

  void tombstone_gone(Id id) {
    forget_impl(slots_[id]);
    arena_.release(id);
  }

  // --- ops

  Id find(Storage* impl) const {
    const auto found = by_impl_.find(impl);
    return found == by_impl_.end() ? kNobody : found->second;
  }

  // The record of an input; one that is not the arena's gets a record as something outside.
  Id input(Storage* impl) {
    const Id known = find(impl);
    if (known != kNobody) return known;
    const Id id = bind(impl);
    if (!is_outside(id)) arena_.settle(id);  // made by code that is no op of torch
    return id;
  }

  // Ties a storage to the record of its block, or to a new one as something outside, which is settled.
  Id bind(Storage* impl) {
    const auto& pointer = impl->_mutable_data_ptr_no_checks();
    const auto found = by_address_.find(pointer.get());
    if (found != by_address_.end() && slots_[found->second].impl == nullptr) {
      const Id id = found->second;
      by_impl_[impl] = id;
      slots_[id].impl = impl;
      held_ += tightrope_evict::round_up(slots_[id].bytes);
      return id;
    }
    const Id id = arena_.outside(static_cast<int64_t>(impl->nbytes()));
    Slot& slot = fresh(id);
    slot.impl = impl;
    slot.bytes = static_cast<int64_t>(impl->nbytes());
    slot.outside = Held::reclaim_copy(impl);
    by_impl_[impl] = id;
    outside_.push_back(id);
    return id;
  }

  bool is_outside(Id id) const { return static_cast<bool>(slots_[id].outside); }

  // `id` was evicted and takes the bytes of the storage `from`, which is left without any.
  bool restore(Id id, Storage* from) {
    Id source = find(from);
    if (source == kNobody) source = bind(from);
    Slot &to = slots_[id], &of = slots_[source];
    if (of.outside) {
      restore_outside(id, source, from);
      return true;
    }
    char* address = of.address;
    if (address == nullptr) return false;
    arena_.restored(id, source);
    by_address_[address] = id;
    to.address = address;
    of.address = nullptr;
    forget_impl(of);
    if (to.impl != nullptr) {
      from->_mutable_data_ptr_no_checks().release_context();
      from->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
      revive(to.impl, c10::DataPtr(address, address, deleter_, c10::Device(c10::DeviceType::CPU)));
    } else {
      // Nobody holds it: `from` may read it as long as it lives.
      to.impl = from;
      to.lent = true;
      by_impl_[from] = id;
    }
    return true;
  }

  // A storage over a resident record's bytes, with a reference more.
  Storage* storage(Id id) {
    Slot& slot = slots_[id];
    if (slot.impl != nullptr) return Held::reclaim_copy(slot.impl).release();
    TORCH_INTERNAL_ASSERT(slot.address != nullptr, "tightrope: nothing to read of a record without bytes");
    auto made = c10::make_intrusive<Storage>(
        Storage::use_byte_size_t{}, static_cast<size_t>(slot.bytes),
        c10::DataPtr(slot.address, slot.address, deleter_, c10::Device(c10::DeviceType::CPU)), nullptr, false);
    slot.impl = made.get();
    slot.lent = true;
    by_impl_[made.get()] = id;
    return made.release();
  }

  // Replaces a held record's bytes by `to`; the record goes on as one outside.
  void move_outside(Id id, c10::DataPtr to) {
    Slot& slot = slots_[id];
    const Held impl = Held::reclaim_copy(slot.impl);
    std::memcpy(to.get(), slot.address, static_cast<size_t>(slot.bytes));
    arena_.evict(id);
    const Id there = arena_.outside(slot.bytes);
    fresh(there);
    arena_.restored(id, there);
    revive(impl.get(), std::move(to));
    uncount(slots_[id]);
    slots_[id].outside = impl;
    outside_.push_back(id);
  }

  // Records of a kind that the caller asks for: held storages of the arena, evicted or not.
  std::vector<Id> held(bool resident) const {
    std::vector<Id> found;
    for (const auto& [impl, id] : by_impl_)
      if (!slots_[id].outside && !slots_[id].lent && arena_.resident(id) == resident) found.push_back(id);
    std::sort(found.begin(), found.end());
    return found;
  }

  // Lets go of what only this still refers to, and of records that are gone; adds the latter to `out`.
  void forgotten(std::vector<Id>& out) {
    if (++num_calls_ % 64 == 0 && !suspended) sweep();
    Id id;
    while (arena_.take_forgotten(&id, 1) == 1) {
      Slot gone = static_cast<size_t>(id) < slots_.size() ? std::exchange(slots_[id], {}) : Slot{};
      if (gone.impl != nullptr) by_impl_.erase(gone.impl);
      uncount(gone);
      if (gone.outside) dropped.push_back(std::move(gone.outside));
      if (gone.address != nullptr) by_address_.erase(gone.address);
      out.push_back(id);
    }
  }

  void sweep() {
    size_t kept = 0;
    for (const Id id : outside_) {
      Slot& slot = slots_[id];
      if (!slot.outside) continue;
      if (!slot.released && tightrope_evict::is_last(slot.outside)) {
        slot.released = true;
        if (arena_.release(id)) {
          forget_impl(slot);
          dropped.push_back(std::move(slot.outside));
          continue;
        }
      }
      outside_[kept++] = id;
    }
    outside_.resize(kept);
  }

  // Whoever reads a held evicted storage from now on is told that its bytes are lost.
  void lose(Id id) {
    Storage* impl = slots_[id].impl;
    if (impl == nullptr || arena_.resident(id)) return;
    revive(impl, c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
    tightrope_evict::refuse_access(impl, kLost);
    forget_impl(slots_[id]);
  }

  // Whether a block is no tensor's that an op made: a kernel keeps it, or code that is no op of torch.
  bool is_raw(int64_t offset) const {
    const Id id = by_address_.at(base_ + offset);
    return slots_[id].impl == nullptr && !arena_.record(id).named;
  }

  // The blocks that live, by address.
  template <typename Visit>
  void each_block(Visit visit) const {
    for (const auto& [address, id] : by_address_)
      visit(static_cast<const char*>(address) - base_, slots_[id].bytes, slots_[id].impl != nullptr);
  }

  const Slot& slot(Id id) const { return slots_[id]; }

  // --- the op that runs

  int64_t most_held = 0;  // bytes of tensors of the arena, evicted ones and temporaries included
  int64_t most_in_all = 0;  // the same with what was charged outside of the arena then
  std::vector<int64_t> walls;  // at the last refusal, three each: record, bytes, pins
  bool refused = false;        // a request of the op that runs

  // Looks up the storages of an op, writes their ids, and prepares the op where all are resident and nothing is
  // at risk. Tells whether it did.
  bool inputs(const OpShape& op, const std::vector<Storage*>& impls, std::vector<Id>& ids) {
    bool ready = true;
    ids.clear();
    for (Storage* impl : impls) {
      ids.push_back(input(impl));
      ready = ready && arena_.resident(ids.back());
    }
    for (size_t k = 0; ready && op.writes && k < ids.size(); ++k)
      ready = (op.marks[k] & kWritten) == 0 || arena_.at_risk(ids[k], nullptr, 0) == 0;
    if (ready) prepare(op, ids);
    return ready;
  }

  // Pins the inputs of an op, all resident; those that are aside are no parents of its results.
  void prepare(const OpShape& op, const std::vector<Id>& ids) {
    frame_.clear();
    parents_.clear();
    for (size_t k = 0; k < ids.size(); ++k) {
      const Id id = ids[k];
      if (std::find(frame_.begin(), frame_.end(), id) != frame_.end()) continue;
      arena_.pin(id);
      frame_.push_back(id);
      if ((op.marks[k] & kAside) == 0) parents_.push_back(id);
    }
    shape_ = op.shape * 64 + op.number;
    const auto known = taken_.find(shape_);
    const Taken expected = known == taken_.end() ? Taken{} : known->second;
    const int64_t flags = op.opaque ? int64_t{tightrope_evict::kUnrecomputable} : 0;
    arena_.begin_op(expected.ns, expected.bytes, expected.largest, flags);
    live_ = most_live_ = largest_ = 0;
    running_ = true;
    refused = false;
  }

  // The op ran: the storages `outputs` become ids in `made` (-1: an input's own), and `changed` ids get those of the
  // old versions in `olds`. Adds what is gone to `gone`. Returns the op's time as it is charged, and its bytes.
  Taken finish(const OpShape& op, int64_t ns, const std::vector<Storage*>& outputs, std::vector<Id>& made,
               const std::vector<Id>& changed, std::vector<Id>& olds, std::vector<Id>& gone) {
    const auto known = taken_.find(shape_);
    if (known != taken_.end() && known->second.ns >= 0) ns = std::min(ns, known->second.ns);
    arena_.advance(ns, false);
    most_held = std::max(most_held, held_ + most_live_);
    most_in_all = std::max(most_in_all, outside() + held_ + most_live_);
    for (const Id id : frame_) arena_.touch(id);
    made.clear();
    for (Storage* impl : outputs) {
      const bool own = find(impl) == kNobody && impl->nbytes() > 0;
      const Id id = own ? bind(impl) : kNobody;
      made.push_back(id);
      if (!own) continue;
      if (is_outside(id) || op.opaque || arena_.record(id).bytes <= tightrope_evict::kTiny) arena_.settle(id);
      else arena_.produced(id, ns, parents_.data(), static_cast<int64_t>(parents_.size()));
    }
    olds.clear();
    for (const Id id : changed) olds.push_back(change(id, ns, op.opaque));
    if (taken_.size() > kLargestBooks) taken_.clear();
    const Taken taken = taken_[shape_] = {ns, most_live_, largest_};
    abandon();
    forgotten(gone);
    return taken;
  }

  // --- ops that wait for their inputs to be made again, the outermost first

  void open_frame() { waiting_.emplace_back(); }

  // Pins storages, once each, up to one that is evicted, which is returned; -1: there is none. Those
  // behind it are pinned too where pins may be taken back, and none were from this op yet: then fewer run twice.
  Id pin_resident(const std::vector<Id>& ids) {
    Waiting& frame = waiting_.back();
    Id missing = kNobody;
    for (const Id id : ids) {
      if (!arena_.resident(id)) {
        if (missing == kNobody) missing = id;
        if (!soft || frame.tries > 0) break;
      } else if (std::find(frame.pinned.begin(), frame.pinned.end(), id) == frame.pinned.end()) {
        arena_.pin(id);
        frame.pinned.push_back(id);
      }
    }
    return missing;
  }

  void close_frame() {
    for (const Id id : waiting_.back().pinned) arena_.unpin(id);
    waiting_.pop_back();
  }

  // Lets the inputs of an op go, whether it ran or failed.
  void abandon() {
    running_ = false;
    for (const Id id : frame_) arena_.unpin(id);
    frame_.clear();
  }

  static constexpr size_t kLargestBooks = 1 << 16;

 private:
  Arena arena_;
  char* base_;
  int64_t bytes_;
  c10::DeleterFnPtr deleter_;
  bool running_ = false;
  int64_t num_calls_ = 0, shape_ = 0;
  int64_t live_ = 0, most_live_ = 0;  // bytes that the op at hand has allocated and not freed; most of them at once
  int64_t largest_ = 0;               // of its storages
  struct Waiting {
    std::vector<Id> pinned;
    int tries = 0;
  };

  static constexpr int kTries = 8;  // after so many the inputs of an op that waits stay, so that it ends
  std::vector<Waiting> waiting_;
  std::unordered_map<int64_t, Taken> taken_;
  std::vector<Id> frame_, parents_;  // inputs of the op that runs, pinned; those that its results are made from
  std::vector<Slot> slots_;
  std::vector<Id> outside_;
  std::unordered_map<Storage*, Id> by_impl_;
  std::unordered_map<const void*, Id> by_address_;
  int64_t held_ = 0;  // bytes of tensors of the arena that somebody holds

  Slot& fresh(Id id) {
    if (static_cast<size_t>(id) >= slots_.size()) slots_.resize(static_cast<size_t>(id) * 2 + 64);
    return slots_[id] = Slot{};
  }

  void uncount(const Slot& slot) {
    if (slot.impl != nullptr && !slot.outside && !slot.lent) held_ -= tightrope_evict::round_up(slot.bytes);
  }

  void forget_impl(Slot& slot) {
    if (slot.impl != nullptr) by_impl_.erase(slot.impl);
    uncount(slot);
    slot.impl = nullptr;
    slot.lent = false;
  }

  // An op in place ran on `id`. A storage that was resized by it has another block now, and nothing is known of that.
  Id change(Id id, int64_t ns, bool settled) {
    if (!arena_.valid(id) || slots_[id].impl == nullptr) return kElsewhere;
    const std::vector<Id> others(parents_.begin(), std::remove(parents_.begin(), parents_.end(), id));
    parents_.resize(others.size());
    const Id old = arena_.mutated(id, ns, others.data(), static_cast<int64_t>(others.size()));
    parents_.push_back(id);
    if (old != kNobody) fresh(old).bytes = slots_[id].bytes;
    if (settled) arena_.settle(id);
    return old;
  }

  // As `restore`, where the fresh bytes are on the heap: when an eviction ends and its arena has no room.
  void restore_outside(Id id, Id source, Storage* from) {
    arena_.restored(id, source);
    forget_impl(slots_[source]);
    slots_[source].outside.reset();
    Slot& to = slots_[id];
    uncount(to);
    if (to.impl != nullptr) {
      revive(to.impl, std::move(from->_mutable_data_ptr_no_checks()));
      from->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
    } else {
      to.impl = from;
      by_impl_[from] = id;
    }
    to.outside = Held::reclaim_copy(to.impl);
  }

  static void revive(Storage* impl, c10::DataPtr data) {
    auto& now = impl->_mutable_data_ptr_no_checks();
    if (now.get_deleter() == &delete_tombstone) delete static_cast<Tombstone*>(now.release_context());
    impl->set_data_ptr_noswap(std::move(data));
    tightrope_evict::allow_access(impl);
  }

  void note_walls() {
    walls.clear();
    for (const auto& [address, id] : by_address_) {
      const auto& record = arena_.record(id);
      if (record.pins > 0 || !record.recomputable) walls.insert(walls.end(), {id, slots_[id].bytes, record.pins});
    }
  }

  // The arena moves the bytes of a record that no kernel reads now.
  static void moved(void* context, Id id, int64_t from, int64_t to, int64_t bytes) {
    auto& self = *static_cast<Evicting*>(context);
    Slot& slot = self.slots_[id];
    char* target = self.base_ + to;
    std::memmove(target, self.base_ + from, static_cast<size_t>(bytes));
    self.by_address_.erase(slot.address);
    self.by_address_[target] = id;
    slot.address = target;
    if (slot.impl == nullptr) return;
    slot.impl->_mutable_data_ptr_no_checks().release_context();
    slot.impl->set_data_ptr_noswap({target, target, self.deleter_, c10::Device(c10::DeviceType::CPU)});
  }

  // The arena dropped the bytes of a record.
  static void evicted(void* context, Id id) {
    auto& self = *static_cast<Evicting*>(context);
    Slot& slot = self.slots_[id];
    if (slot.address != nullptr) {
      if (self.poison) std::memset(slot.address, 0xFF, static_cast<size_t>(slot.bytes));
      self.by_address_.erase(slot.address);
      slot.address = nullptr;
    }
    if (slot.impl == nullptr) return;
    slot.impl->_mutable_data_ptr_no_checks().release_context();
    if (slot.lent) {
      slot.impl->set_data_ptr_noswap(c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
      tightrope_evict::refuse_access(slot.impl, kEvicted);
      self.forget_impl(slot);
      return;
    }
    auto* tombstone = new Tombstone{&self, id};
    slot.impl->set_data_ptr_noswap({nullptr, tombstone, &delete_tombstone, c10::Device(c10::DeviceType::CPU)});
    tightrope_evict::refuse_access(slot.impl, kEvicted);
  }
};

}  // namespace tightrope_evicting
