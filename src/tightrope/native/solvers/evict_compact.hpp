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
#include <vector>

#include "evict_search.hpp"

namespace tightrope_evict {

struct Compaction {
    bool found = false;
    std::int64_t cost = 0;              // weights of what is evicted, raised by the share that copying adds
    Cost copy_ns = 0;
    Bytes evicted = 0;
    std::vector<std::int32_t> victims;  // pieces
    std::int32_t first = kNone, last = kNone;  // window that slides together: free (or evicted) at both ends
};

class Compactor {
  public:
    explicit Compactor(std::int64_t bytes_per_us) : bytes_per_us_(std::max<std::int64_t>(1, bytes_per_us)) {}

    Cost copy_cost(Bytes bytes) const { return bytes * 1000 / bytes_per_us_; }

    template <typename Fresh>
    Compaction search(Pieces& pieces, const Moment& moment, Bytes need, bool running, Fresh fresh) {
        running_ = running;
        Compaction best;
        std::int32_t at = pieces.first();
        while (at != kNone) {
            if (is_fixed(pieces.at(at))) {
                at = pieces.at(at).after;
                continue;
            }
            const std::int32_t begin = at;
            Bytes free = 0, evictable = 0;
            items_.clear();
            for (; at != kNone && !is_fixed(pieces.at(at)); at = pieces.at(at).after) {
                const Piece& piece = pieces.at(at);
                if (piece.owner == kNone) {
                    free += piece.bytes;
                } else if (!piece.wall) {
                    evictable += piece.bytes;
                    items_.push_back({at, piece.bytes, 0});
                }
            }
            if (free + evictable >= need) consider(pieces, moment, need, free, begin, at, fresh, best);
        }
        return best;
    }

  private:
    struct Item {
        std::int32_t piece;
        Bytes bytes;
        std::int64_t weight;
        double density() const { return static_cast<double>(weight) / static_cast<double>(bytes); }
    };

    // Between ops, what an op is about to read may still move.
    bool is_fixed(const Piece& piece) const {
        return piece.owner != kNone && (running_ ? piece.fixed : piece.rooted);
    }

    template <typename Fresh>
    void consider(Pieces& pieces, const Moment& moment, Bytes need, Bytes free, std::int32_t begin,
                  std::int32_t end, Fresh fresh, Compaction& best) {
        chosen_.clear();
        std::int64_t cost = 0;
        if (free < need) {
            for (Item& item : items_) {
                if (pieces.at(item.piece).stale) fresh(item.piece);
                item.weight = weight(moment, pieces.at(item.piece));
            }
            cost = choose(need - free);
        }
        if (best.found && cost >= best.cost) return;
        for (const Item& item : chosen_) pieces.at(item.piece).leaving = true;
        Compaction found;
        found.found = true;
        for (const Item& item : chosen_) found.victims.push_back(item.piece), found.evicted += item.bytes;
        found.copy_ns = narrowest(pieces, need, begin, end, found);
        Cost again = 1;
        for (const Item& item : chosen_) again += pieces.at(item.piece).cost;
        // What is copied is paid now, whatever is used again: it counts as so much more of what is evicted.
        const double raised = static_cast<double>(cost) *
                              (1.0 + static_cast<double>(found.copy_ns) / static_cast<double>(again));
        cost = chosen_.empty() ? found.copy_ns : static_cast<std::int64_t>(std::min(raised, kMost));
        for (const Item& item : chosen_) pieces.at(item.piece).leaving = false;
        found.cost = cost;
        if (!best.found || cost < best.cost) best = std::move(found);
    }

    // A cheap set of items of at least `bytes`: by density, without those that turn out not to be needed.
    // What it frees beyond `bytes` is of use to later requests, so a large one at the same density is as good.
    std::int64_t choose(Bytes bytes) {
        const auto later = [](const Item& a, const Item& b) {
            const double x = a.density(), y = b.density();
            return x != y ? x > y : a.piece > b.piece;
        };
        std::make_heap(items_.begin(), items_.end(), later);
        Bytes sum = 0;
        std::int64_t cost = 0;
        for (auto end = items_.end(); sum < bytes; --end) {
            std::pop_heap(items_.begin(), end, later);
            chosen_.push_back(*(end - 1));
            sum += chosen_.back().bytes, cost += chosen_.back().weight;
        }
        for (std::size_t i = chosen_.size(); i-- > 0;)
            if (sum - chosen_[i].bytes >= bytes) {
                sum -= chosen_[i].bytes, cost -= chosen_[i].weight;
                chosen_.erase(chosen_.begin() + static_cast<std::ptrdiff_t>(i));
            }
        return cost;
    }

    // The window in [begin, end) with enough free bytes in which the least has to be copied; returns its ns.
    Cost narrowest(Pieces& pieces, Bytes need, std::int32_t begin, std::int32_t end, Compaction& found) {
        const auto gain = [&](const Piece& piece) {
            return piece.owner == kNone || piece.leaving ? piece.bytes : 0;
        };
        Bytes best = -1, copied = 0, free = 0;
        std::int32_t left = begin;
        for (std::int32_t right = begin; right != end; right = pieces.at(right).after) {
            const Bytes gained = gain(pieces.at(right));
            free += gained, copied += pieces.at(right).bytes - gained;
            while (free >= need) {
                if (best < 0 || copied < best) best = copied, found.first = left, found.last = right;
                const Piece& leaving = pieces.at(left);
                const Bytes lost = gain(leaving);
                free -= lost, copied -= leaving.bytes - lost;
                left = leaving.after;
            }
        }
        return copy_cost(best);
    }

    static constexpr double kMost = 4611686018427387904.0;  // 2^62
    std::int64_t bytes_per_us_;
    bool running_ = true;
    std::vector<Item> items_, chosen_;
};

}  // namespace tightrope_evict
