// Counts what kernels take from the C library, behind the back of torch's allocator.
//
// Kernels ask for memory through the import tables of the libraries that they live in. `Hidden::attach`
// points the entries of those tables for malloc and its kin at the functions below: in torch's libraries and
// in every library that needs them. Left alone are libc10, which takes what torch's allocator hands out,
// torch's bindings to Python, which compute nothing, and this library.
//
//     libtorch_cpu.so  topk  --malloc-->  import table  --+-->  counted while a measurement is on  --> C library
//     libc10.so        alloc_cpu --posix_memalign------------------------------------------------->  C library
//
// Only blocks that are made in a measurement are counted, at the size asked for, on all threads; and none smaller
// than `kSmallest`: in those torch keeps its books, such as the headers of tensors. Without a
// measurement a call costs one load more. Tables stay as they are for the life of the process. Elsewhere than
// on Linux nothing is counted, and `attach` says so.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tightrope_hidden {

struct Found {
  int64_t peak, left;  // most bytes that lived at once, and those that still live
};

}  // namespace tightrope_hidden

#ifdef __linux__

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tightrope_hidden {

constexpr size_t kSmallest = 4096;

inline std::atomic<bool> on{false};

struct Blocks {
  std::mutex mutex;
  std::unordered_map<void*, size_t> sizes;
  int64_t live = 0, peak = 0;
  std::vector<Found> outer;  // per open measurement: the peak before it, and what lived at its start

  void add(void* pointer, size_t size) {
    if (pointer == nullptr || size < kSmallest || !on.load(std::memory_order_relaxed)) return;
    std::lock_guard<std::mutex> lock(mutex);
    live += static_cast<int64_t>(size) - static_cast<int64_t>(std::exchange(sizes[pointer], size));
    peak = std::max(peak, live);
  }

  void remove(void* pointer) {
    if (pointer == nullptr || !on.load(std::memory_order_relaxed)) return;
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = sizes.find(pointer);
    if (found == sizes.end()) return;
    live -= static_cast<int64_t>(found->second);
    sizes.erase(found);
  }
};

inline Blocks& blocks() {
  static auto* made = new Blocks;  // lives as long as the process
  return *made;
}

inline void* count_malloc(size_t size) {
  void* made = std::malloc(size);
  blocks().add(made, size);
  return made;
}

inline void* count_calloc(size_t count, size_t each) {
  void* made = std::calloc(count, each);
  blocks().add(made, count * each);
  return made;
}

inline void* count_realloc(void* before, size_t size) {
  blocks().remove(before);
  void* made = std::realloc(before, size);
  blocks().add(made, size);
  return made;
}

inline int count_posix_memalign(void** out, size_t alignment, size_t size) {
  const int failed = posix_memalign(out, alignment, size);
  if (failed == 0) blocks().add(*out, size);
  return failed;
}

inline void* count_aligned_alloc(size_t alignment, size_t size) {
  void* made = aligned_alloc(alignment, size);
  blocks().add(made, size);
  return made;
}

inline void count_free(void* pointer) {
  blocks().remove(pointer);
  std::free(pointer);
}

inline void* count_new(size_t size) {
  void* made = ::operator new(size);
  blocks().add(made, size);
  return made;
}

inline void* count_new_nothrow(size_t size, const std::nothrow_t& tag) {
  void* made = ::operator new(size, tag);
  blocks().add(made, size);
  return made;
}

inline void* count_new_aligned(size_t size, std::align_val_t alignment) {
  void* made = ::operator new(size, alignment);
  blocks().add(made, size);
  return made;
}

inline void count_delete(void* pointer) {
  blocks().remove(pointer);
  ::operator delete(pointer);
}

inline void count_delete_aligned(void* pointer, std::align_val_t alignment) {
  blocks().remove(pointer);
  ::operator delete(pointer, alignment);
}

inline void count_delete_sized_aligned(void* pointer, size_t, std::align_val_t alignment) {
  count_delete_aligned(pointer, alignment);
}

inline void count_delete_sized(void* pointer, size_t) { count_delete(pointer); }

struct Counted {
  const char* name;
  void* by;
};

template <typename F>
Counted counted(const char* name, F* by) {
  return {name, reinterpret_cast<void*>(by)};
}

// Operator new[] and new, and their deletes, are one another's: both end in the same functions here.
inline const Counted kCounted[] = {
    counted("malloc", &count_malloc),
    counted("calloc", &count_calloc),
    counted("realloc", &count_realloc),
    counted("posix_memalign", &count_posix_memalign),
    counted("aligned_alloc", &count_aligned_alloc),
    counted("memalign", &count_aligned_alloc),
    counted("free", &count_free),
    counted("_Znwm", &count_new),
    counted("_Znam", &count_new),
    counted("_ZnwmRKSt9nothrow_t", &count_new_nothrow),
    counted("_ZnamRKSt9nothrow_t", &count_new_nothrow),
    counted("_ZnwmSt11align_val_t", &count_new_aligned),
    counted("_ZnamSt11align_val_t", &count_new_aligned),
    counted("_ZdlPv", &count_delete),
    counted("_ZdaPv", &count_delete),
    counted("_ZdlPvm", &count_delete_sized),
    counted("_ZdaPvm", &count_delete_sized),
    counted("_ZdlPvSt11align_val_t", &count_delete_aligned),
    counted("_ZdaPvSt11align_val_t", &count_delete_aligned),
    counted("_ZdlPvmSt11align_val_t", &count_delete_sized_aligned),
    counted("_ZdaPvmSt11align_val_t", &count_delete_sized_aligned),
};

// What a loaded library says of its imports.
struct Object {
  ElfW(Addr) base = 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela)* tables[2] = {};
  size_t sizes[2] = {};
  uintptr_t sealed_begin = 0, sealed_end = 0;  // what the loader made read-only
  bool of_torch = false;

  explicit Object(const dl_phdr_info& info) : base(info.dlpi_addr) {
    const ElfW(Dyn)* dynamic = nullptr;
    for (int k = 0; k < info.dlpi_phnum; ++k) {
      const auto& segment = info.dlpi_phdr[k];
      if (segment.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(base + segment.p_vaddr);
      if (segment.p_type != PT_GNU_RELRO) continue;
      sealed_begin = base + segment.p_vaddr;
      sealed_end = sealed_begin + segment.p_memsz;
    }
    if (dynamic == nullptr) return;
    bool pairs = true;
    for (const auto* entry = dynamic; entry->d_tag != DT_NULL; ++entry) {
      const auto said = entry->d_un.d_ptr;
      const auto pointer = said < base ? said + base : said;  // some loaders leave addresses as in the file
      if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(pointer);
      if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(pointer);
      if (entry->d_tag == DT_RELA) tables[0] = reinterpret_cast<const ElfW(Rela)*>(pointer);
      if (entry->d_tag == DT_RELASZ) sizes[0] = entry->d_un.d_val;
      if (entry->d_tag == DT_JMPREL) tables[1] = reinterpret_cast<const ElfW(Rela)*>(pointer);
      if (entry->d_tag == DT_PLTRELSZ) sizes[1] = entry->d_un.d_val;
      if (entry->d_tag == DT_PLTREL) pairs = entry->d_un.d_val == DT_RELA;
    }
    if (!pairs) sizes[1] = 0;
    if (names == nullptr) return;
    for (const auto* entry = dynamic; entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag == DT_NEEDED && std::strncmp(names + entry->d_un.d_val, "libc10", 6) == 0) of_torch = true;
  }

  int64_t point(const ElfW(Rela)& entry) const {
    const auto number = entry.r_info >> (sizeof(void*) == 8 ? 32 : 8);
    if (number == 0 || entry.r_addend != 0) return 0;
    const char* name = names + symbols[number].st_name;
    for (const Counted& one : kCounted) {
      if (std::strcmp(name, one.name) != 0) continue;
      auto** slot = reinterpret_cast<void**>(base + entry.r_offset);
      return *slot == one.by ? 0 : write(slot, one.by);
    }
    return 0;
  }

  int64_t write(void** slot, void* value) const {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<uintptr_t>(slot);
    void* start = reinterpret_cast<void*>(at & ~(page - 1));
    const bool sealed = sealed_begin <= at && at < sealed_end;
    if (sealed && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return 0;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (sealed) mprotect(start, page, PROT_READ);
    return 1;
  }
};

inline void* own_base() {
  Dl_info found;
  return dladdr(reinterpret_cast<void*>(&own_base), &found) ? found.dli_fbase : nullptr;
}

inline int attach_one(dl_phdr_info* info, size_t, void* data) {
  static auto* seen = new std::set<ElfW(Addr)>;
  if (info->dlpi_addr == reinterpret_cast<ElfW(Addr)>(own_base())) return 0;
  if (std::strstr(info->dlpi_name, "/libtorch_python.") != nullptr) return 0;
  const Object object(*info);
  if (!object.of_torch || object.symbols == nullptr || !seen->insert(info->dlpi_addr).second) return 0;
  for (int table = 0; table < 2; ++table)
    for (size_t k = 0; k < object.sizes[table] / sizeof(ElfW(Rela)); ++k)
      *static_cast<int64_t*>(data) += object.point(object.tables[table][k]);
  return 0;
}

// Around a fork: the child begins without a measurement.
inline void before_fork() { blocks().mutex.lock(); }
inline void after_fork(bool in_child) {
  if (in_child) {
    on = false;
    blocks().outer.clear();
    blocks().sizes.clear();
    blocks().live = blocks().peak = 0;
  }
  blocks().mutex.unlock();
}

// Counts in the libraries that are loaded by now; true where anything is counted.
inline bool attach() {
  static std::mutex mutex;
  static int64_t changed = 0;
  std::lock_guard<std::mutex> lock(mutex);
  dl_iterate_phdr(attach_one, &changed);
  return changed > 0;
}

// Measurements may nest: an inner one counts for the outer ones too.
inline void begin() {
  Blocks& all = blocks();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.outer.push_back({all.peak, all.live});
  all.peak = all.live;
  on = true;
}

inline Found end() {
  Blocks& all = blocks();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.outer.empty()) return {0, 0};
  const Found before = all.outer.back();
  const Found found{all.peak - before.left, all.live - before.left};
  all.outer.pop_back();
  all.peak = std::max(all.peak, before.peak);
  if (all.outer.empty()) {
    on = false;
    all.sizes.clear();
    all.live = all.peak = 0;
  }
  return found;
}

// The matrix library of torch keeps what its kernels took, and takes more where none of it is large enough.
// This gives all of it back and leaves one buffer that nobody has touched, so without memory behind it: what
// fits in there adds nothing from then on.
inline void tidy(size_t reserve) {
  static void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) return;
  static const auto give_back = reinterpret_cast<void (*)()>(dlsym(torch, "mkl_serv_free_buffers"));
  static const auto take = reinterpret_cast<void* (*)(size_t, int)>(dlsym(torch, "mkl_serv_allocate"));
  static const auto release = reinterpret_cast<void (*)(void*)>(dlsym(torch, "mkl_serv_deallocate"));
  if (give_back == nullptr || take == nullptr || release == nullptr) return;
  give_back();
  if (void* kept = take(reserve, 64)) release(kept);
}

}  // namespace tightrope_hidden

#else

namespace tightrope_hidden {

inline bool attach() { return false; }
inline void begin() {}
inline Found end() { return {0, 0}; }
inline void tidy(size_t) {}
inline void before_fork() {}
inline void after_fork(bool) {}

}  // namespace tightrope_hidden

#endif
