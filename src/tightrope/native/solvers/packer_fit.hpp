// First fit in a given order, on a segment tree of address sets.
//
// Every node of a segment tree over the sections keeps `cover`, the addresses taken by buffers that
// span the whole node, and `any`, the addresses taken anywhere below it. A buffer asks O(log m) sets
// and jumps from the end of one blocking interval to the next until all of them agree. A hole smaller
// than every buffer still to come can never be used again, so it is closed when a neighbour arrives:
// that keeps the sets short.
#pragma once

#include <bit>

#include "packer_model.hpp"

namespace packer {

class AddressSet {
   public:
    void insert(Offset low, Offset high, Bytes smallest_hole) {
        auto first = std::partition_point(taken_.begin(), taken_.end(),
                                          [&](const Interval& i) { return i.high <= low - smallest_hole; });
        auto last = first;
        while (last != taken_.end() && last->low < high + smallest_hole) {
            if (last->low <= low && last->high >= high) return;
            low = std::min(low, last->low), high = std::max(high, last->high), ++last;
        }
        if (first == last) {
            taken_.insert(first, {low, high});
        } else {
            *first = {low, high};
            taken_.erase(first + 1, last);
        }
    }

    // Lowest offset >= `from` at which `size` bytes are free; `work` counts the intervals passed.
    Offset next_free(Offset from, Bytes size, Bytes align, i64& work) const {
        auto it = std::partition_point(taken_.begin(), taken_.end(),
                                       [&](const Interval& i) { return i.high <= from; });
        for (; it != taken_.end() && it->low < from + size; ++it, ++work) from = round_up(it->high, align);
        return from;
    }

    bool empty() const { return taken_.empty(); }

   private:
    struct Interval {
        Offset low, high;
    };
    std::vector<Interval> taken_;
};

class AddressTree {
   public:
    explicit AddressTree(Section num_sections) {
        while (leaves_ < num_sections) leaves_ *= 2;
        cover_.resize(2 * leaves_), any_.resize(2 * leaves_);
    }

    Offset first_fit(Section start, Section end, Bytes size, Bytes align, i64& work, Offset offset = 0) {
        asked_.clear();
        collect(1, 0, leaves_, start, end);
        for (std::size_t agreed = 0, at = 0; agreed < asked_.size(); at = at + 1 == asked_.size() ? 0 : at + 1) {
            const Offset next = asked_[at]->next_free(offset, size, align, work);
            agreed = next == offset ? agreed + 1 : 1;
            offset = next;
            ++work;
        }
        return offset;
    }

    void insert(Section start, Section end, Offset low, Offset high, Bytes smallest_hole) {
        insert(1, 0, leaves_, start, end, low, high, smallest_hole);
    }

   private:
    void collect(Section node, Section left, Section right, Section start, Section end) {
        if (start <= left && right <= end) {
            if (!any_[node].empty()) asked_.push_back(&any_[node]);
            return;
        }
        if (!cover_[node].empty()) asked_.push_back(&cover_[node]);
        const Section middle = left + (right - left) / 2;
        if (start < middle) collect(2 * node, left, middle, start, end);
        if (end > middle) collect(2 * node + 1, middle, right, start, end);
    }

    void insert(Section node, Section left, Section right, Section start, Section end, Offset low, Offset high,
                Bytes hole) {
        any_[node].insert(low, high, hole);
        if (start <= left && right <= end) {
            cover_[node].insert(low, high, hole);
            return;
        }
        const Section middle = left + (right - left) / 2;
        if (start < middle) insert(2 * node, left, middle, start, end, low, high, hole);
        if (end > middle) insert(2 * node + 1, middle, right, start, end, low, high, hole);
    }

    Section leaves_ = 1;
    std::vector<AddressSet> cover_, any_;
    std::vector<const AddressSet*> asked_;
};

// Place the buffers one after another, each at its lowest free address; fixed ones come first. Give up at
// a peak of `stop_above`, and unless it must `finish` when the budget is used up.
inline Layout first_fit(const Part& part, const std::vector<Index>& order, Bytes stop_above, Budget& budget,
                        bool finish = false) {
    const Index n = part.count();
    Layout layout{std::vector<Offset>(n, 0), 0};
    AddressTree tree(part.num_sections);
    std::vector<Bytes> smallest(n + 1, kInfinity);
    for (Index at = n; at-- > 0;) smallest[at] = std::min(smallest[at + 1], part.size[order[at]]);
    for (Index j = 0; j < n; ++j) {
        if (part.fixed[j] < 0) continue;
        layout.offset[j] = part.fixed[j];
        tree.insert(part.start[j], part.end[j], part.fixed[j], part.fixed[j] + part.size[j], smallest[0]);
        layout.peak = std::max(layout.peak, part.fixed[j] + part.size[j]);
    }
    const i64 price = 20 * std::bit_width(static_cast<u64>(part.num_sections));
    for (Index at = 0; at < n; ++at) {
        const Index j = order[at];
        if (part.fixed[j] >= 0) continue;
        i64 work = 0;
        const Offset offset = tree.first_fit(part.start[j], part.end[j], part.size[j], part.align[j], work);
        const Offset high = offset + part.size[j];
        layout.offset[j] = offset, layout.peak = std::max(layout.peak, high);
        const bool in_time = budget.spend(price + 4 * work) && ((at & 1023) != 0 || !budget.late());
        if (layout.peak >= stop_above || (!in_time && !finish)) return Layout{{}, kInfinity};
        const Bytes hole = std::min(smallest[at + 1], high + 1);
        if (at + 1 < n) tree.insert(part.start[j], part.end[j], offset, high, hole);
    }
    return layout;
}

}  // namespace packer
