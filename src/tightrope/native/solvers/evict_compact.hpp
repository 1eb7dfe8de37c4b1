// Making room by moving: storages between two fixed pieces slide together, and their holes become one.
//
//     #fixed#| A | hole | B | hole | C |#fixed#      need = both holes
//     #fixed#| A | B |     hole    | C |#fixed#      only B is copied
//
// With moves every free byte between two fixed pieces is of use, so what goes is chosen by cost per byte
// and not by address: the cheapest in cost / (staleness * size) until the bytes suffice, or one alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "evict_search.hpp"

namespace tightrope_evict {

struct Compaction {
    bool found = false;
    std::int64_t cost = 0;  // weights of what is evicted, raised by the share that copying adds
    Cost copy_ns = 0;
    Bytes evicted = 0;
    std::vector<std::int32_t> victims;         // rows
    std::int32_t first = kNone, last = kNone;  // rows that slide together: free (or evicted) at both ends
};

class Compactor {
  public:
    explicit Compactor(std::int64_t bytes_per_us) : bytes_per_us_(std::max<std::int64_t>(1, bytes_per_us)) {}

    Compaction search(const Pieces& pieces, Rows& listed, Bytes need) {
        std::vector<Row>& rows = listed.at;
        Compaction best;
        const std::int32_t count = static_cast<std::int32_t>(rows.size());
        for (std::int32_t at = 0; at < count; ++at) {
            if (rows[at].fixed) continue;
            const std::int32_t begin = at;
            Bytes free = 0, evictable = 0;
            for (; at < count && !rows[at].fixed; ++at)
                (rows[at].free ? free : evictable) += rows[at].free || !rows[at].wall ? rows[at].bytes : 0;
            if (free + evictable >= need) consider(pieces, listed, need, free, begin, at, best);
        }
        return best;
    }

  private:
    void consider(const Pieces& pieces, Rows& listed, Bytes need, Bytes free, std::int32_t begin, std::int32_t end,
                  Compaction& best) {
        std::vector<Row>& rows = listed.at;
        Compaction found;
        found.found = true;
        std::int64_t cost = free < need ? choose(listed, need - free, begin, end, found.victims) : 0;
        if (!best.found || cost < best.cost) {
            found.copy_ns = narrowest(rows, need, begin, end, found);
            Cost again = 1;
            for (const std::int32_t row : found.victims) again += pieces.at(rows[row].piece).cost;
            for (const std::int32_t row : found.victims) found.evicted += rows[row].bytes;
            // What is copied is paid now, whatever is used again: it counts as so much more of what is evicted.
            const double raised = static_cast<double>(cost) *
                                  (1.0 + static_cast<double>(found.copy_ns) / static_cast<double>(again));
            found.cost =
                found.victims.empty() ? found.copy_ns : static_cast<std::int64_t>(std::min(raised, kMost));
            if (!best.found || found.cost < best.cost) best = found;
        }
        for (const std::int32_t row : found.victims) rows[row].leaving = false;
    }

    // Marks a cheap set of rows of at least `bytes`: by density, without those that turn out not to be needed.
    // What it frees beyond `bytes` is of use to later requests, so a large one at the same density is as good.
    std::int64_t choose(Rows& listed, Bytes bytes, std::int32_t begin, std::int32_t end,
                        std::vector<std::int32_t>& chosen) {
        std::vector<Row>& rows = listed.at;
        const std::vector<double>& density = listed.density;
        Bytes sum = 0;
        std::int64_t cost = 0;
        const auto add = [&](std::int32_t row) {
            rows[row].leaving = true;
            chosen.push_back(row);
            sum += rows[row].bytes, cost += rows[row].weight;
        };
        for (int pass = 0; pass < kPasses && sum < bytes; ++pass) {  // a few are found faster than sorted
            const double above = pass == 0 ? -1.0 : density[chosen.back()];
            const std::int32_t after = pass == 0 ? -1 : chosen.back();
            std::int32_t least = kNone;
            double value = std::numeric_limits<double>::infinity();
            for (std::int32_t row = begin; row < end; ++row)
                if (density[row] < value && (density[row] > above || (density[row] == above && row > after)))
                    least = row, value = density[row];
            add(least);
        }
        if (sum < bytes) {
            order_.clear();
            for (std::int32_t row = begin; row < end; ++row)
                if (may_go(rows[row])) order_.push_back(row);
            std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
                return density[a] != density[b] ? density[a] < density[b] : a < b;
            });
            for (std::size_t i = 0; sum < bytes; ++i) add(order_[i]);
        }
        for (std::size_t i = chosen.size(); i-- > 0;) {
            const std::int32_t row = chosen[i];
            if (sum - rows[row].bytes < bytes) continue;
            sum -= rows[row].bytes, cost -= rows[row].weight;
            rows[row].leaving = false;
            chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i));
        }
        return cost;
    }

    static bool may_go(const Row& row) { return !row.free && !row.wall && !row.leaving; }

    // The window in [begin, end) with enough free bytes in which the least has to be copied; returns its ns.
    Cost narrowest(const std::vector<Row>& rows, Bytes need, std::int32_t begin, std::int32_t end,
                   Compaction& found) const {
        Bytes best = -1, copied = 0, free = 0;
        std::int32_t left = begin;
        for (std::int32_t right = begin; right < end; ++right) {
            (rows[right].free || rows[right].leaving ? free : copied) += rows[right].bytes;
            for (; free >= need; ++left) {
                if (best < 0 || copied < best) best = copied, found.first = left, found.last = right;
                (rows[left].free || rows[left].leaving ? free : copied) -= rows[left].bytes;
            }
        }
        return best * 1000 / bytes_per_us_;
    }

    static constexpr double kMost = 4611686018427387904.0;  // 2^62
    static constexpr int kPasses = 6;
    std::int64_t bytes_per_us_;
    std::vector<std::int32_t> order_;
};

}  // namespace tightrope_evict
