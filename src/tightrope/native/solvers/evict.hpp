// An arena of addresses that makes room by evicting storages that can be made again (eager eviction).
//
// Idea       Storages are placed first fit, expensive ones from the left end and cheap ones from the
//            right. Where nothing fits, either the cheapest window of neighbouring pieces goes (Coop), or
//            one storage after another until something fits (DTR, DTE, least recently used, largest).
//            Evicted storages that are connected share a class, whose cost is part of their neighbours'.
// Source     Coop (NeurIPS 2023); DTR (ICLR 2021); DTE (MegEngine).
// Guarantee  Live pieces never overlap; pinned and unrecomputable storages are never evicted; whatever is
//            evicted has a producer whose inputs are resident or can be made again, or it was `lost`, and
//            then nothing that is held depends on it.
// Complexity Placing: the free pieces. Evicting: the pieces, and the border of the classes that change.
// Gaps       Weights of a window are added as if evicting one did not raise the cost of the next.
//
// Not thread-safe. The callback `evicted` must not call back into the arena.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "evict_compact.hpp"
#include "evict_records.hpp"
#include "evict_search.hpp"

namespace tightrope_evict {

// Every field is an int64 so that Python can hand over the same block.
struct Options {
    std::int64_t bytes = 0;           // of the arena, the area for small storages included
    std::int64_t small_bytes = 0;     // of that area, at the end; 0: there is none
    std::int64_t small_limit = 0;     // largest storage that goes there
    std::int64_t score = 0;           // Score
    std::int64_t window = 1;          // evict a window; else one storage after another
    std::int64_t two_ends = 1;        // cheap storages from the right end; else all from the left
    std::int64_t neighbours = 1;      // the cost of evicted neighbours counts (eq-classes)
    std::int64_t sample = 0;          // score only about sqrt(n) storages, drawn at random
    std::int64_t forecasts = 0;       // distance to the next use in place of staleness, where known
    std::int64_t keep_temporaries = 1;  // what was made again for another stays until evicted
    std::int64_t best_fit = 0;        // place into the smallest hole that fits; else into the first
    std::int64_t log = 0;             // keep decisions
    std::int64_t relocate = 0;        // storages may move: 1 = where `on_moved` is set, 2 = always (simulated)
    std::int64_t patience = 0;        // percent of the mean time between two uses, added to every staleness
    std::int64_t forecast_patience = 0;  // the same for the distance to a forecast use
    std::int64_t copy_rate = 5000;    // bytes per us, for the price of a move
};

struct Statistics {
    std::int64_t placed, evicting, searches, evictions, evicted_bytes, requested_bytes, failed, search_ns,
        longest_search_ns, high_water, used_bytes, free_bytes, largest_free, pieces, records;
    std::int64_t moves, moved_bytes;
    std::int64_t free_at_search_ppm;  // sum over searches of free / arena, in millionths
};

struct Decision {
    std::int64_t request, start, end, cost, runner_up, free_before, largest_free_before, search_ns, first_victim,
        victims;  // start, end: the window, or where the request was placed; cost: see kScale
};

struct Victim {
    std::int64_t id, bytes, cost, distance;
};

enum BeginFlags : std::int64_t { kUnrecomputable = 1, kAgain = 2 };

class Arena {
  public:
    using Evicted = void (*)(void* context, Id id);
    using Moved = void (*)(void* context, Id id, Bytes from, Bytes to, Bytes bytes);

    explicit Arena(const Options& options)
        : options_(options),
          small_bytes_(options.small_bytes / kAlignment * kAlignment),
          main_(0, options.bytes / kAlignment * kAlignment - small_bytes_),
          small_(options.bytes / kAlignment * kAlignment - small_bytes_, small_bytes_),
          compactor_(options.copy_rate) {}

    void on_evicted(Evicted callback, void* context) { callback_ = callback, context_ = context; }

    // `moved` must copy the bytes at once (they may overlap) and let the storage point there.
    void on_moved(Moved callback, void* context) { moved_ = callback, moved_context_ = context; }

    // Another policy from now on; the sizes of the arena stay.
    void set_options(const Options& options) {
        const Options before = options_;
        options_ = options;
        options_.bytes = before.bytes, options_.small_bytes = before.small_bytes;
        options_.small_limit = before.small_limit, options_.log = before.log;
    }

    // --- an op is about to run: decides at which end its storages go.
    // Where storages may move, it also makes one hole for `bytes`, as what it reads may move only now.
    void begin_op(Cost cost, Bytes bytes, std::int64_t flags) {
        choose_end(cost, bytes, flags);
        if (!may_move() || bytes <= 0 || main_.fit(round_up(bytes), false) != kNone) return;
        running_ = false;
        make_room(round_up(bytes));
        running_ = true;
    }

