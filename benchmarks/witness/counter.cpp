// Counts the bytes that torch holds in this process, from outside: to be loaded with LD_PRELOAD.
//
// It knows nothing of the library that it watches. Every request of this process for memory passes
// through here and on to the C library. Counted, at the size asked for, are
//     tensors   blocks that libc10 takes with posix_memalign
//     kernels   blocks of at least `kSmallest` bytes that the rest of torch takes, what it computes with, and
//               any library that stands on libc10, through which requests may pass: malloc, calloc, realloc,
//               posix_memalign, aligned_alloc, memalign, operator new
//     mappings  resident pages of what torch or any library but the interpreter's maps
// What the interpreter, its extension modules and torch's bindings ask for are books and not counted.
// Neither are the small blocks in which torch describes its tensors.
//
// Resident pages are looked at whenever they can become fewer (munmap, madvise), when a mapping is made, before
// a large block is released, and when asked. Between two looks they only grow, so (most blocks between) + (pages
// at the second) is never less than the true peak, and above it by less than `kLarge` per block released between.

#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

constexpr size_t kSmallest = 4096, kPage = 4096, kLarge = 16384;
constexpr size_t kSlots = 1 << 20, kRegions = 4096, kRanges = 64;
enum Who : int { kTensors = 0, kKernels = 1, kOnTorch = 2, kNobody = -1 };

struct Slot {
  uintptr_t key;
  int64_t size;  // negative: of a kernel
};
struct Region {
  uintptr_t begin, end;
  Who who;  // kernels, or nobody known
};
struct Range {
  uintptr_t begin, end;
  Who who;
};

Slot slots[kSlots];
Region regions[kRegions];
Range ranges[kRanges];
int num_regions = 0, num_ranges = 0;
std::atomic<bool> on{false};
std::atomic_flag busy = ATOMIC_FLAG_INIT;
unsigned long long num_objects = 0;
int64_t live[2], peaks[2], interval_peak, total_peak, pages_peak, lost;

enum class How { aligned, other };

