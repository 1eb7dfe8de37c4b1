// Making room in an eviction arena: searches, what they evict and move, and the log of decisions.
//
//     evict_window   the cheapest window of neighbouring pieces, or moves where they are cheaper
//     evict_singly   one storage after another until a hole is large enough
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "evict_compact.hpp"
#include "evict_storages.hpp"

namespace tightrope_evict {

class RoomMaker : public Storages {
  public:
    using Moved = void (*)(void* context, Id id, Bytes from, Bytes to, Bytes bytes);

    explicit RoomMaker(const Options& options) : Storages(options), compactor_(options.copy_rate) {}

    // `moved` must copy the bytes at once (they may overlap) and let the storage point there.
    void on_moved(Moved callback, void* context) { moved_ = callback, moved_context_ = context; }

  protected:
    std::int32_t make_room(Bytes need) {
        ++statistics_.evicting;
        statistics_.requested_bytes += need;
        const auto begin = std::chrono::steady_clock::now();
        copying_ns_ = 0;
        const std::size_t log_first = victims_.size();
        Decision decision{};
        decision.request = need, decision.runner_up = -1, decision.first_victim = static_cast<std::int64_t>(log_first);
        decision.free_before = free_now();
        if (options_.log) decision.largest_free_before = main_.largest_free();
        const auto evict = [&] { return options_.window ? evict_window(need, decision) : evict_singly(need); };
        std::int32_t piece = evict();
        // What is kept for making others again goes where there is no other way: those others stay then.
        for (Id id = kNone; piece == kNone && (id = spare_unheld()) != kNone;) {
            lose(id);
            piece = main_.fit(need, false);
            if (piece == kNone) piece = evict();
        }
        const auto ns = since(begin) - copying_ns_;
        statistics_.search_ns += ns;
        statistics_.longest_search_ns = std::max<std::int64_t>(statistics_.longest_search_ns, ns);
        if (options_.log) {
            decision.search_ns = ns;
            decision.victims = static_cast<std::int64_t>(victims_.size() - log_first);
            if (piece != kNone && !options_.window)
                decision.start = main_.at(piece).offset, decision.end = decision.start + main_.at(piece).bytes;
            decisions_.push_back(decision);
        }
        return piece;
    }

    // Where a hole fits one of the two, makes one for the other. Returns whether both have one.
    bool make_room_apart(Bytes large, Bytes small) {
        Bytes here = large, other = small;
        std::int32_t hole = main_.best_fit(large, false);
        if (hole == kNone) std::swap(here, other), hole = main_.best_fit(here, false);
        if (hole == kNone) return false;
        const std::int32_t kept = main_.take(hole, here, kReserved, false);
        main_.at(kept).wall = main_.at(kept).fixed = main_.at(kept).rooted = true;
        reserved_ = here;
        const bool found = main_.fit(other, false) != kNone || make_room(other) != kNone;
        reserved_ = 0;
        main_.give(kept);
        return found;
    }

    void count_search() {
        ++statistics_.searches;
        const Bytes all = options_.bytes - small_bytes_;
        if (all > 0) statistics_.free_at_search_ppm += free_now() * 1000000 / all;
    }

    Bytes free_now() const { return main_.free_bytes() + reserved_; }

    void aim() {
        moment_.forecasts = options_.forecasts != 0;
        moment_.flat = options_.flat != 0;
        moment_.unheld = 1.0 / static_cast<double>(std::max<std::int64_t>(1, options_.unheld));
        const Clock reuse = reuses_ == 0 ? 0 : total_reuse_ / reuses_;
        moment_.patience = reuse * options_.patience / 100;
        moment_.forecast_patience = reuse * options_.forecast_patience / 100;
    }

    bool may_move() const { return options_.relocate == 2 || (options_.relocate == 1 && moved_ != nullptr); }

    std::int32_t evict_window(Bytes need, Decision& decision) {
        aim();
        list_rows(main_, moment_, running_, rows_, [&](std::int32_t piece) { derive(piece); });
        const bool pairs = options_.pairs != 0 && options_.neighbours != 0;
        const Window window = cheapest_window(rows_.at, need, options_.per_byte != 0, [&](auto first, auto last) {
            return pairs && last > first ? pairs_inside(first, last) : 0;
        });
        if (may_move()) {
            const Compaction compaction = compactor_.search(main_, rows_, need, [&](std::int32_t piece, auto visit) {
                if (pairs) visit_pairs(main_.at(piece).owner, visit);
            });
            if (compaction.found && moving_is_better(compaction, window)) {
                if (!compaction.victims.empty()) count_search();
                decision.runner_up = window.first == kNone ? -1 : window.cost;
                return compact(compaction, decision);
            }
        }
        count_search();
        if (window.first == kNone) return kNone;
        decision.cost = window.cost, decision.runner_up = window.runner_up;
        decision.start = offset_of(window.first), decision.end = end_of(window.last);
        std::int32_t hole = kNone;
        for (std::int32_t row = window.first; row <= window.last; ++row)
            if (!rows_.at[row].free) hole = evict_piece(rows_.at[row].piece);
        return hole;
    }

