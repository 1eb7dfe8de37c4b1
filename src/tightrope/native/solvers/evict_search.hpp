// Whom to evict: scores of single storages, and the cheapest window of neighbouring pieces.
//
// A window's cost is the sum of its pieces' weights; free pieces weigh nothing, walls split the range:
//
//     | A 3 | free 0 | B 1 |#wall#| C 2 | D 9 |     need = 2 pieces: the cheapest window is [free, B]
//              +----------+
//
// Weights are whole numbers, so that leaving a window subtracts exactly what entering it added. With a price for
// pairs, a window also weighs what evicting two that depend on each other adds to the cost of both; that is
// computed only for windows that weigh less without.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "evict_pieces.hpp"

namespace tightrope_evict {

enum class Score : std::int64_t {
    cost_staleness = 0,       // c / staleness                               Coop, summed over a window
    cost_size_staleness = 1,  // c / (size * staleness)                      DTR
    cost_room_staleness = 2,  // c / ((size + free beside it) * staleness)   DTE
    staleness = 3,            // 1 / staleness                               least recently used
    size = 4,                 // 1 / size                                    largest first
};

constexpr double kScale = 1099511627776.0;           // 2^40: of weights
constexpr double kFlatScale = 16777216.0;             // 2^24: the same where they fall more slowly, and so are larger
constexpr std::int64_t kHeaviest = 1125899906842624;  // 2^50: 8,000 of them still add up in 63 bits

struct Moment {
    Clock now = 0, base = 0;
    Clock patience = 0;      // added to every staleness: how soon storages are used again as a rule
    Clock forecast_patience = 0;  // the same for forecasts
    double unheld = 1.0;     // factor of the weight of what nobody holds
    bool forecasts = false;  // use the distance to the next use where one is known
    bool flat = false;       // weights fall with the distance to the power of 3/4

