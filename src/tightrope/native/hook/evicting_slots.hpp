// What a record of the arena is to torch, and what stands in for its bytes where they are evicted.
#pragma once

#include "../solvers/evict.hpp"

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <vector>

namespace tightrope_evicting {

using tightrope_evict::Id;
using Storage = c10::StorageImpl;
using Held = c10::intrusive_ptr<Storage>;

class Evicting;

struct Tombstone {
  Evicting* of;
  Id id;
};

void delete_tombstone(void* tombstone);  // locks; see allocator.cpp

// What a record of the arena is to torch.
struct Slot {
  Storage* impl = nullptr;  // not owned; null where nobody holds it
  char* address = nullptr;
  int64_t bytes = 0;  // as torch asked
  bool lent = false;
  bool released = false;  // of one outside: let go, but needed still
  Held outside;
};

// What an op took on such sizes: the least time, as a pause of the process says nothing about the op, and the
// most bytes that it held at once when it last ran.
struct Taken {
  int64_t ns = -1, bytes = 0;
  int64_t largest = 0;  // bytes of its largest storage
};

// An op that is about to run: its kind, its sizes, and what it does to each of its tensors.
constexpr uint8_t kWritten = 1, kAside = 2;

struct OpShape {
  int64_t number = 0, shape = 0;
  bool opaque = false, writes = false;
  std::vector<uint8_t> marks{};
};

}  // namespace tightrope_evicting
