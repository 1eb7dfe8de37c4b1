// One arena: a mapping, the blocks that live in it, and the pages that it may give back.
//
// Blocks never overlap, so two of them share at most one page: the one at their border.
//
//     pages   |   0   |   1   |   2   |   3   |
//     blocks  |  +-A-----+  +-B-+     |       |     free pages: 3; when A dies: 0 and 3
//
// Under pressure the last free pages go first, and no more of them than are needed.
#pragma once

#include "allocator_slab.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace tightrope_allocator {

static const Bytes kPage = sysconf(_SC_PAGESIZE);
constexpr Bytes kAtOnce = 65536;  // fewer calls of the system for many small blocks

struct Arena : Slab {
  Bytes mapped = 0;  // addresses that it may grow into included
  int64_t kept = 0;  // once trimmed: number of pages at the front that are charged whether a block lives there or not

  ~Arena() { munmap(base, static_cast<size_t>(mapped)); }

  // Gives pages [first, last) back to the system; returns their bytes.
  Bytes release(int64_t first, int64_t last) {
    if (first >= last) return 0;
    madvise(base + first * kPage, static_cast<size_t>((last - first) * kPage), MADV_DONTNEED);
    return std::min(last * kPage, bytes) - first * kPage;
  }

  // Gives back pages without a live block, the last ones first, until `need` bytes left or none is free. Pages
  // before `kept` stay charged, live block or not; those behind it are charged by live block from now on.
  void give_back(Bytes need) {
    if (!trimmed) kept = round_up(bytes, kPage) / kPage;
    trimmed = true;
    const Bytes goal = need < charge ? charge - need : 0;
    auto block = blocks.rbegin();
    while (kept > 0 && charge > goal) {
      while (block != blocks.rend() && block->first >= kept * kPage) ++block;  // lives behind `kept`
      const bool last = block == blocks.rend();
      const int64_t first = last ? 0 : round_up(block->first + block->second.size(), kPage) / kPage;
      if (first >= kept) {
        kept = std::min(kept, block++->first / kPage);
        continue;
      }
      const int64_t from = std::max(first, kept - round_up(charge - goal, kPage) / kPage);
      charge -= release(from, kept);
      kept = from;
    }
    advise_huge_pages(false);  // the system would fill the gaps again to build huge pages
  }

  void advise_huge_pages([[maybe_unused]] bool wanted) {
#ifdef MADV_HUGEPAGE
    madvise(base, static_cast<size_t>(round_up(bytes, kPage)), wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
  }

  void erase(std::map<int64_t, Block>::iterator block) {
    int64_t first = block->first / kPage;
    int64_t last = round_up(block->first + block->second.size(), kPage) / kPage;
    const auto next = blocks.erase(block);
    if (!trimmed) return;
    // Blocks share at most the page at their border.
    if (next != blocks.end()) last = std::min(last, next->first / kPage);
    if (next != blocks.begin()) {
      const auto before = std::prev(next);
      first = std::max(first, round_up(before->first + before->second.size(), kPage) / kPage);
    }
    charge -= release(std::max(first, kept), last);
  }
};

}  // namespace tightrope_allocator
