// Search on niches: is there a placement with every top at or below a capacity?
//
// The floor of a section is the lowest bound of the unplaced buffers alive in it. A niche is a stretch of
// equal floors between higher ones. Push every buffer of a solution down as far as it goes: then in each
// section of a niche some buffer starts exactly at the floor, or the bytes up to the next top are wasted.
//
//   address ^
//           |  +---+         +----+   sections s of the niche: the buffers that fit between its walls
//           |--+   +----?----+    |   and live in s are the only ones that may start there; with no bytes
//           |      |    s    |    |   to spare in s, one of them must
//           +---------------------> section
//
// Idea        Those that rest on the floor of a niche follow each other from wall to wall; who is in no such row
//             is no choice. Branch in the section with the fewest choices, wherever it lies; sections that failed
//             often come first. One choice is a forced move. No two branches hold the same solution, so no order
//             among the buffers is needed. States that failed are remembered.
// Source      Smallest domain first is that of exact cover (Knuth, 2000); niches are those of skyline
//             heuristics for strip packing (Burke, Kendall and Whitwell, 2004); the rest is our own.
// Guarantee   "none" is a proof: every branch has been searched, or was refuted by bytes or by memory (two
//             states of one 128-bit hash would break it; the switch `memory` does without).
// Complexity  A node costs O(unplaced buffers + their sections) and the overlaps of the buffer placed; the
//             number of nodes is exponential.
// Gaps        Buffers without alignment and fixed offsets only. Where many bytes are to spare, waste is
//             nearly always a choice, and the search is a good heuristic rather than a short proof.
#pragma once

#include <unordered_set>

#include "packer_searcher.hpp"

namespace packer {

template <class H>
class NicheSearch final : public Searcher {
   public:
    NicheSearch(const Part& part, Shared overlaps, bool decomposition, bool memory)
        : part_(part), decomposition_(decomposition), memory_(memory), overlaps_(std::move(overlaps)),
          floors_(part.num_sections), size_(part.size.begin(), part.size.end()), failures_(part.num_sections, 0) {
        const Index n = part.count();
        low_.resize(n), rank_.resize(n), placed_.resize(n), word_.resize(n), value_.resize(n);
        rest_.resize(part.num_sections), wall_.resize(part.num_sections);
        niche_.resize(part.num_sections), choices_.resize(part.num_sections + 1);
        from_left_.resize(part.num_sections + 1), from_right_.resize(part.num_sections + 1);
        wasted_.resize(part.num_sections);
    }

    Answer run(const std::vector<Index>& order, Bytes capacity, i64 node_limit, Trial&, Budget& budget) override {
        if (capacity > remembered_for_) failed_.clear();
        remembered_for_ = capacity, capacity_ = static_cast<H>(capacity), budget_ = &budget;
        last_node_ = nodes_ + node_limit;
        std::fill(placed_.begin(), placed_.end(), char{0});
        std::fill(low_.begin(), low_.end(), H{0});
        std::fill(rest_.begin(), rest_.end(), H{0});
        std::fill(wall_.begin(), wall_.end(), H{0});
        for (std::size_t at = 0; at < order.size(); ++at) rank_[order[at]] = static_cast<Index>(at);
        total_ = {};
        for (Index j : overlaps_->members()) {
            if (part_.size[j] > capacity) return Answer::none;
            total_ += word_[j] = state_of(j, 0);
            for (Section s = part_.start[j]; s < part_.end[j]; ++s) rest_[s] += size_[j];
        }
        if (part_.load > capacity) return Answer::none;
        trail_.clear(), list_ = overlaps_->members();
        const Answer answer = visit(0, static_cast<Index>(list_.size()), {});
        std::vector<Index>().swap(list_);  // up to half the square of the number of buffers
        return answer;
    }

    std::vector<Offset> offsets() const override { return {low_.begin(), low_.end()}; }
    i64 nodes() const override { return nodes_; }
    const std::vector<double>& failures() const override { return failures_; }
    void forget() override {
        for (double& count : failures_) count *= 0.9;
    }

   private:
    using Span = std::pair<std::size_t, Index>;  // first position in list_, count
    struct Change {
        Index buffer;  // -1 - j = j was placed
        H low;
        State word;
    };

    // `outside` = state of the unplaced buffers that are not in the span.
    Answer visit(std::size_t from, Index count, State outside) {
        if (count == 0) return Answer::found;
        if (!decomposition_) return expand({from, count}, outside);
        return by_pieces(part_, list_, from, count, [&](Span piece, bool cut) {
            if (!cut) return expand(piece, outside);
            State others = total_;
            for (Index at = 0; at < piece.second; ++at) others -= word_[list_[piece.first + at]];
            return expand(piece, others);
        });
    }

