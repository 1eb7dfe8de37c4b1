// Whether a reference to a storage is the last one.

#pragma once

namespace tightrope_evict {

// In some versions of torch a Python object that was made for the storage counts too, and lives for as long as
// the storage has other references.
template <typename Pointer>
bool is_last(const Pointer& held) {
  if constexpr (requires { held->pyobj_slot()->has_unique_reference(); }) {
    if (held.use_count() == 2) return held->pyobj_slot()->has_unique_reference();
  }
  return held.use_count() == 1;
}

}  // namespace tightrope_evict
