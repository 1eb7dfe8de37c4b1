// Recomputation: the ops behind an evicted storage run again, depth first.
//
// Inputs of an op are pinned one by one as they become resident, and not before: an input further back may go in
// between and come back, so less is held at once than if all were pinned first. Where the policy says so, all that
// are resident are pinned at first, so that fewer run twice; where nothing else can go they may go even then, some
// times (`Evicting::allocate`), and from then on are pinned one by one. Tensors that evict each other without end
// are refused: what one op waits for may take a number of runs in proportion to the records.
//
// An op runs again below autograd and below the interception, with the keys, modes and default type of its first run.
#pragma once

#include "watch_records.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <ctime>
#include <map>
#include <stdexcept>

namespace tightrope_evicting {

// Private to torch: meant for its fake tensors in C++, and not used by its ops. It lies below autograd and views, and
// above the backends; whether it lies above or below Python's modes differs between versions.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

// What is raised as a TightropeError.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// With the allocator's mutex; nothing in there runs torch's ops or lets go of a tensor.
template <typename Act>
auto locked(Act act) {
  Lock lock(state->mutex);
  return act();
}

// Nanoseconds that a shorter step counts as: another process that holds the core for a moment would be most of its time.
constexpr int64_t kShort = 50'000'000;

inline int64_t thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

class Again {
 public:
  int64_t num_calls = 0, ns = 0;
  double most_again = -1;  // times that the ops' own time may be taken; below 0: no limit
  int64_t runs_per_record = 8, least_runs = 1024;  // as many as one op may wait for
  std::vector<Id> kept;    // of results of an op that runs again by a plan

  explicit Again(Evicting& evicting) : evicting_(evicting) {}

  // Counts runs from here on, as another op waits.
  void begin() { since_ = num_calls; }

  VersionRef& version(Id id) {
    if (static_cast<size_t>(id) >= versions_.size()) versions_.resize(static_cast<size_t>(id) * 2 + 64);
    return versions_[id];
  }

  VersionRef known(Id id) { return id < 0 ? nullptr : version(id); }

  VersionRef& ensure(Id id) {
    VersionRef& found = version(id);
    if (found == nullptr) set(found, std::make_shared<Version>(id));
    return found;
  }

  void set(VersionRef& at, VersionRef to) {
    num_versions += (to != nullptr) - (at != nullptr);
    at = std::move(to);
  }

  int64_t num_versions = 0;

  // Drops the calls that made what nobody can ask for any more.
  void forget(Id id) {
    VersionRef& found = version(id);
    if (found == nullptr) return;
    found->id = kNobody;
    const auto call = std::move(found->call);
    set(found, nullptr);
  }

  void forget_all() {
    for (size_t id = 0; id < versions_.size(); ++id) forget(static_cast<Id>(id));
  }

  // Makes a record's storage resident; whatever is missing on the way is made first.
  void restore(Id id) {
    const size_t base = waiting_.size();
    if (locked([&] { return evicting_.arena().resident(id); })) return;
    struct Frames {  // closes frames of ops that wait no longer
      Again& self;
      size_t base;
      ~Frames() {
        while (self.waiting_.size() > base) self.close();
        if (base == 0) self.spent_ += thread_ns() - self.began_;
      }
    } frames{*this, base};
    if (base == 0) began_ = thread_ns();
    wait_for(id);
    while (waiting_.size() > base) {
      const VersionRef version = waiting_.back();
      std::vector<Id> ids;
      for (const auto& one : version->call->inputs) ids.push_back(one->id);
      const Id missing = pin(ids);
      if (missing >= 0) {
        wait_for(missing);
        continue;
      }
      bound_runs();
      run(version->call, *version);
      close();
    }
  }

  // Makes storages resident and pins them until `close_frame`, which the caller calls whatever happens.
  void resident(const std::vector<Id>& ids) {
    for (Id missing = pin(ids); missing >= 0; missing = pin(ids)) restore(missing);
  }

  void open_frame() {
    locked([&] { evicting_.open_frame(); });
  }
  void close_frame() {
    locked([&] { evicting_.close_frame(); });
  }

  // Puts a generator into the state of another; what that allocates is not the arena's.
  void set_state(at::Generator& generator, const at::Generator& state) {
    const bool before = std::exchange(evicting_.suspended, true);
    {
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state.get_state());
    }
    evicting_.suspended = before;
  }

 private:
  Evicting& evicting_;
  std::vector<VersionRef> versions_;  // by id
  std::vector<VersionRef> waiting_;
  int64_t since_ = 0;
  int64_t spent_ = 0, began_ = 0;  // thread's time of what ran again, and of looking for room for it

  void wait_for(Id id) {
    const VersionRef& version = known(id);
    if (version == nullptr || version->call == nullptr)
      throw Broken("evict: a tensor was evicted that cannot be recomputed; please report this.");
    waiting_.push_back(version);
    open_frame();
  }

  void close() {
    waiting_.pop_back();
    close_frame();
  }

  // Pins inputs of the innermost op that waits; returns the first that is missing; -1: all are pinned.
  Id pin(const std::vector<Id>& ids) {
    return locked([&] { return evicting_.pin_resident(ids); });
  }