struct Lock {
  Lock() {
    while (busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Lock() { busy.clear(std::memory_order_release); }
};

size_t home(uintptr_t key) { return (key * 0x9E3779B97F4A7C15ull) >> 44; }

int note_object(dl_phdr_info* info, size_t, void*);

int count_objects(dl_phdr_info* info, size_t, void* out) {
  *static_cast<unsigned long long*>(out) = info->dlpi_adds;
  return 1;
}

void find_objects() {
  Lock lock;
  num_ranges = 0;
  dl_iterate_phdr(note_object, nullptr);
}

Who known(uintptr_t at) {
  for (int k = 0; k < num_ranges; ++k)
    if (ranges[k].begin <= at && at < ranges[k].end) return ranges[k].who;
  return kNobody;
}

Who caller(void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const Who who = known(at);
  if (who != kNobody) return who;
  unsigned long long now = 0;
  dl_iterate_phdr(count_objects, &now);
  if (now == num_objects) return kNobody;
  num_objects = now;
  find_objects();
  return known(at);
}

void add(void* pointer, size_t size, void* from, How how = How::other) {
  if (pointer == nullptr || !on.load(std::memory_order_relaxed)) return;
  if (size < kSmallest && how == How::other) return;
  Who who = caller(from);
  if (who == kNobody || (who == kTensors ? how == How::other : size < kSmallest)) return;
  if (who == kOnTorch) who = kKernels;
  const auto key = reinterpret_cast<uintptr_t>(pointer);
  Lock lock;
  size_t at = home(key);
  for (size_t tries = 0; slots[at].key != 0; at = (at + 1) % kSlots)
    if (++tries == kSlots) {
      ++lost;
      return;
    }
  slots[at] = {key, who == kKernels ? -static_cast<int64_t>(size) : static_cast<int64_t>(size)};
  live[who] += static_cast<int64_t>(size);
  if (live[who] > peaks[who]) peaks[who] = live[who];
  if (live[0] + live[1] > interval_peak) interval_peak = live[0] + live[1];
}

int64_t resident(bool of_kernels) {  // under the lock
  static unsigned char found[1 << 16];
  int64_t pages = 0;
  for (int k = 0; k < num_regions; ++k)
    if ((regions[k].who == kKernels) == of_kernels) for (uintptr_t at = regions[k].begin; at < regions[k].end; at += sizeof(found) * kPage) {
      const size_t left = regions[k].end - at;
      const size_t size = left < sizeof(found) * kPage ? left : sizeof(found) * kPage;
      if (mincore(reinterpret_cast<void*>(at), size, found) != 0) continue;
      for (size_t page = 0; page < (size + kPage - 1) / kPage; ++page) pages += found[page] & 1;
    }
  return pages * static_cast<int64_t>(kPage);
}

void look() {  // under the lock
  const int64_t pages = resident(false) + resident(true);
  if (pages > pages_peak) pages_peak = pages;
  if (interval_peak + pages > total_peak) total_peak = interval_peak + pages;
  interval_peak = live[0] + live[1];
}

void remove(void* pointer) {
  if (pointer == nullptr || !on.load(std::memory_order_relaxed)) return;
  const auto key = reinterpret_cast<uintptr_t>(pointer);
  Lock lock;
  size_t at = home(key);
  for (; slots[at].key != key; at = (at + 1) % kSlots)
    if (slots[at].key == 0) return;
  const bool large = std::abs(slots[at].size) >= static_cast<int64_t>(kLarge);
  if (large) look();
  if (slots[at].size < 0) live[kKernels] += slots[at].size;
  else live[kTensors] -= slots[at].size;
  if (large) interval_peak = live[0] + live[1];
  for (size_t next = (at + 1) % kSlots; slots[next].key != 0; next = (next + 1) % kSlots) {
    const size_t want = home(slots[next].key);
    if (((next - want) % kSlots) >= ((next - at) % kSlots)) {
      slots[at] = slots[next];
      at = next;
    }
  }
  slots[at] = {0, 0};
}

void forget(uintptr_t begin, uintptr_t end) {  // under the lock
  for (int k = num_regions - 1; k >= 0; --k) {
    Region& one = regions[k];
    if (one.end <= begin || end <= one.begin) continue;
    const Region before{one.begin, begin < one.begin ? one.begin : begin, one.who};
    const Region after{end > one.end ? one.end : end, one.end, one.who};
    one = regions[--num_regions];
    if (before.begin < before.end && num_regions < static_cast<int>(kRegions)) regions[num_regions++] = before;
    if (after.begin < after.end && num_regions < static_cast<int>(kRegions)) regions[num_regions++] = after;
  }
}

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool begins(const char* text, const char* start) { return std::strncmp(text, start, std::strlen(start)) == 0; }

bool stands_on_torch(const dl_phdr_info* info) {
  const ElfW(Dyn)* dynamic = nullptr;
  const char* names = nullptr;
  for (int k = 0; k < info->dlpi_phnum; ++k)
    if (info->dlpi_phdr[k].p_type == PT_DYNAMIC)
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr);
  if (dynamic == nullptr) return false;
  for (const auto* entry = dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_STRTAB) {
      const auto said = entry->d_un.d_ptr;
      names = reinterpret_cast<const char*>(said < info->dlpi_addr ? said + info->dlpi_addr : said);
    }
  for (const auto* entry = dynamic; names != nullptr && entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_NEEDED && begins(names + entry->d_un.d_val, "libc10")) return true;
  return false;
}

int note_object(dl_phdr_info* info, size_t, void*) {
  const char* name = base_name(info->dlpi_name);
  const bool python = std::strstr(name, "python") != nullptr;
  Who who = kNobody;
  if (begins(name, "libc10")) who = kTensors;
  else if (!python && (begins(name, "libtorch") || begins(name, "libgomp") || begins(name, "libmkl") ||
                       begins(name, "libiomp") || begins(name, "libopenblas")))
    who = kKernels;
  else if (!python && stands_on_torch(info)) who = kOnTorch;
  if (who == kNobody) return 0;
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    const auto& segment = info->dlpi_phdr[k];
    if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X) || num_ranges == static_cast<int>(kRanges)) continue;
    const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    ranges[num_ranges++] = {begin, begin + segment.p_memsz, who};
  }
  return 0;
}

struct Asked {
  uintptr_t at;
  bool interpreter;
};

int note_interpreter(dl_phdr_info* info, size_t, void* data) {
  auto* asked = static_cast<Asked*>(data);
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    const auto& segment = info->dlpi_phdr[k];
    const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type != PT_LOAD || asked->at < begin || begin + segment.p_memsz <= asked->at) continue;
    // The program itself has no name here.
    asked->interpreter = info->dlpi_name[0] == 0 || std::strstr(base_name(info->dlpi_name), "python") != nullptr;
    return 1;
  }
  return 0;
}