    Answer expand(Span span, State outside) {
        ++nodes_;
        if (nodes_ > last_node_ || !budget_->spend(6 * span.second) || ((nodes_ & 255) == 0 && budget_->late()))
            return Answer::unknown;
        State state = total_;
        state -= outside;
        if (memory_ && failed_.contains(state)) return Answer::none;
        const i64 before = nodes_;
        Section left = part_.start[list_[span.first]], right = 0;
        for (Index at = 0; at < span.second; ++at) right = std::max(right, part_.end[list_[span.first + at]]);
        if (!settle(span, left, right)) return Answer::none;
        const Section section = narrowest(span, left, right);
        const Answer answer = section < 0 ? Answer::none : branch(span, section, right, outside);
        if (answer != Answer::none) return answer;
        if (section >= 0) failures_[section] += 1;
        if (memory_ && nodes_ > before && failed_.size() < kRememberedStates) failed_.insert(state);
        return answer;
    }

    // Find the floors; false when in some section the floor and the bytes still to come exceed the capacity.
    bool settle(Span span, Section left, Section right) {
        floors_.reset(left, right);
        for (Index at = 0; at < span.second; ++at) {
            const Index j = list_[span.first + at];
            floors_.lower(part_.start[j], part_.end[j], low_[j]);
        }
        const auto over = [&](Section s) { return rest_[s] != 0 && floors_[s] > capacity_ - rest_[s]; };
        bool fits = true;
        for (Section s = left; s < right; ++s) fits &= !over(s);
        for (Section s = left; s < right && !fits; ++s) failures_[s] += over(s);
        return fits;
    }

    // Choose the section of a niche with the fewest choices; sections that failed often come first. -1 = some
    // niche cannot be filled.
    Section narrowest(Span span, Section left, Section right) {
        for (Section first = left, last = left; first < right; first = last) {
            while (last < right && floors_[last] == floors_[first]) ++last;
            const bool low = (first == left || floors_[first - 1] > floors_[first]) &&
                             (last == right || floors_[last] > floors_[first]);
            std::fill(niche_.begin() + first, niche_.begin() + last, low ? first : -1);
        }
        if (!tile(span, left, right)) return -1;
        std::fill(choices_.begin() + left, choices_.begin() + right + 1, 0);
        for (Index j : tiles_) ++choices_[part_.start[j]], --choices_[part_.end[j]];
        Section best = -1;
        double least = std::numeric_limits<double>::infinity();
        for (Section s = left, starting = 0; s < right; ++s) {
            starting += choices_[s];
            if (niche_[s] < 0) continue;
            const bool spare = wasted_[s];
            if (starting + spare == 1) return s;
            const double value = (starting + spare) * (spare ? 1.5 : 1.0) / (1 + failures_[s]);
            if (value < least) least = value, best = s;
        }
        return best;
    }

    // The buffers that rest on the floor of a niche, and sections left to waste, follow each other from wall to
    // wall without a gap. Collect the buffers that take part in some such row; false when a niche has no row.
    bool tile(Span span, Section left, Section right) {
        // from_left_[s] = the boundary before s is reached by a row from the left wall
        std::fill(from_left_.begin() + left, from_left_.begin() + right + 1, char{0});
        std::fill(from_right_.begin() + left, from_right_.begin() + right + 1, char{0});
        std::fill(wasted_.begin() + left, wasted_.begin() + right, char{0});
        tiles_.clear();
        Index at = 0;
        for (Section s = left; s < right; ++s) {
            if (niche_[s] < 0) continue;
            if (niche_[s] == s) from_left_[s] = 1;
            const bool open = from_left_[s];
            while (at < span.second && part_.start[list_[span.first + at]] < s) ++at;
            for (; at < span.second && part_.start[list_[span.first + at]] == s; ++at) {
                const Index j = list_[span.first + at];
                if (!open || low_[j] != floors_[s]) continue;
                tiles_.push_back(j), from_left_[part_.end[j]] = 1;
            }
            if (open && floors_[s] < capacity_ - rest_[s]) wasted_[s] = 1, from_left_[s + 1] = 1;
        }
        std::size_t kept = tiles_.size();
        for (Section s = right; s-- > left;) {
            if (niche_[s] < 0) continue;
            if (s + 1 == right || niche_[s + 1] != niche_[s]) {
                if (!from_left_[s + 1]) {
                    while (!from_left_[s]) --s;
                    failures_[s] += 1;
                    return false;
                }
                from_right_[s + 1] = 1;
            }
            wasted_[s] = wasted_[s] && from_right_[s + 1];
            bool reached = wasted_[s];
            for (; kept > 0 && part_.start[tiles_[kept - 1]] == s; --kept) {
                Index& j = tiles_[kept - 1];
                if (from_right_[part_.end[j]]) reached = true;
                else j = -1;
            }
            from_right_[s] = reached;
        }
        std::erase(tiles_, -1);
        return true;
    }

