// What differs between versions of torch about a storage: whether a reference is the last one, and words for
// whoever reads bytes that are not there.

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

// Refuses access to the bytes of a storage in these words, where that can be taken back; elsewhere access gives null.
template <typename Storage>
void refuse_access(Storage* impl, const char* words) {
  if constexpr (requires { impl->clear_data_ptr_access_error_msg_(); })
    impl->release_data_and_set_meta_custom_data_ptr_error_msg_(words);
}

template <typename Storage>
void allow_access(Storage* impl) {
  if constexpr (requires { impl->clear_data_ptr_access_error_msg_(); }) impl->clear_data_ptr_access_error_msg_();
}

}  // namespace tightrope_evict
