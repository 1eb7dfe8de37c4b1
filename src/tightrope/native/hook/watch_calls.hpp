// The C interface of `OpWatch`, and its place in torch's dispatcher; part of allocator.cpp, as evicting_calls.hpp.
//
// Functions that may run ops again return -1 (a rule was broken) or -2 (out of memory); tr_error then says why.

#include <torch/library.h>

namespace tightrope_evicting {

// The block of this thread. What torch keeps of a thread for its backward may bring the keys into others.
thread_local OpWatch* watching = nullptr;

c10::DispatchKeySet below(c10::DispatchKeySet keys, c10::DispatchKey key) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
}

// Code that turns Python's dispatch off works below of what the block sees, as `torch.tensor` does.
bool is_seen() { return watching != nullptr && !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python); }

void seen_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::DispatchKeySet next = below(keys, kKey);
  // In some versions Python's modes and subclasses come after this: the ops inside of them are met again.
  if (!is_seen() || next.has(c10::DispatchKey::Python)) return op.redispatchBoxed(next, stack);
  watching->op(op, next, *stack);
}

void seen_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (!is_seen()) return op.redispatchBoxed(below(keys, kOuterKey), stack);
  watching->composite(op, below(keys, kOuterKey), *stack);
}

// Whether a composite op may read integers by pointers: it has tensors, and is no view and none of those that
// take floats alone and are called often.
bool may_read(const c10::OperatorHandle& op, const OpKind& kind) {
  static const std::set<std::string_view> floats = {"aten.linear", "aten.matmul", "aten.layer_norm", "aten.dropout"};
  if (!kind.composite || kind.plain || floats.contains(kind.name)) return false;
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& one) { return one.type()->str().find("Tensor") != std::string::npos; });
}

// Once in a process.
void register_keys() {
  static auto* all = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  all->fallback(torch::CppFunction::makeFromBoxedFunction<&seen_op>());
  static auto* outer = new torch::Library(torch::Library::IMPL, "_", kOuterKey, __FILE__, __LINE__);
  outer->fallback(torch::CppFunction::makeFallthrough());
  static auto* inner_ops = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  static auto* outer_ops = new torch::Library(torch::Library::IMPL, "aten", kOuterKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.compare(0, 6, "aten::") != 0) continue;
    const OpKind kind = classify(*op);
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (kind.plain) inner_ops->impl(full.c_str(), torch::CppFunction::makeFallthrough());
    else if (may_read(*op, kind)) outer_ops->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&seen_composite>());
  }
}

// Runs what may run ops again.
template <typename Act>
int64_t attempt(Act act) {
  try {
    act();
    return 0;
  } catch (const c10::OutOfMemoryError& error) {
    fail(error.what_without_backtrace());
    return -2;
  } catch (const c10::Error& error) {
    return fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace tightrope_evicting

using tightrope_evicting::OpWatch;

extern "C" {

// Makes what meets ops; null: tr_error says why.
OpWatch* tr_watch_open(Evicting* evicting, tightrope_evicting::Tell tell) {
  static bool registered = false;
  auto* made = new OpWatch(*evicting, tell);
  const int64_t failed = tightrope_evicting::attempt([&] {
    if (!registered) tightrope_evicting::register_keys();
    registered = true;
  });
  if (failed != 0) {
    delete made;
    return nullptr;
  }
  return made;
}

// Sees the ops of the calling thread from now on, or none any more.
void tr_watch_see(OpWatch* self, int64_t seen) {
  tightrope_evicting::watching = seen != 0 ? self : nullptr;
  c10::impl::tls_set_dispatch_key_included(tightrope_evicting::kKey, seen != 0);
  c10::impl::tls_set_dispatch_key_included(tightrope_evicting::kOuterKey, seen != 0);
}

void tr_watch_delete(OpWatch* self) {
  self->again.forget_all();
  delete self;
}

// By number: ops, ops that ran again, what those took in ns, and records of storages.
int64_t tr_watch_count(OpWatch* self, int64_t which) {
  const int64_t counts[] = {self->num_ops, self->again.num_calls, self->again.ns, self->again.num_versions};
  return counts[which];
}

// Nobody fills the memory behind a storage again, although it is not torch's.
void tr_watch_trust(OpWatch* self, const c10::StorageImpl* impl) { self->trusted.insert(impl); }

void tr_watch_most_again(OpWatch* self, double most) { self->again.most_again = most; }

void tr_watch_most_runs(OpWatch* self, int64_t per_record, int64_t least) {
  self->again.runs_per_record = per_record, self->again.least_runs = least;
}

void tr_watch_follow(OpWatch* self, tightrope_evicting::Before before, tightrope_evicting::After after) {
  self->before = before, self->after = after;
}

// Whether a record is known; 2: others may write its storage.
int64_t tr_watch_knows(OpWatch* self, int64_t id) {
  const auto found = self->again.known(static_cast<tightrope_evict::Id>(id));
  return found == nullptr ? 0 : found->exposed ? 2 : 1;
}

// The op that made a storage, with its time, its bytes, and those of its largest storage; null: it stays.
const char* tr_watch_maker(OpWatch* self, int64_t id, int64_t* out) {
  const auto found = self->again.known(static_cast<tightrope_evict::Id>(id));
  if (found == nullptr || found->call == nullptr) return nullptr;
  const auto& taken = found->call->taken;
  out[0] = taken.ns, out[1] = taken.bytes, out[2] = taken.largest;
  thread_local std::string name;
  name = tightrope_evicting::Again::said(*found->call);
  return name.c_str();
}

// Makes storages resident, one by one; all of them are kept where an op of a plan makes them at once.
int64_t tr_watch_restore(OpWatch* self, const int64_t* ids, int64_t count) {
  auto& again = self->again;
  again.begin();
  again.kept.assign(ids, ids + count);
  const int64_t failed = tightrope_evicting::attempt([&] {
    for (int64_t k = 0; k < count; ++k) again.restore(static_cast<tightrope_evict::Id>(ids[k]));
  });
  again.kept.clear();
  return failed;
}

int64_t tr_watch_read(OpWatch* self, int64_t id, int64_t exposed) {
  return tightrope_evicting::attempt([&] { self->read(static_cast<tightrope_evict::Id>(id), exposed != 0); });
}

void tr_watch_collect(OpWatch* self) { self->collect(); }

}  // extern "C"