    void choose_end(Cost cost, Bytes bytes, std::int64_t flags) {
        if (flags & kUnrecomputable) {
            right_ = false;
            return;
        }
        if (cost < 0 || bytes <= 0) {
            right_ = true;
            return;
        }
        const double rate = static_cast<double>(cost) / static_cast<double>(bytes);
        right_ = !(rate > mean_rate());
        if (!(flags & kAgain)) total_cost_ += cost, total_bytes_ += bytes;
    }

    // --- places a new storage; -1: it fits nowhere and nothing (more) can be evicted.
    Id place(Bytes bytes) {
        const Bytes need = round_up(bytes);
        ++statistics_.placed;
        const bool right = options_.two_ends && right_;
        if (small_bytes_ > 0 && need <= options_.small_limit) {
            const std::int32_t piece = small_.fit(need, false);
            if (piece != kNone) return adopt(small_, small_.take(piece, need, kNone, false), need, true);
        }
        std::int32_t piece = fit(need, right);
        if (piece == kNone) piece = make_room(need);
        if (piece == kNone) {
            ++statistics_.failed;
            return kNone;
        }
        return adopt(main_, main_.take(piece, need, kNone, right), need, false);
    }

    // --- a storage whose bytes the arena does not hold: it is never evicted.
    Id outside(Bytes bytes) {
        const Id id = records_.make();
        Record& record = records_[id];
        record.bytes = bytes, record.outside = record.held = record.named = true;
        return id;
    }

    // --- the op that made it is known: from now on it may be evicted.
    void produced(Id id, Cost cost, const Id* parents, std::int64_t count) {
        Record& record = records_[id];
        record.cost = cost, record.named = record.recomputable = true;
        for (std::int64_t i = 0; i < count; ++i)
            if (parents[i] != id) {
                records_.link(parents[i], id);
                watch(parents[i], id);
                dirty(parents[i]);
            }
        touch(id);
        refresh(id);
        dirty(id);
    }

    // --- it will never be made again: it stays, and no longer needs its parents.
    void settle(Id id) {
        Record& record = records_[id];
        record.named = true;
        record.recomputable = false;
        refresh(id);
        unlink_parents(id);
    }

    void pin(Id id) {
        ++records_[id].pins;
        refresh(id);
    }

    void unpin(Id id) {
        --records_[id].pins;
        refresh(id);
        if (records_[id].pins == 0 && !records_[id].held) unheld(id);
    }

    // --- its address is known outside: it must not move, and not be evicted.
    void root(Id id) {
        records_[id].rooted = true;
        settle(id);
    }

    void advance(Clock ns, bool again) {
        moment_.now += ns;
        if (!again) moment_.base += ns;
    }

    void touch(Id id) {
        Record& record = records_[id];
        if (record.named && moment_.now > record.touched) total_reuse_ += moment_.now - record.touched, ++reuses_;
        record.touched = moment_.now;
        if (record.piece != kNone) piece_of(record).touched = moment_.now;
    }

    void forecast(Id id, Clock next_use) {
        Record& record = records_[id];
        record.next_use = next_use;
        if (record.piece != kNone) piece_of(record).next_use = next_use;
    }

    // --- nobody outside refers to it any more. Returns whether its bytes are free (else they stay, as
    // something that is held could not be made again without them, until the record is forgotten).
    bool release(Id id) {
        Record& record = records_[id];
        record.held = false;
        record.pins = 0;
        if (!record.named || record.children.empty()) {
            free_piece(id);
            forget(id);
            return true;
        }
        if (record.recomputable || settle_instead(id)) {
            free_piece(id);
            if (records_[id].recomputable) evict_links(id);
            else lose(id);
            return true;
        }
        refresh(id);
        return false;
    }

    // --- drops the bytes of a storage that may be made again, without a search.
    void evict(Id id) {
        if (records_[id].piece == kNone) return;
        free_piece(id);
        evict_links(id);
        tell(id);
    }

    // --- `id` is resident again, in the piece of `from`. A `from` that can be made again is evicted then
    // (an op in place ran on it); any other is gone.
    void restored(Id id, Id from) {
        Record &record = records_[id], &source = records_[from];
        record.piece = source.piece, record.small = source.small, record.outside = source.outside;
        source.piece = kNone, source.outside = false;
        if (record.node != kNone) {
            leave_class(id);
            for (const Id other : record.parents) watch(other, id);
            for (const Id other : record.children) watch(other, id);
        }
        if (record.piece != kNone) piece_of(record).owner = id;
        forecast(id, record.next_use);
        touch(id);
        refresh(id);
        dirty(id);
        source.held = source.held && source.recomputable;
        if (source.recomputable) evict_links(from);
        else if (source.children.empty()) forget(from);
    }

