// What an op does to storages, and what is known of an op that ran, so that it can run again without its tensors.
//
// A tensor is remembered as a place in a version of a storage. When an op in place makes a new version, the object
// that stands for the old one gets the id of the old version's record, so whatever refers to it goes on to mean
// the old bytes.
//
//     plain      makes views or reads no bytes: nothing to record
//     blank      makes bytes without values (`empty`): they stay until an op writes them, as code that is no op of
//                torch may have done so
//     composite  made of other ops, which are recorded in its place
//     opaque     cannot run again, or not without more than its schema says: what it makes stays
//     random     runs again from the state of the generator before its first run
#pragma once

#include "evicting.hpp"

#include <ATen/Context.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <optional>
#include <set>
#include <string_view>

namespace tightrope_evicting {

using torch::jit::Stack;

struct OpKind {
  std::string name, overload;  // for messages
  int64_t number = 0;
  bool plain = false, blank = false, composite = false, opaque = false, random = false, norm = false;
  std::vector<bool> written;  // per argument; empty where none is
  size_t arguments = 0, returns = 0;
  int training = -1;  // position of the flag of batch norm
};

inline bool is_list_of_tensors(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) return is_list_of_tensors(optional->getElementType());
  const auto list = type->cast<c10::ListType>();
  return list && list->getElementType()->str().find("Tensor") != std::string::npos;
}

// Some composite ops, as `silu_backward`, have a kernel of the CPU too, which runs there and gives other bits.
inline bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

inline OpKind classify(const c10::OperatorHandle& op) {
  static const std::set<std::string_view> blanks = {"empty",     "empty_like",        "empty_strided",
                                                    "new_empty", "new_empty_strided", "empty_permuted"};
  const auto& schema = op.schema();
  const std::string full = schema.name();
  const size_t colons = full.find("::");
  const std::string space = full.substr(0, colons), base = full.substr(colons + 2);
  const auto &arguments = schema.arguments(), &returns = schema.returns();
  OpKind kind;
  kind.name = space + "." + base, kind.overload = schema.overload_name();
  kind.arguments = arguments.size(), kind.returns = returns.size();
  bool lists = false, writes = false, views = !returns.empty();
  for (const auto& one : arguments) {
    const bool written = one.alias_info() != nullptr && one.alias_info()->isWrite();
    kind.written.push_back(written);
    writes |= written;
    lists |= written && is_list_of_tensors(one.type());
  }
  for (const auto& one : returns) views = views && one.alias_info() != nullptr;
  if (!writes) kind.written.clear();
  const auto begins = [&](std::string_view with) { return base.compare(0, with.size(), with) == 0; };
  const bool reshapes = begins("set_") || begins("resize") || begins("_resize") || begins("swap") || begins("share_memory");
  const bool known = space == "aten" || space == "prims";
  const bool lifted = known && base == "lift_fresh";  // what code that is no op of torch made
  kind.plain = (views && !writes && !lifted) || space == "profiler";
  kind.blank = known && blanks.contains(base);
  kind.composite = known && is_composite(op);
  kind.opaque = !known || lists || lifted || (writes && reshapes);
  kind.random = op.hasTag(at::Tag::nondeterministic_seeded);
  if (known && base == "native_batch_norm") kind.training = 5, kind.norm = true;
  if (known && base == "native_batch_norm_backward") kind.training = 7;
  return kind;
}

// Settings of the process that choose kernels, or round: an op runs again under those of its first run.
struct Settings {
  bool mkldnn, nnpack, deterministic, only_warns, flash, efficient, math;
  unsigned rounding;  // denormals

  static Settings now() {
    const auto& context = at::globalContext();
    return {context.userEnabledMkldnn(), context.userEnabledNNPACK(), context.deterministicAlgorithms(),
            context.deterministicAlgorithmsWarnOnly(), context.userEnabledFlashSDP(),
            context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(), rounds()};
  }

  void set() const {
    auto& context = at::globalContext();
    context.setUserEnabledMkldnn(mkldnn), context.setUserEnabledNNPACK(nnpack);
    context.setDeterministicAlgorithms(deterministic, only_warns);
    context.setSDPUseFlash(flash), context.setSDPUseMemEfficient(efficient), context.setSDPUseMath(math);
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(rounding);
#endif
  }

  bool operator==(const Settings&) const = default;

 private:
  static unsigned rounds() {
#ifdef __SSE__
    return __builtin_ia32_stmxcsr() & ~0x3Fu;  // without what happened so far
#else
    return 0;
#endif
  }
};

struct Call;

// One version of a storage's bytes.
struct Version {
  explicit Version(Id identity) : id(identity) {}

  Id id;  // of its record, or -1 when that is gone
  bool blank = false, exposed = false;
  int depth = 0;  // changes in place that running its calls again would repeat
  std::shared_ptr<Call> call;
};

using VersionRef = std::shared_ptr<Version>;

// A tensor as a place in a version; or a number that is a tensor for its type's sake.
struct Place {
  VersionRef version;
  at::DimVector sizes, strides;
  int64_t offset = 0;
  caffe2::TypeMeta dtype;
  int argument = 0, element = -1;
  bool is_number = false;
  std::array<char, 16> number{};
};

