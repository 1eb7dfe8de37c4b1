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

#include <cstring>
#include <memory>
#include <unordered_set>

#include "packer_dive.hpp"
#include "packer_model.hpp"

namespace packer {

enum class Answer { found, none, unknown };

struct Pruning {
    bool section_bounds, dominance, hatless, decomposition, skip_inference, memory;
};

struct State {
    u64 a = 0, b = 0;
    bool operator==(const State&) const = default;
};
struct StateHash {
    std::size_t operator()(const State& state) const { return state.a; }
};

inline u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// A run whose best node so far leaves more than `allowed` buffers to place is given up after `nodes` nodes.
struct Trial {
    i64 nodes = 0;  // 0 = no trial
    Index allowed = 0;
    Index left = -1;  // result: fewest buffers left when the trial ended, -1 = the run ended first
};

class Searcher {
   public:
    virtual ~Searcher() = default;
    // Search with ranks from `order` until `node_limit` more nodes, the trial or the budget end it.
    virtual Answer run(const std::vector<Index>& order, Bytes capacity, i64 node_limit, Trial& trial,
                       Budget& budget) = 0;
    virtual std::vector<Offset> offsets() const = 0;
    virtual i64 nodes() const = 0;
    // How often each section ran out of bytes; aged by `forget`, so that recent failures weigh more.
    virtual const std::vector<double>& failures() const = 0;
    virtual void forget() = 0;
};

// H = integer wide enough for twice the capacity.
template <class H>
class Search final : public Searcher {
   public:
    Search(const Part& part, Pruning prune) : part_(part), prune_(prune), obstacles_(part), n_(part.count()) {
        size_.assign(part.size.begin(), part.size.end());
        low_.resize(n_), bound_.resize(n_), rank_.resize(n_), placed_.resize(n_);
        rest_.resize(part.num_sections), floor_.resize(part.num_sections + kLanes);
        for (Index j = 0; j < n_; ++j)
            if (part.fixed[j] < 0) by_start_.push_back(j);
        std::sort(by_start_.begin(), by_start_.end(), [&](Index a, Index b) { return part.start[a] < part.start[b]; });
        failures_.assign(part.num_sections, 0);
        connect();
    }

    Answer run(const std::vector<Index>& order, Bytes capacity, i64 node_limit, Trial& trial,
               Budget& budget) override {
        if (capacity > remembered_for_) failed_.clear();
        remembered_for_ = capacity, capacity_ = static_cast<H>(capacity), budget_ = &budget;
        last_node_ = nodes_ + node_limit, trial_ = &trial;
        trial_node_ = trial.nodes ? nodes_ + trial.nodes : 0;
        left_ = least_left_ = static_cast<Index>(by_start_.size());
        std::fill(placed_.begin(), placed_.end(), char{0});
        for (Index at = 0; at < n_; ++at) rank_[order[at]] = at;
        std::fill(rest_.begin(), rest_.end(), H{0});
        for (Index j : by_start_) {
            low_[j] = static_cast<H>(obstacles_.lowest(j, 0));
            for (Section s = part_.start[j]; s < part_.end[j]; ++s) rest_[s] += size_[j];
        }
        for (Index j = 0; j < n_; ++j) placed_[j] = part_.fixed[j] >= 0;
        trail_.clear();
        list_ = by_start_;
        list_.reserve(by_start_.size() * (by_start_.size() + 3) / 2 + 1);
        return visit(0, static_cast<Index>(by_start_.size()), 0, -1);
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

    void connect() {
        first_.assign(n_ + 1, 0);
        for (int pass = 0; pass < 2; ++pass) {
            std::vector<i64> at(first_);
            for (std::size_t x = 0; x < by_start_.size(); ++x)
                for (std::size_t y = x + 1; y < by_start_.size(); ++y) {
                    const Index a = by_start_[x], b = by_start_[y];
                    if (part_.start[b] >= part_.end[a]) break;
                    if (pass == 0) ++first_[a + 1], ++first_[b + 1];
                    else near_[at[a]++] = b, near_[at[b]++] = a;
                }
            if (pass == 0) std::partial_sum(first_.begin(), first_.end(), first_.begin()), near_.resize(first_[n_]);
        }
    }

    // Cut the span where no unplaced buffer crosses, smaller pieces first.
    Answer visit(std::size_t from, Index count, H key, Index rank) {
        if (count == 0) return Answer::found;
        if (!prune_.decomposition) return expand({from, count}, key, rank);
        Span pieces[8];
        int num_pieces = 0;
        Section reach = 0;
        for (Index at = 0; at < count; ++at) {
            const Index j = list_[from + at];
            if (at == 0 || (part_.start[j] >= reach && num_pieces < 8)) pieces[num_pieces++] = {from + at, 0};
            reach = std::max(reach, part_.end[j]), ++pieces[num_pieces - 1].second;
        }
        if (num_pieces == 1) return expand(pieces[0], key, rank);
        std::stable_sort(pieces, pieces + num_pieces, [](Span a, Span b) { return a.second < b.second; });
        for (int at = 0; at < num_pieces; ++at) {
            const Answer answer = expand(pieces[at], key, rank);
            if (answer != Answer::found) return answer;
        }
        return Answer::found;
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
        if (answer == Answer::none && prune_.memory && nodes_ > before && failed_.size() < kMemory) failed_.insert(state);
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
            const u64 floor = passed_over(j, key, rank) ? 0 : static_cast<u64>(low_[j]) + 1;
            const u64 word = mix((floor << 20) * 0x9e3779b97f4a7c15ull + static_cast<u64>(j) + 1);
            state.a += word, state.b += mix(word ^ 0xd1b54a32d192ed03ull);
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
        for (i64 at = first_[j]; at < first_[j + 1]; ++at) {
            const Index k = near_[at];
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
                for (i64 at = first_[j]; at < first_[j + 1]; ++at) {
                    const Index k = near_[at];
                    if (!placed_[k]) support = std::min<H>(support, bound_[k] + size_[k]);
                }
                if (support > capacity_ - size_[j]) return false;
                if (support > bound_[j]) bound_[j] = support, changed = true;
            }
        }
        return true;
    }

