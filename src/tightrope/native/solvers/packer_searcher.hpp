// What the searches share: their interface, hashed states, floors of sections, overlaps of buffers.
#pragma once

#include <cstring>
#include <limits>
#include <memory>
#include <span>

#include "packer_model.hpp"

namespace packer {

enum class Answer { found, none, unknown };

// Hash of a set of buffers, each with its floor; hashes of disjoint sets add up to that of their union.
struct State {
    u64 a = 0, b = 0;
    bool operator==(const State&) const = default;
    void operator+=(State other) { a += other.a, b += other.b; }
    void operator-=(State other) { a -= other.a, b -= other.b; }
};
struct StateHash {
    std::size_t operator()(const State& state) const { return state.a; }
};

inline u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// The part of a state that one buffer makes.
inline State state_of(Index j, u64 floor) {
    const u64 word = mix((floor << 20) * 0x9e3779b97f4a7c15ull + static_cast<u64>(j) + 1);
    return {word, mix(word ^ 0xd1b54a32d192ed03ull)};
}

inline constexpr std::size_t kRememberedStates = 1 << 20;

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

// Lowest bound of the buffers over every section. H = integer wide enough for twice the capacity.
template <class H>
class Floors {
   public:
    explicit Floors(Section num_sections) : floor_(num_sections + kLanes) {}

    H operator[](Section s) const { return floor_[s]; }
    void reset(Section left, Section right) {
        std::fill(floor_.begin() + left, floor_.begin() + right, std::numeric_limits<H>::max());
    }

    // Many sections at a time, those outside the life untouched: most lives are short, and a loop over
    // single sections takes twice the time of the whole search.
    void lower(Section start, Section end, H bound) {
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

   private:
    static constexpr Section kLanes = sizeof(H) == 2 ? 16 : 8;
    std::vector<H> floor_;
};

// The buffers without a fixed offset by start, and for each of them those that are alive together with it.
class Overlaps {
   public:
    explicit Overlaps(const Part& part) : first_(part.count() + 1, 0) {
        for (Index j = 0; j < part.count(); ++j)
            if (part.fixed[j] < 0) members_.push_back(j);
        std::sort(members_.begin(), members_.end(), [&](Index a, Index b) { return part.start[a] < part.start[b]; });
        for (int pass = 0; pass < 2; ++pass) {
            std::vector<i64> at(first_);
            for (std::size_t x = 0; x < members_.size(); ++x)
                for (std::size_t y = x + 1; y < members_.size(); ++y) {
                    const Index a = members_[x], b = members_[y];
                    if (part.start[b] >= part.end[a]) break;
                    if (pass == 0) ++first_[a + 1], ++first_[b + 1];
                    else near_[at[a]++] = b, near_[at[b]++] = a;
                }
            if (pass == 0) std::partial_sum(first_.begin(), first_.end(), first_.begin()), near_.resize(first_.back());
        }
    }

    const std::vector<Index>& members() const { return members_; }
    std::span<const Index> of(Index j) const { return {near_.data() + first_[j], near_.data() + first_[j + 1]}; }
    i64 count() const { return first_.back(); }

   private:
    std::vector<Index> members_, near_;
    std::vector<i64> first_;
};

using Shared = std::shared_ptr<const Overlaps>;  // one for all searches of a part

// Call `visit(first, count)` for the pieces of list[from, from + count) that no buffer connects, smaller
// ones first, until one of them is not found. The list is sorted by start.
template <class Visit>
Answer by_pieces(const Part& part, const std::vector<Index>& list, std::size_t from, Index count, Visit&& visit) {
    using Span = std::pair<std::size_t, Index>;
    Span pieces[8];
    int num_pieces = 0;
    Section reach = 0;
    for (Index at = 0; at < count; ++at) {
        const Index j = list[from + at];
        if (at == 0 || (part.start[j] >= reach && num_pieces < 8)) pieces[num_pieces++] = {from + at, 0};
        reach = std::max(reach, part.end[j]), ++pieces[num_pieces - 1].second;
    }
    if (num_pieces > 1) std::stable_sort(pieces, pieces + num_pieces, [](Span a, Span b) { return a.second < b.second; });
    for (int at = 0; at < num_pieces; ++at) {
        const Answer answer = visit(pieces[at], num_pieces > 1);
        if (answer != Answer::found) return answer;
    }
    return Answer::found;
}

// Make a Search<H> for capacities up to `largest`, H as narrow as that allows: more lanes at a time.
template <template <class> class Search, class... Arguments>
std::unique_ptr<Searcher> make_searcher(const Part& part, Bytes largest, Arguments... arguments) {
    // An offset rounded up to its alignment must not leave the type either.
    const Bytes align = *std::max_element(part.align.begin(), part.align.end());
    const auto below = [&](int bits) { return largest < (Bytes{1} << bits) && align < (Bytes{1} << bits); };
    if (below(13) && part.num_sections < (1 << 14)) return std::make_unique<Search<std::int16_t>>(part, arguments...);
    if (below(29)) return std::make_unique<Search<i32>>(part, arguments...);
    return std::make_unique<Search<i64>>(part, arguments...);
}

}  // namespace packer