// One run of an op: enough to run it again.
struct Call {
  explicit Call(c10::OperatorHandle of) : op(std::move(of)) {}

  c10::OperatorHandle op;
  const OpKind* kind = nullptr;
  c10::DispatchKeySet keys;                    // with which it was called
  c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();  // of the thread
  c10::AutogradState modes = c10::AutogradState::get_tls_state();
  caffe2::TypeMeta default_dtype = c10::get_default_dtype();
  Settings settings = Settings::now();
  Stack arguments;            // without their tensors
  std::vector<Place> places;  // of those
  std::vector<VersionRef> inputs, outputs;  // outputs that are not its own are null
  std::vector<std::pair<VersionRef, VersionRef>> changed;  // old and new version of what it changed in place
  Taken taken;
  std::optional<at::Generator> generator, state;  // and its state before the first run
};

// Calls `visit(tensor, argument, element)` for every tensor among values.
template <typename Visit>
void each_tensor(const c10::IValue* values, size_t count, Visit visit) {
  for (size_t k = 0; k < count; ++k) {
    const c10::IValue& one = values[k];
    if (one.isTensor()) {
      if (const at::Tensor& tensor = one.toTensor(); tensor.defined()) visit(tensor, static_cast<int>(k), -1);
    } else if (one.isTensorList()) {
      const auto list = one.toTensorList();
      for (size_t i = 0; i < list.size(); ++i)
        if (const at::Tensor tensor = list.get(i); tensor.defined()) visit(tensor, static_cast<int>(k), static_cast<int>(i));
    } else if (one.isOptionalTensorList()) {
      const auto list = one.toOptionalTensorList();
      for (size_t i = 0; i < list.size(); ++i)
        if (const std::optional<at::Tensor> tensor = list.get(i); tensor.has_value() && tensor->defined())
          visit(*tensor, static_cast<int>(k), static_cast<int>(i));
    }
  }
}

// Whether a tensor is a place in one storage.
inline bool is_strided(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == c10::kStrided && !tensor.is_nested();
}

inline bool is_compressed(c10::Layout layout) {
  return layout == c10::kSparseCsr || layout == c10::kSparseCsc || layout == c10::kSparseBsr || layout == c10::kSparseBsc;
}

// Calls `visit(storage)` for the memory of a tensor that is sparse or nested, as far as ops of torch reach it.
template <typename Visit>
void each_part(const at::Tensor& tensor, Visit visit) {
  const auto part = [&](const at::Tensor& one) {
    if (one.defined() && is_strided(one)) visit(one.storage().unsafeGetStorageImpl());
  };
  if (tensor.has_storage()) {
    visit(tensor.storage().unsafeGetStorageImpl());
  } else if (tensor.layout() == c10::kSparse) {
    const auto* impl = static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    part(impl->indices()), part(impl->values());
  } else if (is_compressed(tensor.layout())) {
    const auto* impl = static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
    part(impl->compressed_indices()), part(impl->plain_indices()), part(impl->values());
  }
}

inline bool is_number(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.dim() == 0 && tensor.is_cpu();
}

// Whether a tensor is more than a place in a storage of the CPU.
inline bool is_odd(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet odd({c10::DispatchKey::Negative, c10::DispatchKey::Conjugate, c10::DispatchKey::ZeroTensor});
  return !tensor.is_cpu() || tensor.is_quantized() || tensor.key_set().has_any(odd);
}

inline Place place_of(const at::Tensor& tensor, int argument, int element) {
  Place place;
  place.argument = argument, place.element = element;
  if (!is_strided(tensor)) return place;  // what it is in does not run again
  place.dtype = tensor.dtype();
  if (is_number(tensor)) {
    place.is_number = true;
    std::memcpy(place.number.data(), tensor.const_data_ptr(), tensor.itemsize());
    return place;
  }
  place.sizes = tensor.sizes(), place.strides = tensor.strides(), place.offset = tensor.storage_offset();
  return place;
}

// Takes the tensors out of the arguments.
inline void strip(Call& call) {
  int last = -1;
  for (const Place& place : call.places) {
    c10::IValue& value = call.arguments[place.argument];
    if (place.element < 0) {
      value = c10::IValue();
    } else if (place.argument != last) {
      last = place.argument;
      if (value.isTensorList()) {
        c10::List<at::Tensor> none;
        for (size_t k = value.toTensorList().size(); k > 0; --k) none.push_back(at::Tensor());
        value = none;
      } else {
        c10::List<std::optional<at::Tensor>> none;
        for (size_t k = value.toOptionalTensorList().size(); k > 0; --k) none.push_back(std::nullopt);
        value = none;
      }
    }
  }
}

// Bytes on which the arena has nothing to say.
inline Held fresh_storage(size_t bytes) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  return c10::make_intrusive<Storage>(Storage::use_byte_size_t{}, bytes, allocator->allocate(bytes), allocator, true);
}

inline at::Tensor tensor_over(const Place& place, Held storage) {
  if (place.is_number) {
    storage = fresh_storage(place.number.size());
    std::memcpy(storage->mutable_data(), place.number.data(), place.number.size());
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU), place.dtype);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(place.sizes, place.strides, place.offset);
  if (place.is_number) impl->set_wrapped_number(true);
  return tensor;
}

}  // namespace tightrope_evicting