    // What the pairs in a window weigh; it has no walls, so its offsets tell what is in it.
    std::int64_t pairs_inside(std::int32_t first, std::int32_t last) {
        const Bytes begin = offset_of(first), end = end_of(last);
        std::int64_t sum = 0;
        for (std::int32_t row = first; row <= last; ++row) {
            if (rows_.at[row].free) continue;
            const std::int32_t piece = rows_.at[row].piece;
            visit_pairs(main_.at(piece).owner, [&](std::int32_t other, auto more) {
                const Bytes at = main_.at(other).offset;
                if (at >= begin && at < end && at < main_.at(piece).offset) sum = add_up(sum, more());  // each pair once
            });
        }
        return sum;
    }

    // Copying alone is compared by its time; with evictions, by cost per byte: bytes freed beyond the
    // request are of use later.
    bool moving_is_better(const Compaction& compaction, const Window& window) const {
        if (window.first == kNone) return true;
        Bytes evicted = 0;
        Cost again = 0;
        for (std::int32_t row = window.first; row <= window.last; ++row)
            if (!rows_.at[row].free) evicted += rows_.at[row].bytes, again += main_.at(rows_.at[row].piece).cost;
        if (compaction.victims.empty()) return compaction.copy_ns <= again;
        return static_cast<double>(compaction.cost) * static_cast<double>(evicted) <
               static_cast<double>(window.cost) * static_cast<double>(compaction.evicted);
    }

    Bytes offset_of(std::int32_t row) const { return main_.at(rows_.at[row].piece).offset; }
    Bytes end_of(std::int32_t row) const { return offset_of(row) + rows_.at[row].bytes; }

    std::int32_t compact(const Compaction& compaction, Decision& decision) {
        decision.cost = compaction.cost;
        decision.start = offset_of(compaction.first), decision.end = end_of(compaction.last);
        for (const std::int32_t row : compaction.victims) evict_piece(rows_.at[row].piece);
        std::int32_t hole = main_.free_at(decision.start);
        while (main_.at(hole).offset + main_.at(hole).bytes < decision.end) {
            const std::int32_t used = main_.at(hole).after;
            const Bytes from = main_.at(used).offset, to = main_.at(hole).offset;
            hole = main_.slide(hole);
            ++statistics_.moves;
            statistics_.moved_bytes += main_.at(used).bytes;
            if (moved_ == nullptr) continue;
            const auto begin = std::chrono::steady_clock::now();
            moved_(moved_context_, main_.at(used).owner, from, to, main_.at(used).bytes);
            copying_ns_ += since(begin);
        }
        return hole;
    }

    std::int32_t evict_singly(Bytes need) {
        aim();
        for (;;) {
            count_search();
            const std::int32_t victim = choose();
            if (victim == kNone) return kNone;
            const std::int32_t hole = evict_piece(victim);
            if (main_.at(hole).bytes >= need) return hole;
        }
    }

    void derive(std::int32_t piece) {
        Piece& at = main_.at(piece);
        at.cost = derive_cost(at.owner);
        at.stale = false;
    }

    std::int32_t choose() {
        const Score score = static_cast<Score>(options_.score);
        candidates_.clear();
        for (std::int32_t at = main_.first(); at != kNone; at = main_.at(at).after)
            if (main_.at(at).owner != kNone && !main_.at(at).wall) candidates_.push_back(at);
        if (candidates_.empty()) return kNone;
        std::size_t count = candidates_.size();
        if (options_.sample) {
            count = static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(count))));
            for (std::size_t i = 0; i < count; ++i)
                std::swap(candidates_[i], candidates_[i + random() % (candidates_.size() - i)]);
        }
        std::int32_t best = kNone;
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t i = 0; i < count; ++i) {
            const std::int32_t at = candidates_[i];
            if (main_.at(at).stale) derive(at);
            const double value = score_of(score, moment_, main_, at);
            if (best == kNone || value < least) best = at, least = value;
        }
        return best;
    }

    std::int32_t evict_piece(std::int32_t piece) {
        const Piece& at = main_.at(piece);
        const Id id = at.owner;
        if (options_.log)
            victims_.push_back({id, at.bytes, at.cost, static_cast<std::int64_t>(moment_.distance(at))});
        ++statistics_.evictions;
        statistics_.evicted_bytes += at.bytes;
        used_bytes_ -= at.bytes;
        const std::int32_t hole = main_.give(piece);
        records_[id].piece = kNone;
        evict_links(id);
        tell(id);
        return hole;
    }

    std::uint64_t random() {  // xorshift: the same run draws the same storages
        random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
        return random_;
    }

    bool running_ = true;
    Bytes reserved_ = 0;  // of a hole that is kept while another one is made
    std::vector<Decision> decisions_;
    std::vector<Victim> victims_;

  private:
    static std::int64_t since(std::chrono::steady_clock::time_point begin) {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
    }

    Compactor compactor_;
    std::int64_t copying_ns_ = 0;  // of the request at hand
    Moved moved_ = nullptr;
    void* moved_context_ = nullptr;
    std::uint64_t random_ = 88172645463325252ULL;
    std::vector<std::int32_t> candidates_;
    Rows rows_;
};

}  // namespace tightrope_evict
