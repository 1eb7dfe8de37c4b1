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
// Complexity Placing: the free pieces. Evicting: the pieces, and the border of the classes that change; with
//            `pairs`, for each window that is the cheapest so far also what depends on its storages.
// Gaps       Of what goes together only those count as pairs of which one is made from the other at once. Of
//            victims of equal cost per byte, which goes first decides how much the last one frees beyond what
//            a step needs; that is chance here, so DTR or DTE may recompute less where few storages go. Tried
//            without gain: weighing what is freed beyond the request less or more than what was asked, other
//            powers of staleness, pairs by more than their price.
//
// Not thread-safe. The callback `evicted` must not call back into the arena.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "evict_room.hpp"

namespace tightrope_evict {

class Arena : public RoomMaker {
  public:
    explicit Arena(const Options& options) : RoomMaker(options) {}

    // Another policy from now on; the sizes of the arena stay.
    void set_options(const Options& options) {
        const Options before = options_;
        options_ = options;
        options_.bytes = before.bytes, options_.small_bytes = before.small_bytes;
        options_.small_limit = before.small_limit, options_.log = before.log;
    }

    // --- an op is about to run: decides at which end its storages go.
    // Where storages may move, it also makes room for `bytes`, as what it reads may move only now: a hole for the
    // `largest` of its storages where another one holds the rest, or one for all.
    void begin_op(Cost cost, Bytes bytes, Bytes largest, std::int64_t flags) {
        choose_end(cost, bytes, flags);
        const Bytes all = round_up(bytes), most = largest > 0 ? std::min(all, round_up(largest)) : all;
        if (!may_move() || bytes <= 0 || main_.fit(all, false) != kNone) return;
        running_ = false;
        if (most == all || !make_room_apart(most, all - most)) make_room(all);
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

    // --- places a new storage; -1: it fits nowhere and nothing (more) can be evicted. One that no op makes stays
    // where it is: `aside`, in the first hole, it does not divide what is free behind.
    Id place(Bytes bytes, bool aside = false) {
        const Bytes need = round_up(bytes);
        ++statistics_.placed;
        const bool right = options_.two_ends && right_ && !aside;
        if (small_bytes_ > 0 && need <= options_.small_limit) {
            const std::int32_t piece = small_.fit(need, false);
            if (piece != kNone) return adopt(small_, small_.take(piece, need, kNone, false), need, true);
        }
        std::int32_t piece = aside ? main_.fit(need, false) : fit(need, right);
        if (piece == kNone) piece = make_room(need);
        if (piece == kNone) {
            ++statistics_.failed;
            return kNone;
        }
        return adopt(main_, main_.take(piece, need, kNone, right), need, false);
    }

    // --- what the arena would have to grow by for a storage to find a hole; 0: it finds one, or it may not grow.
    // At most `room`: where that is too little for a hole at the end, for the free bytes to suffice once moved together.
    Bytes missing(Bytes bytes, Bytes room) const {
        const Bytes need = round_up(bytes);
        if (small_bytes_ > 0 || main_.fit(need, false) != kNone) return 0;
        const Bytes at_end = need - main_.free_at_end(), in_all = need - main_.free_bytes();
        if (at_end <= room) return at_end;
        return may_move() && in_all <= room ? std::max<Bytes>(in_all, 0) : 0;
    }

    void grow(Bytes bytes) {
        main_.extend(bytes);
        options_.bytes += bytes;
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

    // --- somebody knows its address for a while, whatever its pins; returns whether somebody did before.
    bool hold_still(Id id, bool still) {
        const bool before = records_[id].rooted;
        records_[id].rooted = still;
        refresh(id);
        return before;
    }

    // --- its bytes stay when it is released, until they are evicted, as long as something is made from it.
    void keep(Id id) { records_[id].kept = true; }

    void advance(Clock ns, bool again) {
        moment_.now += ns;
        if (!again) moment_.base += ns;
    }

    void forecast(Id id, Clock next_use) {
        Record& record = records_[id];
        record.next_use = next_use;
        if (record.piece != kNone) piece_of(record).next_use = next_use;
    }

    // --- nobody outside refers to it any more. Returns whether its bytes are free (else they stay, as
    // something that is held could not be made again without them or a plan keeps them, until the record is forgotten).
    bool release(Id id) {
        Record& record = records_[id];
        if (note_released && record.named) released_.push_back(id);
        record.held = false;
        record.pins = 0;
        if (!record.named || record.children.empty()) {
            free_piece(id);
            forget(id);
            return true;
        }
        if (record.kept && record.recomputable && record.piece != kNone) {
            refresh(id);
            return false;
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

    // --- named storages that were released since the last call, where they are noted.
    std::int64_t take_released(std::int64_t* out, std::int64_t capacity) {
        const std::int64_t count = std::min<std::int64_t>(capacity, static_cast<std::int64_t>(released_.size()));
        std::copy_n(released_.begin(), count, out);
        released_.erase(released_.begin(), released_.begin() + count);
        return count;
    }

    bool note_released = false;

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
    double mean_rate() const {
        return total_bytes_ == 0 ? 0.0 : static_cast<double>(total_cost_) / static_cast<double>(total_bytes_);
    }

    std::int32_t fit(Bytes need, bool right) const {
        return options_.best_fit ? main_.best_fit(need, right) : main_.fit(need, right);
    }

    std::vector<Id> released_;
    bool right_ = true;
    Cost total_cost_ = 0;
    Bytes total_bytes_ = 0;
};

}  // namespace tightrope_evict
