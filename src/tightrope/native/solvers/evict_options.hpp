// What an eviction arena is told, counts and logs.
#pragma once

#include <cstdint>

#include "evict_classes.hpp"

namespace tightrope_evict {

// Every field is an int64 so that Python can hand over the same block.
struct Options {
    std::int64_t bytes = 0;           // of the arena, the area for small storages included
    std::int64_t small_bytes = 0;     // of that area, at the end; 0: there is none
    std::int64_t small_limit = 0;     // largest storage that goes there
    std::int64_t score = 0;           // Score
    std::int64_t window = 1;          // evict a window; else one storage after another
    std::int64_t two_ends = 1;        // cheap storages from the right end; else all from the left
    std::int64_t neighbours = 1;      // the cost of evicted neighbours counts: 1 = by classes, 2 = by what depends on what
    std::int64_t sample = 0;          // score only about sqrt(n) storages, drawn at random
    std::int64_t forecasts = 0;       // distance to the next use in place of staleness, where known
    std::int64_t keep_temporaries = 1;  // what was made again for another: 0 = goes at once, 1 = stays
    std::int64_t best_fit = 0;        // place into the smallest hole that fits; else into the first
    std::int64_t log = 0;             // keep decisions
    std::int64_t relocate = 0;        // storages may move: 1 = where `on_moved` is set, 2 = always (simulated)
    std::int64_t patience = 0;        // percent of the mean time between two uses, added to every staleness
    std::int64_t forecast_patience = 0;  // the same for the distance to a forecast use
    std::int64_t copy_rate = 10000;   // bytes per us, for the price of a move
    std::int64_t unheld = 1;          // what nobody holds weighs one part in so many
    std::int64_t per_byte = 0;        // the cheapest window by weight per byte that it frees; else by weight
    std::int64_t flat = 0;            // weights fall with staleness to the power of 3/4; else as staleness rises
    std::int64_t pairs = 0;           // two that go together and depend on each other weigh more than each alone
};

// What takes no more stays: evicting it frees next to nothing, and a running total would keep all that went into it.
constexpr std::int64_t kTiny = 64;

struct Statistics {
    std::int64_t placed, evicting, searches, evictions, evicted_bytes, requested_bytes, failed, search_ns,
        longest_search_ns, high_water, used_bytes, free_bytes, largest_free, pieces, records;
    std::int64_t moves, moved_bytes;
    std::int64_t free_at_search_ppm;  // sum over searches of free / arena, in millionths
};

struct Decision {
    std::int64_t request, start, end, cost, runner_up, free_before, largest_free_before, search_ns, first_victim,
        victims;  // start, end: the window, or where the request was placed; cost: see kScale, kFlatScale
};

struct Victim {
    std::int64_t id, bytes, cost, distance;
};

enum BeginFlags : std::int64_t { kUnrecomputable = 1, kAgain = 2 };

}  // namespace tightrope_evict
