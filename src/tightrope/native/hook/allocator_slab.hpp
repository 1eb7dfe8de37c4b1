// Blocks, and what an arena is on any device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace tightrope_allocator {

using Bytes = int64_t;

constexpr Bytes kAlignment = 64;
constexpr Bytes kLargest = Bytes{1} << 60;

inline Bytes round_up(Bytes size, Bytes unit) { return (size + unit - 1) / unit * unit; }

struct Block {
  Bytes bytes;         // as requested
  int64_t index;       // in that recording, or -1 when it was not recorded
  uint64_t recording;  // the last one begun when the block was made
  Bytes alignment = kAlignment;

  Bytes size() const { return round_up(bytes, alignment); }
};

// What an arena is on any device.
struct Slab {
  enum class State { leased, idle, retired };

  char* base = nullptr;
  Bytes bytes = 0;
  Bytes charge = 0;
  State state = State::leased;
  bool trimmed = false;  // gave pages back
  std::map<int64_t, Block> blocks;

  bool holds(const void* pointer) const { return pointer >= base && pointer < base + bytes; }

  bool overlaps(int64_t offset, Bytes size) const {
    const auto after = blocks.lower_bound(offset);
    if (after != blocks.end() && after->first < offset + size) return true;
    return after != blocks.begin() && std::prev(after)->first + std::prev(after)->second.size() > offset;
  }
};

}  // namespace tightrope_allocator