    // How long ago it was touched, or how far its next use is; at least 1.
    double distance(const Piece& piece) const {
        if (forecasts && piece.next_use >= 0)
            return static_cast<double>(std::max<Clock>(1, piece.next_use - base + forecast_patience));
        return static_cast<double>(std::max<Clock>(1, now - piece.touched + patience));
    }
};

// About x^(3/4) for x >= 1, from 4.2 % below to 6.1 % above, rising with x: three quarters of exponent and mantissa, as one number.
inline double three_quarters(double x) {
    static_assert(sizeof(double) == sizeof(std::int64_t));
    constexpr std::int64_t one = 0x3FF0000000000000;  // of 1.0
    std::int64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = one + (bits - one) / 4 * 3;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

// A sum of weights that may be very many.
inline std::int64_t add_up(std::int64_t sum, std::int64_t more) { return std::min(sum + more, std::int64_t{1} << 60); }

// Of so much cost at the distance of a piece.
inline std::int64_t weight_of(const Moment& moment, const Piece& piece, Cost cost) {
    const double distance = moment.distance(piece);
    const double value = static_cast<double>(cost) / (moment.flat ? three_quarters(distance) : distance) *
                         (moment.flat ? kFlatScale : kScale) * (piece.unheld ? moment.unheld : 1.0);
    return value >= static_cast<double>(kHeaviest) ? kHeaviest : static_cast<std::int64_t>(value);
}

inline std::int64_t weight(const Moment& moment, const Piece& piece) { return weight_of(moment, piece, piece.cost); }

inline double score_of(Score score, const Moment& moment, const Pieces& pieces, std::int32_t index) {
    const Piece& piece = pieces.at(index);
    const double cost = static_cast<double>(piece.cost), size = static_cast<double>(piece.bytes);
    switch (score) {
        case Score::cost_staleness: return cost / moment.distance(piece);
        case Score::cost_size_staleness: return cost / (size * moment.distance(piece));
        case Score::cost_room_staleness: {
            double room = size;
            if (pieces.is_free(piece.before)) room += static_cast<double>(pieces.at(piece.before).bytes);
            if (pieces.is_free(piece.after)) room += static_cast<double>(pieces.at(piece.after).bytes);
            return cost / (room * moment.distance(piece));
        }
        case Score::staleness: return 1.0 / moment.distance(piece);
        case Score::size: return 1.0 / size;
    }
    return 0.0;
}

// The pieces of a range in address order, side by side, as a search reads them.
struct Row {
    std::int32_t piece;
    bool free, wall, fixed, leaving;
    Bytes bytes;
    std::int64_t weight;
};

struct Rows {
    std::vector<Row> at;
    std::vector<double> density;  // weight per byte; infinite for what must not be evicted
};

// `fresh(index)` makes the cost of a piece's storage current before it is read.
template <typename Fresh>
void list_rows(Pieces& pieces, const Moment& moment, bool running, Rows& rows, Fresh fresh) {
    rows.at.clear(), rows.density.clear();
    for (std::int32_t at = pieces.first(); at != kNone; at = pieces.at(at).after) {
        const Piece& piece = pieces.at(at);
        const bool free = piece.owner == kNone;
        const bool fixed = !free && (running ? piece.fixed : piece.rooted);
        Row row{at, free, !free && piece.wall, fixed, false, piece.bytes, 0};
        double density = std::numeric_limits<double>::infinity();
        if (!free && !piece.wall) {
            if (piece.stale) fresh(at);
            row.weight = weight(moment, piece);
            density = static_cast<double>(row.weight) / static_cast<double>(row.bytes);
        }
        rows.at.push_back(row), rows.density.push_back(density);
    }
}

struct Window {
    std::int32_t first = kNone, last = kNone;  // rows; kNone: there is none
    std::int64_t cost = 0, runner_up = -1;     // runner_up: cost of the second best met, or less; -1: none
};

// Two pointers: each row enters and leaves once. Visits every window that is large enough, and too small without
// its first row: first and last row, weight, and the bytes that it evicts.
template <typename Visit>
void each_window(const std::vector<Row>& rows, Bytes need, Visit visit) {
    Bytes covered = 0, evicted = 0;
    std::int64_t cost = 0;
    std::int32_t left = 0;
    for (std::int32_t right = 0; right < static_cast<std::int32_t>(rows.size()); ++right) {
        const Row& row = rows[right];
        if (row.wall) {
            left = right + 1, covered = 0, evicted = 0, cost = 0;
            continue;
        }
        covered += row.bytes, evicted += row.free ? 0 : row.bytes, cost += row.weight;
        for (; covered >= need; ++left) {
            visit(left, right, cost, evicted);
            covered -= rows[left].bytes, evicted -= rows[left].free ? 0 : rows[left].bytes;
            cost -= rows[left].weight;
        }
    }
}

// The cheapest of the windows that are offered, and the cost of the second.
struct Cheapest {
    Window window;
    double least = std::numeric_limits<double>::infinity(), next = least;

    void offer(std::int32_t left, std::int32_t right, std::int64_t cost, double value) {
        if (window.first == kNone || value < least) {
            window.runner_up = window.first == kNone ? -1 : window.cost, next = least;
            window.first = left, window.last = right, window.cost = cost, least = value;
        } else if (window.runner_up < 0 || value < next) {
            window.runner_up = cost, next = value;
        }
    }
};

constexpr std::int32_t kMostPriced = 512;  // rows of windows whose pairs are looked up in one search, after the first

// With `per_byte`, what a window frees beyond `need` counts, as later requests use it: of windows of equal weight
// per byte the larger one is no worse. `pairs(first, last)` is what the pairs in a window weigh. It is asked for the
// window that is cheapest without, and, where that has pairs, for those that are cheaper without than all so far.
template <typename Pairs>
Window cheapest_window(const std::vector<Row>& rows, Bytes need, bool per_byte, Pairs pairs) {
    const auto value = [&](std::int64_t cost, Bytes evicted) {
        return static_cast<double>(cost) / (per_byte ? static_cast<double>(std::max<Bytes>(1, evicted)) : 1.0);
    };
    Cheapest alone, priced;
    Bytes freed = 0;
    each_window(rows, need, [&](std::int32_t left, std::int32_t right, std::int64_t cost, Bytes evicted) {
        alone.offer(left, right, cost, value(cost, evicted));
        if (alone.window.first == left && alone.window.last == right) freed = evicted;
    });
    const Window& first = alone.window;
    const std::int64_t more = first.first == kNone ? 0 : pairs(first.first, first.last);
    if (more == 0) return first;
    priced.offer(first.first, first.last, first.cost + more, value(first.cost + more, freed));
    std::int32_t looked = 0;
    each_window(rows, need, [&](std::int32_t left, std::int32_t right, std::int64_t cost, Bytes evicted) {
        if (value(cost, evicted) >= priced.least || left == first.first || looked >= kMostPriced) return;
        looked += right - left + 1;
        const std::int64_t whole = cost + pairs(left, right);
        priced.offer(left, right, whole, value(whole, evicted));
    });
    return priced.window;
}

}  // namespace tightrope_evict
