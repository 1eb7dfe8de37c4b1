// What every search does to a set of recomputations: find what can be dropped at an event, collect what
// must run again for it, change the set, take changes back.
#pragma once
#include "solver_profile.hpp"
#include "solver_random.hpp"

#include <algorithm>
#include <vector>

namespace tightrope {

// Most ops in one chain of recomputations: of the greedy, of the greedy that reaches far, of a move.
constexpr std::size_t kLongest = 48, kFarthest = 512, kLongestMove = 12;

struct Change {
    bool added;
    Pair pair;
};

class Moves {
  public:
    Profile profile;

    explicit Moves(Profile&& p) : profile(std::move(p)), width_(std::max<i64>(1, profile.num_ops / 512)) {
        idle_.resize(static_cast<std::size_t>(profile.num_ops / width_ + 1));
        walked_.resize(static_cast<std::size_t>(profile.num_ops));
        for (i64 s = 0; s < profile.num_storages; ++s) {
            const i64 op = profile.producer[s];
            if (op < 0 || profile.pinned[s] || profile.size[s] <= 0 || profile.last[op] <= op) continue;
            evictable_.push_back(s);
            const auto& readers = profile.read[s];
            i64 from = op;
            for (const i64 reader : readers) {
                const i64 to = std::min(profile.stage_of(reader), profile.num_ops - 1);
                if (to > from + 1)
                    for (i64 b = (from + 1) / width_; b <= (to - 1) / width_; ++b)
                        if (idle_[b].empty() || idle_[b].back() != s) idle_[b].push_back(s);
                from = to;
            }
        }
    }

    void load(const i64* pairs, i64 count) {
        profile.clear();
        for (i64 i = 0; i < count; ++i) profile.add({pairs[2 * i], pairs[2 * i + 1]});
    }

    std::vector<Pair> pairs() const {
        std::vector<Pair> result;
        for (i64 at : profile.again_key) result.push_back(profile.pair(at));
        return result;
    }

  protected:
    const i64 width_;                      // stages per row of idle_
    std::vector<i64> evictable_;           // storages that may be dropped and made again
    std::vector<std::vector<i64>> idle_;   // those that wait for a reader in the base order, by stage
    std::vector<Change> log_;
    Random random_;
    mutable std::vector<i64> walked_;      // the last walk that collected each op
    mutable i64 walk_ = 0;
    mutable double spent_ = 0;             // time of the ops collected in this walk

    // First event at or after `from` over the limit, or -1.
    i64 over_from(i64 from) const {
        i64 slot = rank(profile.again_key, from);
        const i64 stage = profile.base.first_over(profile.stage_from(from), profile.limit);
        const i64 key = stage < profile.num_ops ? profile.key(stage, stage) : profile.end_key;
        while (slot < static_cast<i64>(profile.again_key.size()) && profile.again[slot] <= profile.limit) ++slot;
        const i64 again = slot < static_cast<i64>(profile.again_key.size()) ? profile.again_key[slot] : profile.end_key;
        const i64 found = std::min(key, again);
        return found == profile.end_key ? -1 : found;
    }

    i64 any_event() {
        const i64 events = profile.num_ops + static_cast<i64>(profile.again_key.size());
        const i64 pick = random_.below(events);
        return pick < profile.num_ops ? profile.key(pick, pick) : profile.again_key[pick - profile.num_ops];
    }
    i64 any_over() {
        const i64 at = over_from(any_event());
        return at >= 0 ? at : over_from(0);
    }
    i64 any_pair() { return random_.below(static_cast<i64>(profile.again_key.size())); }

    // A storage that may be idle at stage `at`: one in ten may be any, since re-runs lengthen lifetimes.
    i64 any_idle(i64 at) {
        const auto& row = idle_[std::min(profile.stage_of(at), profile.num_ops - 1) / width_];
        if (row.empty() || random_.below(10) == 0) return evictable_[random_.below(static_cast<i64>(evictable_.size()))];
        return row[random_.below(static_cast<i64>(row.size()))];
    }

    // Stage before which s must be run again when its copy is dropped at event `at`; -1 = it cannot be.
    i64 next_use(i64 s, i64 at) const {
        const i64 op = profile.producer[s];
        if (op >= profile.stage_of(at)) return -1;
        const auto& r = profile.read[s];
        const i64 found = rank(r, at);
        if (found == static_cast<i64>(r.size()) || r[found] == at || r[found] == profile.end_key) return -1;
        const i64 reader = r[found], stage = profile.stage_of(reader), again = profile.key(stage, op);
        if (!profile.allowed(stage, op) || again <= at || profile.has(again)) return -1;
        const auto& m = profile.made[s];
        auto copy = m.end();
        while (copy != m.begin() && *(copy - 1) >= reader) --copy;
        return *(copy - 1) >= at ? -1 : stage;
    }

    // Collect op and every op whose outputs it needs and that are gone by `at`, for re-running at `stage`:
    // at most `most` ops, of less than `ns` together.
    bool collect(i64 stage, i64 op, i64 at, std::size_t most, std::vector<Pair>& chain, double ns = kInf) const {
        if (chain.empty()) ++walk_, spent_ = 0;
        if (walked_[op] == walk_) return true;
        const i64 again = profile.key(stage, op);
        if (!profile.allowed(stage, op) || again <= at || profile.has(again) || chain.size() >= most) return false;
        walked_[op] = walk_;
        spent_ += profile.again_ns[op];
        if (spent_ >= ns) return false;
        chain.push_back({stage, op});
        for (const i64* s = profile.again_reads.begin(op); s != profile.again_reads.end(op); ++s) {
            if (profile.pinned[*s] || profile.copy(*s, again).stop >= at) continue;
            if (profile.producer[*s] == op || !collect(stage, profile.producer[*s], at, most, chain, ns))
                return false;
        }
        return true;
    }

    bool add(Pair p) {
        if (!profile.allowed(p.stage, p.op) || profile.has(profile.key(p.stage, p.op))) return false;
        profile.add(p);
        log_.push_back({true, p});
        return true;
    }
    void remove(Pair p) {
        profile.remove(p);
        log_.push_back({false, p});
    }
    void undo(std::size_t until = 0) {
        for (; log_.size() > until; log_.pop_back())
            if (log_.back().added)
                profile.remove(log_.back().pair);
            else
                profile.add(log_.back().pair);
    }
};

}  // namespace tightrope
