// Canonical depth-first search: is there a placement with every top at or below a capacity?
//
// Among all solutions take one with the smallest sum of offsets, and write its buffers down by
// (offset, rank). Each of them then lies at its lowest legal offset above the earlier ones, so the
// search places buffers in non-decreasing (offset, rank) and each at its lowest offset.
//
//   address ^          passed over: j could lie at its floor, but the search is already at o > floor,
//         C |......    so j must rest on a buffer k that is still unplaced (skip inference):
//           |  +-j-+       offset(j) >= min over unplaced conflicting k of bound(k) + size(k)
//         o |  +-k-+
//           +--------> section
//
// What may follow depends only on the unplaced buffers, their floors, and which of them were passed
// over. States searched to the end without a solution are remembered, across restarts too.
#pragma once

#include <unordered_set>

#include "packer_dive.hpp"
#include "packer_searcher.hpp"

namespace packer {

struct Pruning {
    bool section_bounds, dominance, hatless, decomposition, skip_inference, memory;
};

// H = integer wide enough for twice the capacity.
template <class H>
class Search final : public Searcher {
   public:
    Search(const Part& part, Shared overlaps, Pruning prune)
        : part_(part), prune_(prune), obstacles_(part), n_(part.count()), overlaps_(std::move(overlaps)),
          floors_(part.num_sections), size_(part.size.begin(), part.size.end()), failures_(part.num_sections, 0) {
        low_.resize(n_), bound_.resize(n_), rank_.resize(n_), placed_.resize(n_), rest_.resize(part.num_sections);
    }

    Answer run(const std::vector<Index>& order, Bytes capacity, i64 node_limit, Trial& trial,
               Budget& budget) override {
        if (capacity > remembered_for_) failed_.clear();
        remembered_for_ = capacity, capacity_ = static_cast<H>(capacity), budget_ = &budget;
        last_node_ = nodes_ + node_limit, trial_ = &trial;
        trial_node_ = trial.nodes ? nodes_ + trial.nodes : 0;
        const auto& members = overlaps_->members();
        left_ = least_left_ = static_cast<Index>(members.size());
        std::fill(placed_.begin(), placed_.end(), char{0});
        for (Index at = 0; at < n_; ++at) rank_[order[at]] = at;
        std::fill(rest_.begin(), rest_.end(), H{0});
        for (Index j : members) {
            low_[j] = static_cast<H>(obstacles_.lowest(j, 0));
            for (Section s = part_.start[j]; s < part_.end[j]; ++s) rest_[s] += size_[j];
        }
        for (Index j = 0; j < n_; ++j) placed_[j] = part_.fixed[j] >= 0;
        trail_.clear(), list_ = members;
        const Answer answer = visit(0, static_cast<Index>(members.size()), 0, -1);
        std::vector<Index>().swap(list_);  // up to half the square of the number of buffers
        return answer;
    }

    std::vector<Offset> offsets() const override {
        std::vector<Offset> offset(low_.begin(), low_.end());
        for (Index j = 0; j < n_; ++j)
            if (part_.fixed[j] >= 0) offset[j] = part_.fixed[j];
        return offset;
    }
    i64 nodes() const override { return nodes_; }
    const std::vector<double>& failures() const override { return failures_; }
    void forget() override {
        for (double& count : failures_) count *= 0.9;
    }

   private:
    using Span = std::pair<std::size_t, Index>;  // first position in list_, count
    struct Change {
        Index buffer;
        H low;
    };

    // Cut the span where no unplaced buffer crosses, smaller pieces first.
    Answer visit(std::size_t from, Index count, H key, Index rank) {
        if (count == 0) return Answer::found;
        if (!prune_.decomposition) return expand({from, count}, key, rank);
        return by_pieces(part_, list_, from, count, [&](Span piece, bool) { return expand(piece, key, rank); });
    }

    bool passed_over(Index j, H key, Index rank) const {
        return low_[j] < key || (low_[j] == key && rank_[j] < rank);
    }

    Answer expand(Span span, H key, Index rank) {
        ++nodes_;
        if (nodes_ == trial_node_ && hopeless()) last_node_ = 0;
        if (nodes_ > last_node_ || !budget_->spend(13 * span.second) || ((nodes_ & 255) == 0 && budget_->late()))
            return Answer::unknown;
        const State state = prune_.memory ? state_of(span, key, rank) : State{};
        if (prune_.memory && failed_.contains(state)) return Answer::none;
        const i64 before = nodes_;
        const Answer answer = branch(span, key, rank);
        if (answer == Answer::none && prune_.memory && nodes_ > before && failed_.size() < kRememberedStates) failed_.insert(state);
        return answer;
    }

    bool hopeless() {
        trial_->left = least_left_;
        return least_left_ > trial_->allowed;
    }

    State state_of(Span span, H key, Index rank) const {
        State state;
        for (Index at = 0; at < span.second; ++at) {
            const Index j = list_[span.first + at];
            state += packer::state_of(j, passed_over(j, key, rank) ? 0 : static_cast<u64>(low_[j]) + 1);
        }
        return state;
    }