void* map(void* at, size_t size, int protection, int flags, int file, off_t offset, void* from) {
  void* made = reinterpret_cast<void*>(syscall(SYS_mmap, at, size, protection, flags, file, offset));
  if (made == MAP_FAILED || !(flags & MAP_ANONYMOUS) || !on.load()) return made;
  Asked asked{reinterpret_cast<uintptr_t>(from), false};
  dl_iterate_phdr(note_interpreter, &asked);
  if (asked.interpreter) return made;
  Lock lock;
  look();
  const auto begin = reinterpret_cast<uintptr_t>(made);
  forget(begin, begin + size);
  if (num_regions == static_cast<int>(kRegions)) ++lost;
  else regions[num_regions++] = {begin, begin + (size + kPage - 1) / kPage * kPage, caller(from)};
  return made;
}

}  // namespace

#define FROM __builtin_return_address(0)

extern "C" {

void* malloc(size_t size) {
  void* made = __libc_malloc(size);
  add(made, size, FROM);
  return made;
}

void* calloc(size_t count, size_t each) {
  void* made = __libc_calloc(count, each);
  add(made, count * each, FROM);
  return made;
}

void* realloc(void* before, size_t size) {
  remove(before);  // the C library may hand the address out again at once
  void* made = __libc_realloc(before, size);
  add(made, size, FROM);
  return made;
}

void free(void* pointer) {
  remove(pointer);
  __libc_free(pointer);
}

void* memalign(size_t alignment, size_t size) {
  void* made = __libc_memalign(alignment, size);
  add(made, size, FROM);
  return made;
}

void* aligned_alloc(size_t alignment, size_t size) {
  void* made = __libc_memalign(alignment, size);
  add(made, size, FROM);
  return made;
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  void* made = __libc_memalign(alignment, size);
  if (made == nullptr) return ENOMEM;
  add(made, size, FROM, How::aligned);
  *out = made;
  return 0;
}

void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  return map(at, size, protection, flags, file, offset, FROM);
}

void* mmap64(void* at, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  return map(at, size, protection, flags, file, offset, FROM);
}

int munmap(void* at, size_t size) noexcept {
  if (on.load()) {
    Lock lock;
    look();
    forget(reinterpret_cast<uintptr_t>(at), reinterpret_cast<uintptr_t>(at) + size);
  }
  return static_cast<int>(syscall(SYS_munmap, at, size));
}

int madvise(void* at, size_t size, int advice) noexcept {
  if (on.load() && (advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE)) {
    Lock lock;
    look();
  }
  return static_cast<int>(syscall(SYS_madvise, at, size, advice));
}

void witness_begin() {
  find_objects();
  on = true;
}

// Looks at the resident pages; a driver calls it at the ends of forwards, backwards and updates.
void witness_look() {
  Lock lock;
  look();
}

// Begins new peaks at what is held now.
void witness_reset() {
  Lock lock;
  interval_peak = live[0] + live[1];
  total_peak = pages_peak = 0;
  peaks[0] = live[0];
  peaks[1] = live[1];
}

// Writes the peak of everything, of tensors, of kernels' blocks, of mapped pages; bytes of tensors, of kernels' blocks,
// of pages mapped by kernels and by others held now; requests not counted for want of room in the tables.
void witness_read(int64_t* out) {
  Lock lock;
  look();
  const int64_t values[] = {total_peak, peaks[0], peaks[1], pages_peak, live[0], live[1], resident(true), resident(false), lost};
  std::memcpy(out, values, sizeof(values));
}

}  // extern "C"

namespace {

void* make(size_t size, size_t alignment, void* from, bool raises) {
  // By way of malloc, so that whoever watches this process in another way sees the block too.
  void* made = alignment ? memalign(alignment, size) : malloc(size ? size : 1);
  if (made == nullptr && raises) throw std::bad_alloc();
  add(made, size, from);
  return made;
}

}  // namespace

void* operator new(size_t size) { return make(size, 0, FROM, true); }
void* operator new[](size_t size) { return make(size, 0, FROM, true); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return make(size, 0, FROM, false); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return make(size, 0, FROM, false); }
void* operator new(size_t size, std::align_val_t a) { return make(size, static_cast<size_t>(a), FROM, true); }
void* operator new[](size_t size, std::align_val_t a) { return make(size, static_cast<size_t>(a), FROM, true); }