    // --- an op in place made a new version of `id`, from `parents` and the old version. Returns the record
    // of the old version, which has no bytes, or -1 where that cannot be made again (then `id` cannot
    // either, and what was made from the old version is settled; see `at_risk`).
    Id mutated(Id id, Cost cost, const Id* parents, std::int64_t count) {
        const Id old = records_.make();
        Record &now = records_[id], &before = records_[old];
        before.bytes = now.bytes, before.cost = now.cost, before.recomputable = now.recomputable;
        before.named = true, before.touched = now.touched;
        before.parents.swap(now.parents);
        before.children.swap(now.children);
        for (const Id parent : before.parents)
            for (Id& child : records_[parent].children)
                if (child == id) child = old;
        for (const Id child : before.children)
            for (Id& parent : records_[child].parents)
                if (parent == id) parent = old;
        now.named = true;
        produced(id, cost, parents, count);
        records_.link(old, id);
        if (records_[old].recomputable) {
            evict_links(old);
            return old;
        }
        lose(old);
        return kNone;
    }

    // --- the bytes of `id` are about to change or to go: lists held storages that are evicted and could not be
    // made again then. They must be restored, one after another, until the list is empty. What is resident
    // and depends on the old bytes is settled here, so that no later request evicts it. Nothing is at risk
    // where `id` can be made again.
    std::int64_t at_risk(Id id, Id* out, std::int64_t capacity) {
        if (records_[id].recomputable) return 0;
        std::int64_t found = 0;
        std::vector<Id> resident;
        walk_lost(id, [&](Id child) {
            const Record& record = records_[child];
            if (!record.held) return;
            if (record.resident()) {
                resident.push_back(child);
                return;
            }
            if (found < capacity) out[found] = child;
            ++found;
        });
        for (const Id one : resident) settle(one);
        return found;
    }

    // --- records that are gone since the last call; their ids are used again only after this.
    std::int64_t take_forgotten(Id* out, std::int64_t capacity) {
        std::int64_t count = 0;
        while (count < capacity && !forgotten_.empty()) {
            out[count++] = forgotten_.back();
            records_.recycle(forgotten_.back());
            forgotten_.pop_back();
        }
        return count;
    }

    bool valid(Id id) const { return records_.valid(id); }
    bool resident(Id id) const { return records_[id].resident(); }
    const Record& record(Id id) const { return records_[id]; }
    Bytes offset(Id id) const {
        const Record& record = records_[id];
        return record.piece == kNone ? -1 : (record.small ? small_ : main_).at(record.piece).offset;
    }
    Cost cost_around(Id id) { return derive_cost(id); }
    Clock now() const { return moment_.now; }
    Clock base() const { return moment_.base; }
    const Pieces& pieces(bool small) const { return small ? small_ : main_; }
    const std::vector<Decision>& decisions() const { return decisions_; }
    const std::vector<Victim>& victims() const { return victims_; }
    const std::vector<Id>& last_victims() const { return last_victims_; }
    void clear_last_victims() { last_victims_.clear(); }
    void clear_decisions() { decisions_.clear(), victims_.clear(); }
    Id num_ids() const { return records_.size(); }

    Statistics statistics() const {
        Statistics found = statistics_;
        found.used_bytes = used_bytes_;
        found.free_bytes = main_.free_bytes() + small_.free_bytes();
        found.largest_free = main_.largest_free();
        found.pieces = main_.count() + small_.count();
        found.records = records_.count();
        return found;
    }

  private:
    Piece& piece_of(const Record& record) { return (record.small ? small_ : main_).at(record.piece); }

    double mean_rate() const {
        return total_bytes_ == 0 ? 0.0 : static_cast<double>(total_cost_) / static_cast<double>(total_bytes_);
    }

    std::int32_t fit(Bytes need, bool right) const {
        return options_.best_fit ? main_.best_fit(need, right) : main_.fit(need, right);
    }

    Id adopt(Pieces& pieces, std::int32_t piece, Bytes need, bool small) {
        const Id id = records_.make();
        Record& record = records_[id];
        record.bytes = need, record.piece = piece, record.small = small, record.held = true;
        Piece& made = pieces.at(piece);
        made.owner = id, made.stale = made.wall = made.fixed = made.rooted = true, made.next_use = -1;
        made.touched = record.touched = moment_.now;
        used_bytes_ += need;
        statistics_.high_water = std::max(statistics_.high_water, used_bytes_);
        return id;
    }

