// The storages of an eviction arena: where their bytes are, what they cost, and which records go with them.
//
// Pieces, records and classes are kept in step here; `evict_room.hpp` chooses who goes, `evict.hpp` is the
// arena as its callers see it.
//
//     free_piece   the bytes go, the record stays
//     evict_links  a storage without bytes joins the classes of evicted storages beside it
//     forget       the record goes, and with it what only it needed
//     lose         the bytes are gone for good: what was made from them stays
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "evict_options.hpp"
#include "evict_pieces.hpp"
#include "evict_records.hpp"
#include "evict_search.hpp"

namespace tightrope_evict {

class Storages {
  public:
    using Evicted = void (*)(void* context, Id id);

    explicit Storages(const Options& options)
        : options_(options),
          small_bytes_(options.small_bytes / kAlignment * kAlignment),
          main_(0, options.bytes / kAlignment * kAlignment - small_bytes_),
          small_(options.bytes / kAlignment * kAlignment - small_bytes_, small_bytes_) {}

    void on_evicted(Evicted callback, void* context) { callback_ = callback, context_ = context; }

    // --- it will never be made again: it stays, and no longer needs its parents.
    void settle(Id id) {
        Record& record = records_[id];
        record.named = true;
        record.recomputable = false;
        refresh(id);
        unlink_parents(id);
    }

    void touch(Id id) {
        Record& record = records_[id];
        if (record.named && moment_.now > record.touched) total_reuse_ += moment_.now - record.touched, ++reuses_;
        record.touched = moment_.now;
        if (record.piece != kNone) piece_of(record).touched = moment_.now;
    }

    // --- drops the bytes of a storage that may be made again, without a search.
    void evict(Id id) {
        if (records_[id].piece == kNone) return;
        free_piece(id);
        evict_links(id);
        tell(id);
    }

    // --- the same where it may go now.
    void evict_idle(Id id) {
        if (records_.valid(id) && records_[id].piece != kNone && !piece_of(records_[id]).wall) evict(id);
    }

  protected:
    Piece& piece_of(const Record& record) { return (record.small ? small_ : main_).at(record.piece); }

    Id adopt(Pieces& pieces, std::int32_t piece, Bytes need, bool small) {
        const Id id = records_.make();
        Record& record = records_[id];
        record.bytes = need, record.piece = piece, record.small = small, record.held = true;
        Piece& made = pieces.at(piece);
        made.owner = id, made.stale = made.wall = made.fixed = made.rooted = true, made.next_use = -1;
        made.unheld = false;
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
        piece.unheld = record.named && !record.held;
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

    // Own cost and that of every distinct class of evicted storages beside it, or of those alone that depend on it or it on them.
    Cost derive_cost(Id id) {
        const Record& record = records_[id];
        Cost total = record.cost;
        if (!options_.neighbours) return total;
        if (options_.neighbours == 2) return total + made_before(id) + made_after(id) / 2;
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

    // Visits evicted storages that one step after another of `beside` leads to, each once and the first 1,024.
    template <typename Visit>
    void walk_evicted(Id id, std::vector<Id> Record::* beside, Visit visit) {
        const std::uint64_t stamp = records_.stamp();
        int left = kLongestWalk;
        open_.assign(1, id);
        while (!open_.empty()) {
            const Id at = open_.back();
            open_.pop_back();
            for (const Id other : records_[at].*beside) {
                Record& record = records_[other];
                if (record.node == kNone || record.seen == stamp || --left < 0) continue;
                record.seen = stamp;
                visit(record);
                open_.push_back(other);
            }
        }
    }

    // What has to run again before `id` can. Where its results take much of the arena they push each other out
    // on the way, and run more than once.
    Cost made_before(Id id) {
        Cost total = 0;
        Bytes way = 0;
        walk_evicted(id, &Record::parents, [&](const Record& record) { total += record.cost, way += record.bytes; });
        return static_cast<Cost>(static_cast<double>(total) * crowded(way));
    }

    double crowded(Bytes way) const {
        return 1.0 + kCrowding * static_cast<double>(way) / static_cast<double>(options_.bytes);
    }

    // What evicting two that depend on each other adds to the cost of each: as if one went after the other.
    Cost more_for_child(const Record& parent) const {
        return options_.neighbours == 2 ? static_cast<Cost>(static_cast<double>(parent.cost) * crowded(parent.bytes))
                                        : parent.cost;
    }
    Cost more_for_parent(const Record& child) const { return options_.neighbours == 2 ? child.cost / 2 : child.cost; }

    // Visits what may go and depends on `id`, or `id` on it: its piece, and what both weigh more together.
    template <typename Visit>
    void visit_pairs(Id id, Visit visit) {
        const Record& record = records_[id];
        const auto meet = [&](const Record& parent, const Record& child, const Record& other) {
            if (other.piece == kNone || other.small || piece_of(other).wall) return;
            visit(other.piece, [&] {
                return weight_of(moment_, piece_of(child), more_for_child(parent)) +
                       weight_of(moment_, piece_of(parent), more_for_parent(child));
            });
        };
        for (const Id parent : record.parents) meet(records_[parent], record, records_[parent]);
        for (const Id child : record.children) meet(record, records_[child], records_[child]);
    }

    // What cannot run again without `id`, by half: some of it runs again while `id` is there.
    Cost made_after(Id id) {
        Cost total = 0;
        walk_evicted(id, &Record::children, [&](const Record& record) { total += record.cost; });
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
        else if (options_.keep_temporaries == 0 && is_temporary(id)) evict(id);
    }

    // Bytes that nobody holds and that can be made again.
    bool is_temporary(Id id) const {
        const Record& record = records_[id];
        return !record.held && record.pins == 0 && record.recomputable && record.piece != kNone;
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

    // The largest storage that nobody holds and that cannot be made again, where nothing that is held and evicted
    // needs it; kNone.
    Id spare_unheld() {
        Id best = kNone;
        for (Id id = 0; id < records_.size(); ++id) {
            const Record& record = records_[id];
            const bool unheld = record.used && record.named && !record.held && record.pins == 0;
            if (!unheld || record.recomputable || record.rooted || record.piece == kNone) continue;
            if (best != kNone && record.bytes <= records_[best].bytes) continue;
            bool possible = true;
            walk_lost(id, [&](Id child) {
                const Record& made = records_[child];
                possible = possible && (made.held ? made.resident() : made.pins == 0);
            });
            if (possible) best = id;
        }
        return best;
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

    Options options_;
    Bytes small_bytes_ = 0;
    Pieces main_, small_;
    Records records_;
    Classes classes_;
    Moment moment_;
    Statistics statistics_{};
    Clock total_reuse_ = 0;
    std::int64_t reuses_ = 0;
    Bytes used_bytes_ = 0;
    std::vector<Id> forgotten_, last_victims_;

  private:
    Evicted callback_ = nullptr;
    void* context_ = nullptr;
    static constexpr int kLongestWalk = 1024;
    static constexpr double kCrowding = 4.0;  // of 0, 2, 3, 4, 6, 8, 16: fewest points above DTR and DTE on drawn families
    std::vector<Id> doomed_, open_;
    std::vector<std::int32_t> roots_;
};

}  // namespace tightrope_evict
