// The interception: every op that torch runs in a block, before and after.
//
//     autograd, views, user's modes  -->  kKey: OpWatch::op  -->  the backend's kernel
//     composite ops                  -->  kOuterKey: OpWatch::composite, pins what they read by pointers
//
// Before an op its inputs are made resident and pinned; after it the arena hears what the op took and what it made,
// and the record of the call is kept for as long as something may have to be made again by it. The keys are set on
// the block's thread only: others, and code outside of blocks, pay nothing.
//
// Guarantee   As `tightrope.run.evict.context` says.
// Complexity  About a microsecond for each tensor of an op whose inputs are resident; views cost nothing.
// Gaps        Of what a composite op is given or makes, only integers are taken to be read by pointers.
#pragma once

#include "watch_again.hpp"

#include <chrono>

namespace tightrope_evicting {

// Above autograd; meant for deferred initialization outside of torch, and not used by torch.
constexpr c10::DispatchKey kOuterKey = c10::DispatchKey::DeferredInit;

constexpr int kTries = 4;     // an op that ran out begins again so often, each time with room for all it asked for
constexpr int kDeepest = 32;  // after so many changes in place a tensor stays, and what went into it may go

// Who follows the ops hears of each before and after it; both return 0, or 1 where they failed. `numbers` are time,
// bytes, and how many ids were read, made, changed (these, then their old versions) and forgotten.
using Before = int64_t (*)(int64_t kind, int64_t shape);
using After = int64_t (*)(const char* name, const int64_t* numbers, const int64_t* ids);

// Turns an error into one of Python's, and returns its number.
enum class Told : int64_t { out_of_memory, broken, pending };
using Tell = int64_t (*)(int64_t what, const char* text, const char* op);

class OpWatch {
 public:
  Evicting& evicting;
  Again again;
  Before before = nullptr;
  After after = nullptr;
  Tell tell;
  int64_t num_ops = 0;
  bool any_exposed = false;
  std::set<const void*> trusted;  // storages of others' memory that nobody fills again in the block

  OpWatch(Evicting& of, Tell how) : evicting(of), again(of), tell(how) {}

  // Passes an op on, with a record of it.
  void op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
    const OpKind& kind = this->kind(op);
    if (kind.plain) return op.redispatchBoxed(keys, &stack);
    const size_t begin = stack.size() - kind.arguments;
    if (kind.composite && !is_unusual(stack.data() + begin, kind.arguments)) return op.redispatchBoxed(keys, &stack);
    if (kind.name == "aten._lazy_clone") return clone(keys, stack);
    Running now(op, begin);
    Call& call = *now.call;
    call.kind = &kind, call.keys = keys;
    look(now, kind, stack.data() + begin);
    if (before != nullptr && before(now.shape.number, now.shape.shape) != 0)
      refuse(Told::pending, "", kind);
    const bool ready = locked([&] { return evicting.inputs(now.shape, now.impls, now.ids); });
    Risky risky{*this, {}};
    if (!ready) bring_back(kind, now, risky, true);
    for (size_t k = 0, at = 0; k < call.places.size(); ++k)
      if (!call.places[k].is_number) call.places[k].version = again.ensure(now.ids[at++]);
    if (now.shape.writes) fill_blanks(now);
    call.arguments.assign(stack.begin() + static_cast<std::ptrdiff_t>(begin), stack.end());
    const int64_t ns = run(kind, now, stack, risky);
    ran(kind, now, stack, ns);
  }

