// Ruin and recreate: take out a few neighbouring recomputations, fill the hole again with what buys most
// bytes per nanosecond, leave out what is not needed any more; accept by time alone, as in annealing.
//
// Every candidate is tried on the profile, so its worth counts what it really frees over the limit,
// inputs that it keeps alive included.
#pragma once
#include "solver_anneal.hpp"

namespace tightrope {

class Rebuild : public Anneal {
  public:
    using Anneal::Anneal;

    // Spend at most about `iterations` changes of the set; returns how many are left of those asked for.
    i64 run(i64 iterations) {
        const i64 stop = std::min(done_ + iterations, total_);
        if (mode_ != Mode::kRebuild)
            anneal(stop);
        else
            while (done_ < stop) rebuild();
        return total_ - done_;
    }

  private:
    std::vector<Pair> least_chain_;

    void rebuild() {
        cool();
        ++done_;
        if (profile.excess > 0.5) return repair();
        if (profile.again_key.empty()) {
            done_ = total_;
            return;
        }
        const double ns = profile.ns;
        log_.clear();
        const i64 hole = 1 + random_.below(random_.below(3) == 0 ? 8 : 3);
        ruin(hole);
        const bool filled = fill(3 * hole + 4);
        if (filled) shed();
        done_ += static_cast<i64>(log_.size());
        if (!filled || (profile.ns > ns && random_.uniform() >= std::exp((ns - profile.ns) / (ns_unit_ * temperature_))))
            undo();
        else
            keep();
    }

    // Make a set fit that does not: evict where bytes exceed the limit, in another order every time.
    void repair() {
        const i64 most = 64 + 2 * static_cast<i64>(profile.again_key.size());
        log_.clear();
        if (fill(most)) {
            done_ += static_cast<i64>(log_.size());
            prune();
            keep();
        } else {
            done_ += static_cast<i64>(log_.size()) + (total_ >> 3);
            undo();
        }
    }

    // Take out `count` of the pairs that stand nearest to a random one.
    void ruin(i64 count) {
        const i64 size = static_cast<i64>(profile.again_key.size());
        const i64 reach = std::min(size, 2 * count), first = std::clamp<i64>(any_pair() - reach / 2, 0, size - reach);
        std::vector<i64> keys(profile.again_key.begin() + first, profile.again_key.begin() + first + reach);
        for (i64 i = 0; i < std::min(count, reach); ++i) {
            std::swap(keys[i], keys[i + random_.below(reach - i)]);
            remove(profile.pair(keys[i]));
        }
    }

    // Evict at events over the limit until none is left; at most `most` times.
    bool fill(i64 most) {
        for (; profile.excess > 0.5 && most > 0; --most)
            if (!fill_at(any_over())) return false;
        return profile.excess <= 0.5;
    }

    bool fill_at(i64 at) {
        double least = kInf;
        least_chain_.clear();
        for (i64 probe = 0, tried = 0; probe < 24 && tried < 6; ++probe) {
            const i64 s = any_idle(at), stage = next_use(s, at);
            if (stage < 0) continue;
            chain_.clear();
            if (!collect(stage, profile.producer[s], at, random_.below(2) == 0 ? kLongestMove : 1, chain_)) chain_.resize(1);
            ++tried;
            const double score = worth() * (1 + random_.uniform());
            if (score < least) least = score, least_chain_ = chain_;
        }
        for (const Pair& p : least_chain_) add(p);
        return least < kInf;
    }

    // Time per byte freed over the limit by the chain; infinite when it frees none.
    double worth() {
        const double ns = profile.ns, excess = profile.excess;
        const std::size_t before = log_.size();
        for (const Pair& p : chain_) add(p);
        const double spent = profile.ns - ns, freed = excess - profile.excess;
        done_ += static_cast<i64>(log_.size() - before);
        undo(before);
        return freed > 0.5 ? (spent + 1) / freed : kInf;
    }

    // Leave out pairs near the change that are not needed, most expensive first.
    void shed() {
        i64 low = profile.end_key, high = 0;
        for (const Change& c : log_) low = std::min(low, profile.key(c.pair.stage, 0)), high = std::max(high, profile.key(c.pair.stage, c.pair.stage));
        const auto begin = std::lower_bound(profile.again_key.begin(), profile.again_key.end(), low);
        const auto end = std::upper_bound(begin, profile.again_key.end(), high);
        std::vector<i64> keys(begin, end);
        std::sort(keys.begin(), keys.end(), [&](i64 a, i64 b) {
            const double x = profile.again_ns[profile.op_of(a)], y = profile.again_ns[profile.op_of(b)];
            return x > y || (x == y && a < b);
        });
        if (keys.size() > 12) keys.resize(12);
        for (const i64 at : keys) {
            ++done_;
            remove(profile.pair(at));
            if (profile.excess > 0.5) undo(log_.size() - 1);
        }
    }
};

}  // namespace tightrope
