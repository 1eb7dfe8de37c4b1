// One arena: a mapping, the blocks that live in it, and the pages that it may give back.
//
// Blocks never overlap, so two of them share at most one page: the one at their border.
//
//     pages   |   0   |   1   |   2   |   3   |
//     blocks  |  +-A-----+  +-B-+     |       |     free pages: 3; when A dies: 0 and 3
#pragma once

#include "allocator_slab.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace tightrope_allocator {

static const Bytes kPage = sysconf(_SC_PAGESIZE);

struct Arena : Slab {
  Bytes mapped = 0;  // addresses that it may grow into included

  ~Arena() { munmap(base, static_cast<size_t>(mapped)); }

  // Gives pages [first, last) back to the system; returns their bytes.
  Bytes release(int64_t first, int64_t last) {
    if (first >= last) return 0;
    madvise(base + first * kPage, static_cast<size_t>((last - first) * kPage), MADV_DONTNEED);
    return std::min(last * kPage, bytes) - first * kPage;
  }

  // Gives back all pages without a live block, and is charged by page from now on.
  void trim() {
    int64_t next = 0;
    charge = bytes;
    for (const auto& [offset, block] : blocks) {
      charge -= release(next, offset / kPage);
      next = std::max(next, round_up(offset + block.size(), kPage) / kPage);
    }
    charge -= release(next, round_up(bytes, kPage) / kPage);
    trimmed = true;
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
    charge -= release(first, last);
  }
};

}  // namespace tightrope_allocator