    // A storage may be evicted when it has a producer and no pins; those in the small area stay.
    void refresh(Id id) {
        const Record& record = records_[id];
        if (record.piece == kNone) return;
        Piece& piece = piece_of(record);
        piece.rooted = !record.named || record.small || record.rooted;
        piece.fixed = piece.rooted || record.pins > 0;
        piece.wall = piece.fixed || !record.recomputable;
    }

    void dirty(Id id) {
        const Record& record = records_[id];
        if (record.piece != kNone) piece_of(record).stale = true;
    }

    void tell(Id id) {
        if (callback_ != nullptr) callback_(context_, id);
        else last_victims_.push_back(id);
    }

    void free_piece(Id id) {
        Record& record = records_[id];
        if (record.piece == kNone) return;
        Pieces& pieces = record.small ? small_ : main_;
        used_bytes_ -= pieces.at(record.piece).bytes;
        pieces.give(record.piece);
        record.piece = kNone;
    }

    // --- classes of evicted storages

    // Own cost and that of every distinct class of evicted storages beside it.
    Cost derive_cost(Id id) {
        const Record& record = records_[id];
        Cost total = record.cost;
        if (!options_.neighbours) return total;
        roots_.clear();
        const auto add = [&](Id other) {
            const std::int32_t node = records_[other].node;
            if (node == kNone) return;
            const std::int32_t root = classes_.find(node);
            if (std::find(roots_.begin(), roots_.end(), root) != roots_.end()) return;
            roots_.push_back(root);
            total += classes_.sum(root);
        };
        for (const Id other : record.parents) add(other);
        for (const Id other : record.children) add(other);
        return total;
    }

    // Marks everything resident beside a class; drops from its border what is not.
    void mark(std::int32_t root) {
        std::vector<Id>& border = classes_.border(root);
        const std::uint64_t stamp = records_.stamp();
        std::size_t kept = 0;
        for (const Id id : border) {
            Record& record = records_[id];
            if (!record.used || record.piece == kNone || record.seen == stamp) continue;
            record.seen = stamp;
            piece_of(record).stale = true;
            border[kept++] = id;
        }
        border.resize(kept);
    }

    // The class of `evicted`, where it is evicted, has `resident` beside it from now on.
    void watch(Id evicted, Id resident) {
        if (records_[evicted].node != kNone)
            classes_.border(classes_.find(records_[evicted].node)).push_back(resident);
    }

    // A storage without bytes joins the classes beside it.
    void evict_links(Id id) {
        Record& record = records_[id];
        if (record.node != kNone) return;
        record.node = classes_.make(record.cost);
        std::int32_t root = record.node;
        const auto meet = [&](Id other) {
            const Record& beside = records_[other];
            if (beside.node != kNone) root = classes_.join(root, beside.node);
            else if (beside.piece != kNone) classes_.border(classes_.find(root)).push_back(other);
        };
        for (const Id other : record.parents) meet(other);
        for (const Id other : record.children) meet(other);
        mark(classes_.find(root));
    }

    void leave_class(Id id) {
        Record& record = records_[id];
        if (record.node == kNone) return;
        mark(classes_.find(record.node));
        classes_.leave(record.node, record.cost);
        record.node = kNone;
    }

    // --- records that go

    void forget(Id id) {
        doomed_.push_back(id);
        while (!doomed_.empty()) {
            const Id gone = doomed_.back();
            doomed_.pop_back();
            if (!records_.valid(gone)) continue;
            if (records_[gone].piece != kNone) {
                free_piece(gone);
                tell(gone);
            }
            leave_class(gone);
            detach(gone);
            if (records_[gone].named) forgotten_.push_back(gone);
            records_.drop(gone);
        }
    }

    // Takes it from its parents; those that nobody holds or needs then are to be forgotten.
    void detach(Id id) {
        std::vector<Id> parents;
        parents.swap(records_[id].parents);
        for (const Id parent : parents) {
            Record& record = records_[parent];
            Records::remove(record.children, id);
            dirty(parent);
            if (record.children.empty() && !record.held && record.pins == 0) doomed_.push_back(parent);
        }
    }

    void unlink_parents(Id id) {
        detach(id);
        dirty(id);
        if (!doomed_.empty()) {
            const Id last = doomed_.back();
            doomed_.pop_back();
            forget(last);
        }
    }