    Answer branch(Span span, H key, Index rank) {
        H dominated = std::numeric_limits<H>::max();
        const std::size_t first = list_.size();
        for (Index at = 0; at < span.second; ++at) {
            const Index j = list_[span.first + at];
            dominated = prune_.dominance ? std::min<H>(dominated, low_[j] + size_[j]) : dominated;
        }
        for (Index at = 0; at < span.second; ++at) {
            const Index j = list_[span.first + at];
            if (low_[j] < dominated && !passed_over(j, key, rank)) list_.push_back(j);
        }
        const std::size_t last = list_.size();
        std::sort(list_.begin() + first, list_.begin() + last,
                  [&](Index a, Index b) { return low_[a] != low_[b] ? low_[a] < low_[b] : rank_[a] < rank_[b]; });
        Answer answer = Answer::none;
        for (std::size_t at = first; at < last && answer == Answer::none; ++at) {
            const Index j = list_[at];
            if (!possible(span, low_[j], rank_[j])) break;
            const std::size_t mark = trail_.size();
            const bool alone = place(j);
            const std::size_t child = list_.size();
            for (Index i = 0; i < span.second; ++i)
                if (list_[span.first + i] != j) list_.push_back(list_[span.first + i]);
            answer = visit(child, span.second - 1, low_[j], rank_[j]);
            list_.resize(child);
            if (answer == Answer::none) rewind(mark);
            if (alone && prune_.hatless) break;
        }
        list_.resize(first);
        return answer;
    }

    // Place j at its floor and lift its unplaced conflicts; true when there are none.
    bool place(Index j) {
        const H top = low_[j] + size_[j];
        placed_[j] = 1, least_left_ = std::min(least_left_, --left_);
        bool alone = true;
        for (Index k : overlaps_->of(j)) {
            if (placed_[k]) continue;
            alone = false;
            if (low_[k] >= top) continue;
            trail_.push_back({k, low_[k]});
            low_[k] = part_.plain ? top : static_cast<H>(obstacles_.lowest(k, top));
        }
        for (Section s = part_.start[j]; s < part_.end[j]; ++s) rest_[s] -= size_[j];
        trail_.push_back({-1 - j, 0});
        return alone;
    }

    void rewind(std::size_t mark) {
        while (trail_.size() > mark) {
            const auto [entry, low] = trail_.back();
            trail_.pop_back();
            if (entry >= 0) {
                low_[entry] = low;
                continue;
            }
            const Index j = -1 - entry;
            placed_[j] = 0, ++left_;
            for (Section s = part_.start[j]; s < part_.end[j]; ++s) rest_[s] += size_[j];
        }
    }

    // False when no solution goes on from here with a next key of (key, rank) or above.
    bool possible(Span span, H key, Index rank) {
        skipped_.clear();
        Section left = part_.num_sections, right = 0;
        for (Index at = 0; at < span.second; ++at) {
            const Index j = list_[span.first + at];
            const bool skipped = passed_over(j, key, rank);
            if (skipped) skipped_.push_back(j);
            bound_[j] = skipped ? key : low_[j];
            if (bound_[j] + size_[j] > capacity_) return false;
            left = std::min(left, part_.start[j]), right = std::max(right, part_.end[j]);
        }
        if (prune_.skip_inference && !lift_skipped()) return false;
        return !prune_.section_bounds || sections_fit(span, left, right);
    }

    bool lift_skipped() {
        bool changed = true;
        for (int pass = 0; pass < 3 && changed; ++pass) {
            changed = false;
            for (Index j : skipped_) {
                H support = std::numeric_limits<H>::max();
                for (Index k : overlaps_->of(j)) {
                    if (!placed_[k]) support = std::min<H>(support, bound_[k] + size_[k]);
                }
                if (support > capacity_ - size_[j]) return false;
                if (support > bound_[j]) bound_[j] = support, changed = true;
            }
        }
        return true;
    }

    // In every section the lowest bound and the bytes still to come must stay below the capacity.
    bool sections_fit(Span span, Section left, Section right) {
        floors_.reset(left, right);
        for (Index at = 0; at < span.second; ++at) {
            const Index j = list_[span.first + at];
            floors_.lower(part_.start[j], part_.end[j], bound_[j]);
        }
        const auto over = [&](Section s) { return rest_[s] != 0 && floors_[s] > capacity_ - rest_[s]; };
        bool fits = true;
        for (Section s = left; s < right; ++s) fits &= !over(s);
        for (Section s = left; s < right && !fits; ++s) failures_[s] += over(s);
        return fits;
    }

    const Part& part_;
    Pruning prune_;
    Obstacles obstacles_;
    Index n_;
    Shared overlaps_;
    Floors<H> floors_;
    std::vector<H> size_, low_, bound_, rest_;
    std::vector<Index> rank_, list_, skipped_;
    std::vector<char> placed_;
    std::vector<double> failures_;
    std::vector<Change> trail_;
    std::unordered_set<State, StateHash> failed_;
    Bytes remembered_for_ = -1;
    H capacity_ = 0;
    i64 nodes_ = 0, last_node_ = 0, trial_node_ = 0;
    Index left_ = 0, least_left_ = 0;
    Budget* budget_ = nullptr;
    Trial* trial_ = nullptr;
};

}  // namespace packer
