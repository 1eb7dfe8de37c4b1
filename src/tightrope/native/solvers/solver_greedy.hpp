// Greedy eviction: walk the events; where bytes exceed the limit, drop the idle storage with the least
// score and plan its recomputation, with dead inputs, before its next reader.
#pragma once
#include "solver_moves.hpp"

namespace tightrope {

class Greedy : public Moves {
  public:
    using Moves::Moves;

    // Returns whether every event fits. With `far`, chains may be long where no short one is left, until
    // that finds nothing either.
    bool greedy(double limit, i64 rule, bool far) {
        profile.clear();
        profile.set_limit(limit);
        latest_.assign(profile.num_storages, -1);
        for (const i64 s : evictable_)
            if (!profile.read[s].empty()) latest_[s] = profile.stage_of(profile.read[s].back());
        std::vector<Pair> chain;
        for (i64 at = over_from(0); at >= 0;) {
            cheapest(at, rule, kLongest, chain);
            if (far && chain.empty()) {
                cheapest(at, rule, kFarthest, chain);
                far = !chain.empty();
            }
            for (const Pair& p : chain) {
                profile.add(p);
                for (const i64* s = profile.again_reads.begin(p.op); s != profile.again_reads.end(p.op); ++s)
                    latest_[*s] = std::max(latest_[*s], p.stage);
            }
            at = over_from(chain.empty() ? at + 1 : at);
        }
        prune();
        return profile.excess <= 0;
    }

    // Remove every pair that costs time without being needed for bytes, most expensive first.
    void prune() {
        std::vector<i64> keys = profile.again_key;
        std::stable_sort(keys.begin(), keys.end(), [&](i64 a, i64 b) {
            return profile.again_ns[profile.op_of(a)] > profile.again_ns[profile.op_of(b)];
        });
        for (i64 at : keys) {
            const double before = profile.excess;
            profile.remove(profile.pair(at));
            if (profile.excess > before) profile.add(profile.pair(at));
        }
    }

  private:
    std::vector<i64> latest_;  // stage of the last reader of each storage, for a quick look at what it can gain

    // The time from which a score is no less than `least`.
    static double enough(i64 rule, double least, double bytes, double distance) {
        switch (rule) {
            case 0: return least * bytes * distance;
            case 1: return least * bytes;
            case 4: return least * distance;
            default: return kInf;
        }
    }

    static double score(i64 rule, double ns, double bytes, double distance) {
        switch (rule) {
            case 0: return ns / (bytes * distance);
            case 1: return ns / bytes;
            case 2: return -bytes;
            case 3: return -distance;
            default: return ns / distance;
        }
    }

    // The chain of at most `most` ops that drops a storage at `at` for the least score; empty = there is none.
    void cheapest(i64 at, i64 rule, std::size_t most, std::vector<Pair>& chain) const {
        std::vector<Pair> candidate;
        chain.clear();
        double least = kInf;
        const i64 now = profile.stage_of(at);
        for (i64 s : evictable_) {
            const i64 op = profile.producer[s], reach = latest_[s] - now + 1;
            if (op >= now || reach <= 0) continue;
            if (score(rule, 1 + profile.again_ns[op], profile.size[s], static_cast<double>(reach)) >= least) continue;
            candidate.clear();
            const double score = price(s, at, rule, most, least, candidate);
            if (score < least) least = score, chain.swap(candidate);
        }
    }

    // Infinite where s cannot be dropped at `at`, or only for a score that is no less than `least`.
    double price(i64 s, i64 at, i64 rule, std::size_t most, double least, std::vector<Pair>& chain) const {
        const i64 stage = next_use(s, at), op = profile.producer[s];
        if (stage < 0) return kInf;
        const double distance = static_cast<double>(stage - profile.stage_of(at) + 1), bytes = profile.size[s];
        // The chain can only add to the time of op itself; most candidates end here.
        if (score(rule, 1 + profile.again_ns[op], bytes, distance) >= least) return kInf;
        if (!collect(stage, op, at, most, chain, enough(rule, least, bytes, distance))) return kInf;
        double ns = 1;
        for (const Pair& p : chain) ns += profile.again_ns[p.op];
        return score(rule, ns, bytes, distance);
    }
};

}  // namespace tightrope