    Answer branch(Span span, Section section, Section right, State outside) {
        const std::size_t first = list_.size(), mark = trail_.size();
        const H floor = floors_[section], spare = capacity_ - rest_[section] - floor;
        const bool wasted = wasted_[section];
        for (Index j : tiles_)
            if (part_.start[j] <= section && section < part_.end[j]) list_.push_back(j);
        const std::size_t last = list_.size();
        rate(first, last, niche_[section], right);
        for (std::size_t at = first; at < last; ++at) {
            const Index j = list_[at];
            const State before = total_;
            if (place(j)) {
                const std::size_t child = list_.size();
                for (Index i = 0; i < span.second; ++i)
                    if (list_[span.first + i] != j) list_.push_back(list_[span.first + i]);
                const Answer answer = visit(child, span.second - 1, outside);
                list_.resize(child);
                if (answer != Answer::none) return answer;
            }
            rewind(mark), total_ = before;
        }
        Answer answer = Answer::none;
        if (wasted) {
            const State before = total_;
            if (lift(span, section, floor, spare)) answer = expand(span, outside);
            if (answer == Answer::none) rewind(mark), total_ = before;
        }
        list_.resize(first);
        return answer;
    }

    // Sort the candidates of a niche: first those whose top is level with a wall that they touch, a
    // coincidence that is seldom accidental, then by rank.
    void rate(std::size_t first, std::size_t last, Section left, Section right) {
        Section end = left;
        while (end < right && niche_[end] == left) ++end;
        const Index n = part_.count();
        for (std::size_t at = first; at < last; ++at) {
            const Index j = list_[at];
            const H top = low_[j] + size_[j];
            const bool level_left = part_.start[j] == left && left > 0 && wall_[left - 1] == top;
            const bool level_right = part_.end[j] == end && end < part_.num_sections && wall_[end] == top;
            value_[j] = rank_[j] - n * (level_left + level_right);
        }
        std::sort(list_.begin() + first, list_.begin() + last, [&](Index a, Index b) { return value_[a] < value_[b]; });
    }

    // Place j at its bound and raise those of its unplaced overlaps; false when one of them no longer fits.
    bool place(Index j) {
        const H top = low_[j] + size_[j];
        placed_[j] = 1, total_ -= word_[j];
        trail_.push_back({-1 - j, 0, {}});
        for (Section s = part_.start[j]; s < part_.end[j]; ++s) rest_[s] -= size_[j], wall_[s] = top;
        bool fits = true;
        for (Index k : overlaps_->of(j))
            if (!placed_[k] && low_[k] < top) fits &= raise(k, top);
        return fits;
    }

    bool raise(Index j, H low) {
        trail_.push_back({j, low_[j], word_[j]});
        total_ -= word_[j];
        low_[j] = low, word_[j] = state_of(j, static_cast<u64>(low));
        total_ += word_[j];
        return low <= capacity_ - size_[j];
    }

    void rewind(std::size_t mark) {
        while (trail_.size() > mark) {
            const auto [entry, low, word] = trail_.back();
            trail_.pop_back();
            if (entry >= 0) {
                low_[entry] = low, word_[entry] = word;
                continue;
            }
            const Index j = -1 - entry;
            placed_[j] = 0;
            for (Section s = part_.start[j]; s < part_.end[j]; ++s) rest_[s] += size_[j], wall_[s] = low_[j];
        }
    }

    // No buffer starts at the floor of the section: those that could must rest on others. False when that
    // wastes more bytes than the section has to spare.
    bool lift(Span span, Section section, H floor, H spare) {
        H next = std::numeric_limits<H>::max();
        for (Index at = 0; at < span.second; ++at) {
            const Index j = list_[span.first + at];
            if (part_.start[j] > section || section >= part_.end[j]) continue;
            H low = low_[j];
            if (low == floor) {
                low = std::numeric_limits<H>::max();
                for (Index k : overlaps_->of(j))
                    if (!placed_[k]) low = std::min<H>(low, low_[k] + size_[k]);
                if (low > capacity_ - size_[j] || !raise(j, low)) return false;
            }
            next = std::min(next, low);
        }
        return next - floor <= spare;
    }

    const Part& part_;
    bool decomposition_, memory_;
    Shared overlaps_;
    Floors<H> floors_;
    std::vector<H> size_, low_, rest_, wall_;  // wall = highest top placed in a section
    std::vector<double> failures_;
    std::vector<Index> rank_, value_, list_;
    std::vector<Section> niche_;  // first section of the niche, -1 = in none
    std::vector<Index> choices_;
    std::vector<char> placed_, from_left_, from_right_, wasted_;
    std::vector<Index> tiles_;  // buffers that may rest on the floor of their niche
    std::vector<State> word_;
    std::vector<Change> trail_;
    std::unordered_set<State, StateHash> failed_;
    State total_;  // of all unplaced buffers
    Bytes remembered_for_ = -1;
    H capacity_ = 0;
    i64 nodes_ = 0, last_node_ = 0;
    Budget* budget_ = nullptr;
};

}  // namespace packer
