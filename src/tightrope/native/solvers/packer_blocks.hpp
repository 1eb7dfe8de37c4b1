// First fit and squeaky wheel for blocks: pieces at fixed distances, with ranges of forbidden offsets.
//
//   address ^        +-1-+      an offset is legal when every piece finds its bytes free;
//           |  +--0--+          the candidate climbs from one blocking interval to the next
//           +--+-----+---> time until no piece and no forbidden range moves it any more
#pragma once

#include <cmath>
#include <numeric>

#include "packer_fit.hpp"

namespace packer {

struct Blocks {
    i64 count = 0;
    const i64 *first = nullptr;                 // count + 1 positions into the pieces
    const i64 *size = nullptr, *start = nullptr, *end = nullptr, *low = nullptr;
    const i64 *align = nullptr, *fixed = nullptr, *hint = nullptr;  // -1 = none
    const i64 *range = nullptr;                 // count + 1 positions into the forbidden offsets
    const i64 *from = nullptr, *to = nullptr;   // half-open, ascending, disjoint within a block
};

class BlockPacker {
   public:
    BlockPacker(const Blocks& in, u64 seed, Budget& budget) : in_(in), random_{seed}, budget_(budget) {
        std::vector<i64> times(in.start, in.start + in.first[in.count]);
        std::sort(times.begin(), times.end());
        times.erase(std::unique(times.begin(), times.end()), times.end());
        const auto section = [&](i64 time) {
            return static_cast<Section>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
        };
        for (i64 p = 0; p < in.first[in.count]; ++p)
            start_.push_back(section(in.start[p])), end_.push_back(std::max(section(in.end[p]), start_[p] + 1));
        num_sections_ = std::max<Section>(1, static_cast<Section>(times.size()));
        height_.resize(in.count), weight_.resize(in.count);
        for (i64 j = 0; j < in.count; ++j)
            for (i64 p = in.first[j]; p < in.first[j + 1]; ++p) {
                height_[j] = std::max(height_[j], in.low[p] + in.size[p]);
                weight_[j] += static_cast<double>(in.size[p]) * static_cast<double>(in.end[p] - in.start[p]);
            }
    }

    // Lower the peak until it is at most `goal` or the budget is used up.
    void run(Bytes goal) {
        std::vector<Index> best_order;
        for (const double share : {0.0, 0.5, 1.0, 0.25}) {
            auto order = by_key([&](i64 j) {
                return std::pow(static_cast<double>(height_[j]), 1 - share) * std::pow(weight_[j], share);
            });
            if (fit(order) || best_order.empty()) best_order = std::move(order);
            if (peak_ <= goal || budget_.over()) return;
        }
        while (peak_ > goal && !budget_.over()) {
            auto order = squeak(best_order, goal);
            // Blocks that interlock may need an offset that is the lowest legal one in no order.
            if (fit(order, random_.unit() < 0.5 ? 0.0 : 0.4 * random_.unit())) best_order = std::move(order);
        }
    }

    Bytes peak() const { return peak_; }
    const std::vector<Offset>& offsets() const { return best_; }

   private:
    template <class Key>
    std::vector<Index> by_key(Key key) const {
        std::vector<double> value(in_.count);
        for (i64 j = 0; j < in_.count; ++j) value[j] = -key(j);
        return sorted(value);
    }

    std::vector<Index> sorted(const std::vector<double>& value) const {
        std::vector<Index> order(in_.count);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return value[a] < value[b]; });
        return order;
    }

    // Move blocks that end above a random line forward, and everything a little.
    std::vector<Index> squeak(const std::vector<Index>& order, Bytes goal) {
        const Bytes line = goal + static_cast<Bytes>(random_.unit() * static_cast<double>(peak_ - goal));
        const double noise = 0.3 * random_.unit();
        std::vector<double> place(in_.count);
        for (std::size_t at = 0; at < order.size(); ++at) {
            const Index j = order[at];
            const double high = best_[j] + height_[j] > line ? random_.unit() : 1.0;
            place[j] = static_cast<double>(at) * high * (1 + noise * random_.unit());
        }
        return sorted(place);
    }

    Offset past_forbidden(i64 j, Offset offset) const {
        const i64* last = in_.to + in_.range[j + 1];
        for (const i64* to = std::upper_bound(in_.to + in_.range[j], last, offset); to != last; ++to) {
            if (in_.from[to - in_.to] > offset) break;
            offset = *to;
        }
        return offset;
    }

    Offset lowest(i64 j, Offset offset, i64& work) {
        for (;;) {
            const Offset before = offset;
            offset = past_forbidden(j, round_up(offset, in_.align[j]));
            for (i64 p = in_.first[j]; p < in_.first[j + 1]; ++p)
                if (in_.size[p] > 0)
                    offset = tree_->first_fit(start_[p], end_[p], in_.size[p], 1, work, offset + in_.low[p]) - in_.low[p];
            if (offset == before) return offset;
        }
    }

    void put(i64 j, Offset offset, Bytes hole) {
        for (i64 p = in_.first[j]; p < in_.first[j + 1]; ++p)
            if (in_.size[p] > 0)
                tree_->insert(start_[p], end_[p], offset + in_.low[p], offset + in_.low[p] + in_.size[p], hole);
    }

    // Place in this order, a share of `loose` blocks not at the lowest offset; true when the peak is the
    // lowest so far. The first call always finishes.
    bool fit(const std::vector<Index>& order, double loose = 0) {
        AddressTree tree(num_sections_);
        tree_ = &tree;
        std::vector<Offset> offset(in_.count, 0);
        Bytes smallest = kInfinity, peak = 0;
        for (i64 p = 0; p < in_.first[in_.count]; ++p)
            if (in_.size[p] > 0) smallest = std::min(smallest, in_.size[p]);
        for (i64 j = 0; j < in_.count; ++j)
            if (in_.fixed[j] >= 0) put(j, offset[j] = in_.fixed[j], smallest), peak = std::max(peak, offset[j] + height_[j]);
        for (const Index j : order) {
            if (in_.fixed[j] >= 0) continue;
            i64 work = 0;
            const bool hinted = in_.hint[j] >= 0 && lowest(j, in_.hint[j], work) == in_.hint[j];
            const bool high = loose > 0 && peak_ > height_[j] && random_.unit() < loose;
            const Offset from = high ? static_cast<Offset>(random_.below(static_cast<u64>(peak_ - height_[j]))) : 0;
            offset[j] = hinted ? in_.hint[j] : lowest(j, from, work);
            put(j, offset[j], smallest);
            peak = std::max(peak, offset[j] + height_[j]);
            const bool in_time = budget_.spend(600 * (in_.first[j + 1] - in_.first[j]) + 4 * work) && !budget_.late();
            if (!best_.empty() && (peak >= peak_ || !in_time)) return false;
        }
        peak_ = peak, best_ = std::move(offset);
        return true;
    }

    const Blocks& in_;
    Random random_;
    Budget& budget_;
    std::vector<Section> start_, end_;
    Section num_sections_ = 1;
    std::vector<Bytes> height_;
    std::vector<double> weight_;
    AddressTree* tree_ = nullptr;
    std::vector<Offset> best_;
    Bytes peak_ = kInfinity;
};

}  // namespace packer
