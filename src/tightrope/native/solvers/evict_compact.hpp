// Making room by moving: storages between two fixed pieces slide together, and their holes become one.
//
//     #fixed#| A | hole | B | hole | C |#fixed#      need = both holes
//     #fixed#| A | B |     hole    | C |#fixed#      only B is copied
//
// With moves every free byte between two fixed pieces is of use, so what goes is chosen by cost per byte
// and not by address: the cheapest in cost / (staleness * size) until the bytes suffice, or one alone. Whoever
// depends on one that is chosen costs more from then on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
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

    // `pairs(piece, visit)` visits the pieces that weigh more beside that one, and how much more.
    template <typename Pairs>
    Compaction search(const Pieces& pieces, Rows& listed, Bytes need, Pairs pairs) {
        std::vector<Row>& rows = listed.at;
        Compaction best;
        const std::int32_t count = static_cast<std::int32_t>(rows.size());
        for (std::int32_t at = 0; at < count; ++at) {
            if (rows[at].fixed) continue;
            const std::int32_t begin = at;
            Bytes free = 0, evictable = 0;
            for (; at < count && !rows[at].fixed; ++at)
                (rows[at].free ? free : evictable) += rows[at].free || !rows[at].wall ? rows[at].bytes : 0;
            if (free + evictable >= need) consider(pieces, listed, need, free, begin, at, best, pairs);
        }
        return best;
    }

  private:
    template <typename Pairs>
    void consider(const Pieces& pieces, Rows& listed, Bytes need, Bytes free, std::int32_t begin, std::int32_t end,
                  Compaction& best, Pairs pairs) {
        std::vector<Row>& rows = listed.at;
        Compaction found;
        found.found = true;
        std::int64_t cost = free < need ? choose(pieces, listed, need - free, begin, end, found.victims, pairs) : 0;
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
    template <typename Pairs>
    std::int64_t choose(const Pieces& pieces, Rows& listed, Bytes bytes, std::int32_t begin, std::int32_t end,
                        std::vector<std::int32_t>& chosen, Pairs pairs) {
        std::vector<Row>& rows = listed.at;
        std::vector<double>& density = listed.density;
        raised_.clear();
        Bytes sum = 0;
        const auto beside = [&](std::int32_t row, auto visit) {
            pairs(rows[row].piece, [&](std::int32_t piece, auto more) {
                const std::int32_t other = row_of(pieces, rows, piece, begin, end);
                if (other != kNone) visit(other, more());
            });
        };
        const auto add = [&](std::int32_t row) {
            rows[row].leaving = true;
            chosen.push_back(row);
            sum += rows[row].bytes;
        };
        for (int pass = 0; pass < kPasses && sum < bytes; ++pass) {  // a few are found faster than sorted
            std::int32_t least = kNone;
            double value = std::numeric_limits<double>::infinity();
            for (std::int32_t row = begin; row < end; ++row)
                if (density[row] < value) least = row, value = density[row];
            add(least);
            const auto raise = [&](std::int32_t row, double by) {
                raised_.push_back({row, density[row]});
                density[row] += by;
            };
            raise(least, std::numeric_limits<double>::infinity());  // it is chosen
            if (sum < bytes)
                beside(least, [&](std::int32_t other, std::int64_t more) {
                    raise(other, static_cast<double>(more) / static_cast<double>(rows[other].bytes));
                });
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
        for (std::size_t i = raised_.size(); i-- > 0;) density[raised_[i].first] = raised_[i].second;
        for (std::size_t i = chosen.size(); i-- > 0;) {
            const std::int32_t row = chosen[i];
            if (sum - rows[row].bytes < bytes) continue;
            sum -= rows[row].bytes;
            rows[row].leaving = false;
            chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i));
        }
        std::int64_t cost = 0;
        for (const std::int32_t row : chosen) {
            cost += rows[row].weight;
            if (chosen.size() > 1)
                beside(row, [&](std::int32_t other, std::int64_t more) {
                    if (rows[other].leaving && other < row) cost = add_up(cost, more);  // each pair once
                });
        }
        return cost;
    }

    // Rows are in address order; kNone: it is not among them.
    static std::int32_t row_of(const Pieces& pieces, const std::vector<Row>& rows, std::int32_t piece,
                               std::int32_t begin, std::int32_t end) {
        const Bytes offset = pieces.at(piece).offset;
        const auto from = rows.begin() + begin, to = rows.begin() + end;
        const auto at = std::lower_bound(
            from, to, offset, [&](const Row& row, Bytes value) { return pieces.at(row.piece).offset < value; });
        return at == to || at->piece != piece ? kNone : static_cast<std::int32_t>(at - rows.begin());
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
    std::vector<std::pair<std::int32_t, double>> raised_;  // by the choice at hand, and what they were
};

}  // namespace tightrope_evict
