// Records of storages: what makes each one again, from what, and who needs it for being made again.
//
//     resident  its bytes are in a piece of the arena (or outside, for what the arena does not hold)
//     evicted   no bytes; may be made again as long as it is recomputable
//     held      somebody outside still has a reference to it
//     banished  neither held nor needed: the record is gone, and what only it needed goes with it
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "evict_classes.hpp"

namespace tightrope_evict {

struct Record {
    Bytes bytes = 0;
    Cost cost = 0;         // of the op that makes it
    Clock touched = 0;
    Clock next_use = -1;   // forecast
    std::int32_t piece = kNone;
    std::int32_t node = kNone;  // in Classes, while evicted
    std::int32_t pins = 0;
    bool used = false;          // this record exists
    bool small = false;         // its piece is in the area for small storages
    bool outside = false;       // its bytes are not in the arena; never evicted
    bool held = false;
    bool named = false;         // more than an allocation: an op's result, or something outside
    bool recomputable = false;
    bool kept = false;          // stays after its release, for ops that a plan runs again
    bool rooted = false;        // somebody knows its address: it must not move
    std::uint64_t seen = 0;     // stamp of the last walk that met it
    std::vector<Id> parents, children;

    bool resident() const { return outside || piece != kNone; }
};

class Records {
  public:
    Id make() {
        Id id;
        if (spare_.empty()) {
            id = static_cast<Id>(records_.size());
            records_.emplace_back();
        } else {
            id = spare_.back();
            spare_.pop_back();
            const std::uint64_t seen = records_[id].seen;
            records_[id] = Record{};
            records_[id].seen = seen;
        }
        records_[id].used = true;
        ++count_;
        return id;
    }

    // The id of a named record is used again only after `recycle`, as others may still know it.
    void drop(Id id) {
        records_[id].used = false;
        if (!records_[id].named) spare_.push_back(id);
        --count_;
    }

    void recycle(Id id) { spare_.push_back(id); }

    bool valid(Id id) const { return id >= 0 && id < size() && records_[id].used; }
    Id size() const { return static_cast<Id>(records_.size()); }
    std::int64_t count() const { return count_; }
    Record& operator[](Id id) { return records_[id]; }
    const Record& operator[](Id id) const { return records_[id]; }
    std::uint64_t stamp() { return ++stamp_; }

    void link(Id parent, Id child) {
        if (std::find(records_[child].parents.begin(), records_[child].parents.end(), parent) !=
            records_[child].parents.end())
            return;
        records_[child].parents.push_back(parent);
        records_[parent].children.push_back(child);
    }

    static void remove(std::vector<Id>& ids, Id id) {
        const auto at = std::find(ids.begin(), ids.end(), id);
        if (at == ids.end()) return;
        *at = ids.back();
        ids.pop_back();
    }

  private:
    std::vector<Record> records_;
    std::vector<Id> spare_;
    std::int64_t count_ = 0;
    std::uint64_t stamp_ = 0;
};

}  // namespace tightrope_evict