    // Many sections at a time, those outside the life untouched: most lives are short, and a loop over
    // single sections takes twice the time of the whole search.
    void lower_floor(Section start, Section end, H bound) {
        using Lanes [[gnu::vector_size(kLanes * sizeof(H))]] = H;
        Lanes lanes;
        for (Section at = 0; at < kLanes; ++at) lanes[at] = static_cast<H>(at);
        for (Section block = start & ~(kLanes - 1); block < end; block += kLanes) {
            Lanes floor;
            std::memcpy(&floor, floor_.data() + block, sizeof(floor));
            const Lanes least = bound + Lanes{};
            const auto inside = (lanes >= static_cast<H>(start - block)) & (lanes < static_cast<H>(end - block));
            floor = inside & (floor > least) ? least : floor;
            std::memcpy(floor_.data() + block, &floor, sizeof(floor));
        }
    }

    // In every section the lowest bound and the bytes still to come must stay below the capacity.
    bool sections_fit(Span span, Section left, Section right) {
        std::fill(floor_.begin() + left, floor_.begin() + right, std::numeric_limits<H>::max());
        for (Index at = 0; at < span.second; ++at) {
            const Index j = list_[span.first + at];
            lower_floor(part_.start[j], part_.end[j], bound_[j]);
        }
        const auto over = [&](Section s) { return rest_[s] != 0 && floor_[s] > capacity_ - rest_[s]; };
        bool fits = true;
        for (Section s = left; s < right; ++s) fits &= !over(s);
        for (Section s = left; s < right && !fits; ++s) failures_[s] += over(s);
        return fits;
    }

    static constexpr std::size_t kMemory = 1 << 20;
    static constexpr Section kLanes = sizeof(H) == 2 ? 16 : 8;
    const Part& part_;
    Pruning prune_;
    Obstacles obstacles_;
    Index n_;
    std::vector<H> size_, low_, bound_, rest_, floor_;
    std::vector<Index> rank_, by_start_, near_, list_, skipped_;
    std::vector<char> placed_;
    std::vector<double> failures_;
    std::vector<i64> first_;
    std::vector<Change> trail_;
    std::unordered_set<State, StateHash> failed_;
    Bytes remembered_for_ = -1;
    H capacity_ = 0;
    i64 nodes_ = 0, last_node_ = 0, trial_node_ = 0;
    Index left_ = 0, least_left_ = 0;
    Budget* budget_ = nullptr;
    Trial* trial_ = nullptr;
};

// `largest` = largest capacity that will be asked.
inline std::unique_ptr<Searcher> make_search(const Part& part, Pruning prune, Bytes largest) {
    // An offset rounded up to its alignment must not leave the type either.
    const Bytes align = *std::max_element(part.align.begin(), part.align.end());
    const auto below = [&](int bits) { return largest < (Bytes{1} << bits) && align < (Bytes{1} << bits); };
    if (below(13) && part.num_sections < (1 << 14)) return std::make_unique<Search<std::int16_t>>(part, prune);
    if (below(29)) return std::make_unique<Search<i32>>(part, prune);
    return std::make_unique<Search<i64>>(part, prune);
}

}  // namespace packer