  // Passes a composite op on; what it reads by pointers neither goes nor moves.
  void composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack& stack) {
    struct Open {  // while it runs
      OpWatch& self;
      size_t base;
      explicit Open(OpWatch& of) : self(of), base(of.read_.size()) { ++self.composites_; }
      ~Open() {
        --self.composites_;
        std::vector<Read> gone(std::make_move_iterator(self.read_.begin() + static_cast<std::ptrdiff_t>(base)),
                               std::make_move_iterator(self.read_.end()));
        self.read_.resize(base);
        locked([&] {
          for (const Read& one : gone) {
            if (self.evicting.find(one.held.get()) != one.id) continue;
            if (!one.rooted) self.evicting.arena().hold_still(one.id, false);
            self.evicting.arena().unpin(one.id);
          }
        });
      }
    } open(*this);
    const size_t count = op.schema().arguments().size();
    std::vector<Held> given;
    each_tensor(stack.data() + (stack.size() - count), count, [&](const at::Tensor& tensor, int, int) {
      if (is_read_by_pointer(tensor)) given.push_back(Held::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
    });
    for (const Held& one : given) {
      const Id id = locked([&]() -> Id {
        const Id found = evicting.find(one.get());
        if (found == kNobody) return evicting.holds(one->_mutable_data_ptr_no_checks().get()) ? evicting.input(one.get()) : kNobody;
        return evicting.is_outside(found) ? kNobody : found;
      });
      if (id == kNobody) continue;
      again.ensure(id);
      again.begin();
      guarded(kind(op), [&] {
        again.restore(id);
        keep_still(id, one);
      });
    }
    op.redispatchBoxed(keys, &stack);
  }

  // Makes a storage resident and pins it, outside of any op; others may write one that is exposed.
  void read(Id id, bool exposed) {
    again.begin();
    again.restore(id);
    locked([&] { evicting.arena().pin(id); });
    if (!exposed || again.version(id)->exposed) return;
    Risky pinned{*this, {}};
    locked([&] { evicting.arena().root(id); });
    secure(id, pinned);
    locked([&] { evicting.arena().mutated(id, 0, nullptr, 0); });
    any_exposed = again.version(id)->exposed = true;
  }

  // Drops what was forgotten since the last op.
  void collect() {
    std::vector<Held> dropped;  // outlives the lock
    std::vector<Id> gone;
    locked([&] {
      evicting.forgotten(gone);
      dropped.swap(evicting.dropped);
    });
    for (const Id id : gone) again.forget(id);
  }

  const OpKind& kind(const c10::OperatorHandle& op) {
    const OpKind*& found = kinds_[&op.operator_name()];
    if (found == nullptr) found = &learn(op);
    return *found;
  }

 private:
  struct Read {
    Id id;
    Held held;
    bool rooted;  // before
  };
  // An op while it runs.
  struct Running {
    Running(const c10::OperatorHandle& op, size_t at) : call(std::make_shared<Call>(op)), begin(at) {}
    std::shared_ptr<Call> call;
    size_t begin;  // of its arguments on the stack
    OpShape shape{};
    std::vector<Storage*> impls{};
    std::vector<Id> ids{};
    bool odd = false;      // what it makes cannot be made again
    bool unusual = false;  // it reads, changes or makes a tensor that is sparse or nested
  };
  // Pinned while an op runs, as it could not be made again once the op has changed what it writes.
  struct Risky {
    OpWatch& self;
    std::vector<Id> ids;
    ~Risky() {
      locked([&] {
        for (const Id id : ids) self.evicting.arena().unpin(id);
      });
    }
  };

  // What an op made: kept from op to op for the memory's sake.
  struct Made {
    std::vector<Storage*> outputs;
    std::vector<Held> still;  // integers that a composite op may read by pointers, or null
    std::vector<int64_t> sizes;
    std::vector<Id> changed, olds, made, gone;
  };

  Made made_;
  std::unordered_map<const void*, const OpKind*> kinds_;
  std::vector<Read> read_;  // by composite ops that run
  int composites_ = 0;

  // Kinds are the process's; an operator may have gone, and another taken its address, between two blocks.
  static const OpKind& learn(const c10::OperatorHandle& op) {
    static auto* all = new std::unordered_map<c10::OperatorName, OpKind>;
    const auto [found, fresh] = all->try_emplace(op.operator_name());
    const auto number = static_cast<int64_t>(all->size());
    if (fresh) {
      found->second = classify(op);
      found->second.number = number;
    }
    return found->second;
  }

  // Lengths, sizes and offsets are; bytes are masks, or a kernel's workspace.
  static bool is_read_by_pointer(const at::Tensor& tensor) {
    const bool counts = tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
    return counts && tensor.has_storage() && tensor.is_cpu() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
  }

  void keep_still(Id id, Held held) {
    const bool rooted = locked([&] {
      evicting.arena().pin(id);
      return evicting.arena().hold_still(id, true);
    });
    read_.push_back({id, std::move(held), rooted});
  }

  [[noreturn]] void refuse(Told what, const std::string& text, const OpKind& kind) {
    const int64_t number = tell(static_cast<int64_t>(what), text.c_str(), kind.name.c_str());
    TORCH_CHECK_WITH(OutOfMemoryError, false, "tightrope: error ", number, ": ", text);
  }

  // Raises what running again raises as Python's.
  template <typename Act>
  void guarded(const OpKind& kind, Act act) {
    try {
      act();
    } catch (const c10::OutOfMemoryError& error) {
      refuse(Told::out_of_memory, error.what_without_backtrace(), kind);
    } catch (const Broken& error) {
      refuse(Told::broken, error.what(), kind);
    }
  }

  // Notes places and storages of the tensors of an op, what it does to them, and its sizes.
  void look(Running& now, const OpKind& kind, const c10::IValue* arguments) {
    size_t hash = 0;
    const auto mix = [&](int64_t value) {
      hash = (hash ^ (static_cast<size_t>(value) + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2))) * 0x100000001b3ULL;
    };
    const bool aside = kind.training >= 0 && arguments[kind.training].isBool() && arguments[kind.training].toBool();
    OpShape& shape = now.shape;
    now.call->places.reserve(4), now.impls.reserve(4), now.ids.reserve(4), shape.marks.reserve(4);
    each_tensor(arguments, kind.arguments, [&](const at::Tensor& tensor, int argument, int element) {
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && is_number(tensor)) {
        now.call->places.push_back(place_of(tensor, argument, element));
        return;
      }
      uint8_t mark = !kind.written.empty() && kind.written[argument] ? kWritten : 0;
      if (aside && (argument == 3 || argument == 4)) mark |= kind.norm ? kAside | kWritten : kAside;
      const auto add = [&](Storage* impl) {
        now.impls.push_back(impl);
        shape.marks.push_back(mark);
        shape.writes |= (mark & kWritten) != 0;
        now.call->places.push_back(place_of(tensor, argument, element));
      };
      mix(-1);
      if (!is_strided(tensor)) {
        now.unusual = true;
        return each_part(tensor, add);
      }
      now.odd |= is_odd(tensor) || (!tensor.storage().resizable() && !is_trusted(tensor));
      add(tensor.storage().unsafeGetStorageImpl());
      for (const int64_t size : tensor.sizes()) mix(size);
    });
    for (size_t k = 0; k < kind.arguments; ++k) {
      if (arguments[k].isInt()) mix(arguments[k].toInt());
      else if (arguments[k].isIntList())
        for (const int64_t one : arguments[k].toIntList()) mix(one);
    }
    shape.number = kind.number, shape.shape = static_cast<int64_t>(hash >> 9), shape.opaque = kind.opaque || kind.blank || now.unusual;
  }

  static bool is_unusual(const c10::IValue* values, size_t count) {
    bool found = false;
    each_tensor(values, count, [&](const at::Tensor& tensor, int, int) { found = found || !is_strided(tensor); });
    return found;
  }

  bool is_trusted(const at::Tensor& tensor) const {
    return trusted.contains(tensor.storage().unsafeGetStorageImpl());
  }

  // Two storages on the same bytes are not two records.
  void clone(c10::DispatchKeySet keys, Stack& stack) {
    static const auto eager = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
    stack.emplace_back();  // the format: as it is
    op(eager, keys, stack);
  }

  // Makes inputs resident, and what could not be made again once the op has changed them.
  void bring_back(const OpKind& kind, Running& now, Risky& risky, bool writes) {
    again.begin();
    guarded(kind, [&] {
      struct Frame {
        Again& again;
        explicit Frame(Again& of) : again(of) { again.open_frame(); }
        ~Frame() { again.close_frame(); }
      } frame(again);
      again.resident(now.ids);
      for (size_t k = 0; writes && k < now.ids.size(); ++k)
        if ((now.shape.marks[k] & kWritten) != 0) secure(now.ids[k], risky);
      again.resident(now.ids);
      locked([&] { evicting.prepare(now.shape, now.ids); });
    });
  }

  // Brings back and pins what could not be made again once the bytes of a storage change.
  void secure(Id id, Risky& risky) {
    Id found = kNobody;
    while (locked([&] { return evicting.arena().at_risk(id, &found, 1); }) > 0) {
      again.restore(found);
      locked([&] { evicting.arena().pin(found); });
      risky.ids.push_back(found);
    }
  }

  // From its first write on, what was made without values can be made again.
  void fill_blanks(Running& now) {
    for (size_t k = 0; k < now.ids.size(); ++k) {
      Version& version = *again.version(now.ids[k]);
      if (!version.blank || (now.shape.marks[k] & kWritten) == 0) continue;
      version.blank = false;
      locked([&] { evicting.arena().produced(now.ids[k], 0, nullptr, 0); });
    }
  }

  // Runs the kernel; an op that ran out runs again, with room for all that it had asked for.
  int64_t run(const OpKind& kind, Running& now, Stack& stack, Risky& risky) {
    Call& call = *now.call;
    if (kind.random) draw(call);
    for (int tries = 0;; ++tries) {
      const auto start = std::chrono::steady_clock::now();
      try {
        c10::impl::ExcludeDispatchKeyGuard own(c10::DispatchKeySet({kKey, kOuterKey}));
        call.op.redispatchBoxed(call.keys, &stack);
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
      } catch (const c10::OutOfMemoryError& error) {
        locked([&] { evicting.abandon(); });
        if (now.shape.writes || tries == kTries) refuse(Told::out_of_memory, error.what_without_backtrace(), kind);
      } catch (...) {  // an op in Python may have been refused memory, too
        locked([&] { evicting.abandon(); });
        if (!evicting.refused || now.shape.writes || tries == kTries) throw;
      }
      if (call.state) again.set_state(*call.generator, *call.state);
      stack.resize(now.begin);
      stack.insert(stack.end(), call.arguments.begin(), call.arguments.end());
      bring_back(kind, now, risky, false);
    }
  }

  // Finds the generator that an op draws from, and copies its state.
  static void draw(Call& call) {
    call.generator = at::detail::getDefaultCPUGenerator();
    for (const c10::IValue& one : call.arguments)
      if (one.isGenerator()) call.generator = one.toGenerator();
    std::lock_guard<std::mutex> lock(call.generator->mutex());
    call.state = call.generator->clone();
  }

  // Tells the arena what was made and changed, and keeps the call where it may be needed.
  void ran(const OpKind& kind, Running& now, Stack& stack, int64_t ns) {
    ++num_ops;
    Call& call = *now.call;
    auto& [outputs, still, sizes, changed, olds, made, gone] = made_;
    outputs.clear(), still.clear(), sizes.clear(), changed.clear(), gone.clear();
    each_tensor(stack.data() + (stack.size() - kind.returns), kind.returns, [&](const at::Tensor& tensor, int, int) {
      const bool strided = is_strided(tensor);
      const auto add = [&](Storage* impl) {
        outputs.push_back(impl);
        sizes.push_back(static_cast<int64_t>(strided ? tensor.nbytes() : impl->nbytes()));
        if (composites_ > 0) still.push_back(strided && is_read_by_pointer(tensor) ? Held::reclaim_copy(impl) : Held());
      };
      if (strided) add(tensor.storage().unsafeGetStorageImpl());
      else each_part(tensor, add);
      now.unusual |= !strided;
      now.odd |= !strided || tensor.is_quantized();
    });
    for (size_t k = 0; now.shape.writes && k < now.ids.size(); ++k)
      if ((now.shape.marks[k] & kWritten) != 0 && std::find(changed.begin(), changed.end(), now.ids[k]) == changed.end())
        changed.push_back(now.ids[k]);
    std::vector<Held> dropped;  // outlives the lock
    call.taken = locked([&] {
      const Taken taken = evicting.finish(now.shape, ns, outputs, made, changed, olds, gone);
      dropped.swap(evicting.dropped);
      return taken;
    });
    bool kept = now.shape.opaque;
    bool exposed = false;
    if (any_exposed)
      for (const Place& place : call.places) exposed |= place.version != nullptr && place.version->exposed;
    now.odd |= std::find(olds.begin(), olds.end(), kElsewhere) != olds.end();  // it was resized
    if (!kept && (now.odd || exposed)) {
      kept = true;
      settle(made);
    }
    const bool blank = kind.blank && !now.unusual;
    const std::shared_ptr<Call> maker = blank ? blank_again(call, stack) : nullptr;
    std::vector<VersionRef> versions;
    versions.reserve(made.size());
    for (size_t k = 0; k < made.size(); ++k) {
      if (made[k] < 0) {
        versions.push_back(nullptr);
        continue;
      }
      const auto tiny = [&] {
        return sizes[k] <= tightrope_evict::kTiny && static_cast<int64_t>(outputs[k]->nbytes()) <= tightrope_evict::kTiny;
      };
      const bool stays = (kept && !blank) || (!kept && tiny());
      auto version = std::make_shared<Version>(made[k]);
      version->blank = blank;
      if (!stays) version->call = maker ? maker : now.call;
      again.set(again.version(made[k]), version);
      if (composites_ > 0 && still[k]) keep_still(made[k], std::move(still[k]));
      versions.push_back(std::move(version));
    }
    (maker ? *maker : call).outputs = std::move(versions);
    if (!changed.empty()) change(now, changed, olds);
    if (now.odd) settle(changed);
    if (now.call.use_count() > 1) finish_record(now);
    for (const Id id : gone) again.forget(id);
    if (after != nullptr) follow(kind, now, made, changed, olds, gone);
  }

  // Leaves out of a record what is not read when the op runs again: batch norm's running statistics are not moved twice.
  void finish_record(Running& now) {
    Call& call = *now.call;
    strip(call);
    std::vector<Place> places;
    size_t at = 0;
    for (Place& place : call.places) {
      if (!place.is_number && (now.shape.marks[at++] & kAside) != 0) continue;
      if (!place.is_number && std::find(call.inputs.begin(), call.inputs.end(), place.version) == call.inputs.end())
        call.inputs.push_back(place.version);
      places.push_back(std::move(place));
    }
    call.places = std::move(places);
  }

  void settle(const std::vector<Id>& ids) {
    locked([&] {
      for (const Id id : ids)
        if (id >= 0 && evicting.arena().valid(id)) evicting.arena().settle(id);
    });
  }

  void change(Running& now, const std::vector<Id>& changed, const std::vector<Id>& olds) {
    for (size_t k = 0; k < changed.size(); ++k) {
      const Id id = changed[k], old = olds[k];
      if (old == kElsewhere) continue;
      const VersionRef last = again.version(id);
      const auto next = std::make_shared<Version>(id);
      again.set(again.version(id), next);
      last->id = old;
      if (old < 0) {
        last->call.reset();
        continue;
      }
      again.set(again.version(old), last);
      next->depth = last->depth + 1;
      bool outside = false;  // the op runs again without it
      for (size_t i = 0; i < now.ids.size(); ++i) outside |= now.ids[i] == id && (now.shape.marks[i] & kAside) != 0;
      const bool tiny = locked([&] { return evicting.slot(id).bytes <= tightrope_evict::kTiny; });
      if (outside || next->depth == kDeepest || tiny || now.unusual) {
        if (!outside) next->depth = 0;
        settle({id});
      } else {
        next->call = now.call;
        now.call->changed.emplace_back(last, next);
      }
    }
  }

  // Makes bytes without values again: that takes no tensor, whatever the first run took its sizes from.
  std::shared_ptr<Call> blank_again(const Call& call, const Stack& stack) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_strided", "");
    const at::Tensor& made = stack.back().toTensor();
    auto again_by = std::make_shared<Call>(op);
    again_by->kind = &kind(op), again_by->keys = call.keys | c10::DispatchKeySet(c10::DispatchKey::CPU);
    again_by->local = call.local, again_by->modes = call.modes, again_by->default_dtype = call.default_dtype;
    again_by->taken = call.taken;
    again_by->arguments = {made.sizes(), made.strides(), made.scalar_type(), c10::IValue(), c10::IValue(), c10::IValue()};
    return again_by;
  }

  void follow(const OpKind& kind, const Running& now, const std::vector<Id>& made, const std::vector<Id>& changed,
              const std::vector<Id>& olds, const std::vector<Id>& gone) {
    std::vector<int64_t> ids;
    for (const Id id : now.ids)
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    const size_t reads = ids.size();
    for (const Id id : made)
      if (id >= 0) ids.push_back(id);
    const size_t makes = ids.size() - reads;
    for (const auto* row : {&changed, &olds, &gone}) ids.insert(ids.end(), row->begin(), row->end());
    const Taken& taken = now.call->taken;
    const int64_t numbers[] = {taken.ns, taken.bytes, static_cast<int64_t>(reads), static_cast<int64_t>(makes),
                               static_cast<int64_t>(changed.size()), static_cast<int64_t>(gone.size())};
    if (after(kind.name.c_str(), numbers, ids.data()) != 0) refuse(Told::pending, "", kind);
  }
};

}  // namespace tightrope_evicting
