// Skyline dives: repeatedly place the unplaced buffer with the lowest legal offset, ties by rank.
//
// The lowest legal offset of a buffer is the highest top placed so far in its sections. Offsets only
// grow, so a heap whose keys are refreshed when popped suffices. With ranks from the orders of
// packer_order.hpp this is the first descent of the canonical search.
#pragma once

#include <bit>
#include <queue>
#include <tuple>

#include "packer_model.hpp"

namespace packer {

class Skyline {
   public:
    explicit Skyline(Section num_sections) : leaves_(num_sections), any_(2 * num_sections, 0), cover_(any_) {}

    Offset highest(Section start, Section end) const {
        Offset best = 0;
        Section l = start + leaves_, r = end + leaves_;
        for (; l < r; l /= 2, r /= 2) {
            if (l & 1) best = std::max(best, any_[l++]);
            if (r & 1) best = std::max(best, any_[--r]);
        }
        for (Section up = (start + leaves_) / 2; up > 0; up /= 2) best = std::max(best, cover_[up]);
        for (Section up = (end - 1 + leaves_) / 2; up > 0; up /= 2) best = std::max(best, cover_[up]);
        return best;
    }

    void raise(Section start, Section end, Offset top) {
        const auto touch = [&](Section node) {
            cover_[node] = std::max(cover_[node], top);
            any_[node] = std::max(any_[node], top);
        };
        for (Section l = start + leaves_, r = end + leaves_; l < r; l /= 2, r /= 2) {
            if (l & 1) touch(l++);
            if (r & 1) touch(--r);
        }
        for (Section up = (start + leaves_) / 2; up > 0; up /= 2) any_[up] = std::max(any_[up], top);
        for (Section up = (end - 1 + leaves_) / 2; up > 0; up /= 2) any_[up] = std::max(any_[up], top);
    }

   private:
    Section leaves_;
    std::vector<Offset> any_, cover_;  // highest top below a node; highest top over the whole node
};

// Addresses that fixed buffers take from each free one, lowest first.
class Obstacles {
   public:
    Obstacles(const Part& part) : part_(part) {
        for (Index j = 0; j < part.count(); ++j)
            if (part.fixed[j] >= 0) fixed_.push_back(j);
        std::sort(fixed_.begin(), fixed_.end(), [&](Index a, Index b) { return part.fixed[a] < part.fixed[b]; });
    }

    // Lowest legal offset of j that is at least `from`.
    Offset lowest(Index j, Offset from) const {
        from = round_up(from, part_.align[j]);
        for (Index k : fixed_) {
            if (part_.start[k] >= part_.end[j] || part_.end[k] <= part_.start[j]) continue;
            if (part_.fixed[k] + part_.size[k] <= from) continue;
            if (part_.fixed[k] >= from + part_.size[j]) break;
            from = round_up(part_.fixed[k] + part_.size[k], part_.align[j]);
        }
        return from;
    }

   private:
    const Part& part_;
    std::vector<Index> fixed_;
};

inline Layout dive(const Part& part, const std::vector<Index>& order, Bytes stop_above, Budget& budget) {
    const Index n = part.count();
    const Obstacles obstacles(part);
    Layout layout{std::vector<Offset>(n, 0), 0};
    std::vector<Index> rank(n);
    for (Index at = 0; at < n; ++at) rank[order[at]] = at;
    using Key = std::pair<Offset, Index>;
    std::vector<Key> keys;
    for (Index j = 0; j < n; ++j) {
        if (part.fixed[j] < 0) keys.emplace_back(obstacles.lowest(j, 0), rank[j]);
        else layout.offset[j] = part.fixed[j], layout.peak = std::max(layout.peak, part.fixed[j] + part.size[j]);
    }
    std::priority_queue<Key, std::vector<Key>, std::greater<>> heap(std::greater<>(), std::move(keys));
    Skyline skyline(part.num_sections);
    const i64 price = 30 * std::bit_width(static_cast<u64>(n));
    for (i64 pops = 0; !heap.empty(); ++pops) {
        const auto [key, place] = heap.top();
        heap.pop();
        const Index j = order[place];
        const Offset offset = obstacles.lowest(j, std::max(key, skyline.highest(part.start[j], part.end[j])));
        if (!budget.spend(price) || ((pops & 1023) == 0 && budget.late())) return Layout{{}, kInfinity};
        if (offset > key) {
            heap.emplace(offset, place);
            continue;
        }
        layout.offset[j] = offset, layout.peak = std::max(layout.peak, offset + part.size[j]);
        if (layout.peak >= stop_above) return Layout{{}, kInfinity};
        skyline.raise(part.start[j], part.end[j], offset + part.size[j]);
    }
    return layout;
}

}  // namespace packer