    // Nobody holds it and no op uses it now: it stays only where it is still good for something.
    void unheld(Id id) {
        if (records_[id].children.empty()) forget(id);
        else if (!options_.keep_temporaries && records_[id].recomputable && records_[id].piece != kNone) evict(id);
    }

    // Visits what is made, directly or by way of records without bytes that nobody holds, from `id`.
    template <typename Visit>
    void walk_lost(Id id, Visit visit) {
        const std::uint64_t stamp = records_.stamp();
        std::vector<Id> open{id};
        while (!open.empty()) {
            const Id at = open.back();
            open.pop_back();
            for (const Id child : records_[at].children) {
                Record& record = records_[child];
                if (record.seen == stamp) continue;
                record.seen = stamp;
                visit(child);
                if (!record.held) open.push_back(child);
            }
        }
    }

    // Whether letting `id` go costs no more bytes than keeping it: what would be settled is smaller.
    bool settle_instead(Id id) {
        Bytes settled = 0;
        bool possible = true;
        walk_lost(id, [&](Id child) {
            const Record& record = records_[child];
            if (record.held && !record.resident()) possible = false;
            if (record.held && record.recomputable) settled += record.bytes;
        });
        return possible && settled <= records_[id].bytes;
    }

    // The bytes of `id` are gone for good: what is resident and was made from it must stay.
    void lose(Id id) {
        std::vector<Id> lost{id}, kept;
        walk_lost(id, [&](Id child) { (records_[child].held ? kept : lost).push_back(child); });
        for (const Id one : lost) records_[one].recomputable = false;
        for (const Id one : kept) settle(one);
        for (const Id one : lost)
            if (records_.valid(one) && records_[one].pins == 0 && !records_[one].held) forget_lost(one);
    }

    void forget_lost(Id id) {
        for (const Id child : records_[id].children) Records::remove(records_[child].parents, id);
        records_[id].children.clear();
        forget(id);
    }

    // --- eviction

    std::int32_t make_room(Bytes need) {
        ++statistics_.evicting;
        statistics_.requested_bytes += need;
        const auto begin = std::chrono::steady_clock::now();
        const std::size_t log_first = victims_.size();
        Decision decision{};
        decision.request = need, decision.runner_up = -1, decision.first_victim = static_cast<std::int64_t>(log_first);
        decision.free_before = main_.free_bytes();
        if (options_.log) decision.largest_free_before = main_.largest_free();
        const std::int32_t piece = options_.window ? evict_window(need, decision) : evict_singly(need);
        const auto ns =
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count();
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

    void count_search() {
        ++statistics_.searches;
        const Bytes all = options_.bytes - small_bytes_;
        if (all > 0) statistics_.free_at_search_ppm += main_.free_bytes() * 1000000 / all;
    }

    void aim() {
        moment_.forecasts = options_.forecasts != 0;
        const Clock reuse = reuses_ == 0 ? 0 : total_reuse_ / reuses_;
        moment_.patience = reuse * options_.patience / 100;
        moment_.forecast_patience = reuse * options_.forecast_patience / 100;
    }

    bool may_move() const { return options_.relocate == 2 || (options_.relocate == 1 && moved_ != nullptr); }

    std::int32_t evict_window(Bytes need, Decision& decision) {
        aim();
        list_rows(main_, moment_, running_, rows_, [&](std::int32_t piece) { derive(piece); });
        const Window window = cheapest_window(rows_.at, need);
        if (may_move()) {
            const Compaction compaction = compactor_.search(main_, rows_, need);
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
            if (moved_ != nullptr) moved_(moved_context_, main_.at(used).owner, from, to, main_.at(used).bytes);
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

    Options options_;
    Bytes small_bytes_ = 0;
    Pieces main_, small_;
    Compactor compactor_;
    Moved moved_ = nullptr;
    void* moved_context_ = nullptr;
    Records records_;
    Classes classes_;
    Moment moment_;
    Statistics statistics_{};
    Evicted callback_ = nullptr;
    void* context_ = nullptr;
    Clock total_reuse_ = 0;
    std::int64_t reuses_ = 0;
    bool right_ = true, running_ = true;
    Cost total_cost_ = 0;
    Bytes total_bytes_ = 0, used_bytes_ = 0;
    std::uint64_t random_ = 88172645463325252ULL;
    std::vector<Id> doomed_, forgotten_, last_victims_;
    std::vector<std::int32_t> roots_, candidates_;
    Rows rows_;
    std::vector<Decision> decisions_;
    std::vector<Victim> victims_;
};

}  // namespace tightrope_evict