  void bound_runs() const {
    const int64_t runs = num_calls - since_;
    TORCH_CHECK_WITH(OutOfMemoryError, runs <= runs_per_record * num_versions + least_runs, "evict: ", runs,
                     " ops ran again for what one op reads, and it is not there: at this budget they evict each other.");
    const int64_t base = evicting_.arena().base();
    if (most_again < 0) return;
    const int64_t took = std::max(ns, spent_ + thread_ns() - began_);
    if (static_cast<double>(took) <= most_again * static_cast<double>(std::max(base, kShort))) return;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "evict: what ran again took ", took, " ns, and the ops themselves ", base,
                     " ns: more than most_again=", most_again, " times, of 50 ms at least.");
  }

  void run(const std::shared_ptr<Call>& call, const Version& wanted) {
    std::map<Id, Held> storages;
    std::vector<Id> shared;
    locked([&] {
      evicting_.arena().begin_op(call->taken.ns, call->taken.bytes, call->taken.largest, tightrope_evict::kAgain);
      for (const auto& [old, now] : call->changed)
        if (evicting_.arena().record(old->id).pins > 1) shared.push_back(old->id);
    });
    for (const Id id : shared) {
      const Held from = storage(id);
      Held copy = fresh_storage(from->nbytes());
      std::memcpy(copy->mutable_data(), from->data(), from->nbytes());
      storages[id] = std::move(copy);
    }
    Stack stack = call->arguments;
    fill(*call, stack, storages);
    call_again(*call, stack);
    ++num_calls;
    ns += call->taken.ns;
    locked([&] {
      evicting_.arena().advance(call->taken.ns, true);
      for (const auto& one : call->inputs) evicting_.arena().touch(one->id);
    });
    size_t at = 0;
    each_tensor(stack.data(), stack.size(), [&](const at::Tensor& tensor, int, int) {
      if (at < call->outputs.size() && call->outputs[at] != nullptr)
        give(*call->outputs[at], wanted, tensor.storage().unsafeGetStorageImpl());
      ++at;
    });
    if (at != call->outputs.size()) throw Broken("evict: an op gave another number of tensors when it ran again.");
    for (const auto& [old, now] : call->changed) give(*now, wanted, storages.at(old->id).get());
  }

  void fill(const Call& call, Stack& stack, std::map<Id, Held>& storages) {
    int last = -1;
    for (const Place& place : call.places) {
      Held held;
      if (!place.is_number) {
        Held& found = storages[place.version->id];
        if (!found) found = storage(place.version->id);
        held = found;
      }
      c10::IValue& value = stack[place.argument];
      at::Tensor tensor = tensor_over(place, std::move(held));
      if (place.element < 0) {
        value = std::move(tensor);
      } else if (value.isTensorList()) {
        if (place.argument != last) value = value.toTensorList().copy();
        value.toTensorList().set(place.element, std::move(tensor));
      } else {
        if (place.argument != last) value = value.toOptionalTensorList().copy();
        value.toOptionalTensorList().set(place.element, std::move(tensor));
      }
      last = place.element < 0 ? -1 : place.argument;
    }
  }

  void call_again(const Call& call, Stack& stack) {
    const auto modes = c10::AutogradState::get_tls_state();
    const auto dtype = c10::get_default_dtype();
    const auto settings = Settings::now();
    std::optional<at::Generator> now;
    auto generator = call.generator;
    if (call.state) {
      {
        std::lock_guard<std::mutex> lock(generator->mutex());
        now = generator->clone();
      }
      set_state(*generator, *call.state);
    }
    const auto undo = [&] {
      c10::AutogradState::set_tls_state(modes);
      c10::set_default_dtype(dtype);
      if (settings != call.settings) settings.set();
      if (now) set_state(*generator, *now);
    };
    try {
      c10::impl::ForceDispatchKeyGuard keys(call.local);
      c10::impl::ExcludeDispatchKeyGuard own(kKey);
      c10::AutogradState::set_tls_state(call.modes);
      c10::set_default_dtype(call.default_dtype);
      if (settings != call.settings) call.settings.set();
      call.op.redispatchBoxed(call.keys, &stack);
    } catch (...) {
      undo();
      throw;
    }
    undo();
  }

  void give(Version& version, const Version& wanted, Storage* from) {
    Held dropped;  // outlives the lock
    if (version.id < 0 || locked([&] { return evicting_.arena().resident(version.id); })) return;
    const int64_t bytes = locked([&] { return evicting_.slot(version.id).bytes; });
    if (static_cast<int64_t>(from->nbytes()) != bytes)
      throw Broken("evict: " + said(*wanted.call) + " took " + std::to_string(from->nbytes()) +
                   " bytes when it ran again, and not " + std::to_string(bytes) +
                   ": a setting that it depends on changed in the block.");
    const bool needed = std::any_of(waiting_.begin(), waiting_.end(), [&](const VersionRef& one) {
      if (one->call == nullptr) return false;
      const auto& inputs = one->call->inputs;
      return std::any_of(inputs.begin(), inputs.end(), [&](const VersionRef& input) { return input.get() == &version; });
    });
    const bool wished = std::find(kept.begin(), kept.end(), version.id) != kept.end();
    locked([&] {
      if (&version == &wanted || needed || wished || evicting_.arena().record(version.id).held)
        evicting_.restore(version.id, from);
    });
  }

  Held storage(Id id) {
    return Held::reclaim(locked([&] { return evicting_.storage(id); }));
  }

 public:
  static std::string said(const Call& call) {
    return call.kind->name + "." + (call.kind->overload.empty() ? "default" : call.kind->overload);
  }
};

}  // namespace tightrope_evicting
