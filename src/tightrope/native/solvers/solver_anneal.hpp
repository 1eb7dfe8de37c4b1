// Simulated annealing over sets of recomputations; the sum of bytes over the limit has a price that
// follows whether the set fits.
#pragma once
#include "solver_greedy.hpp"

#include <cmath>

namespace tightrope {

constexpr double kPace = 1.005;  // of the price of bytes, every 64 moves: faster ones end in worse sets

enum class Mode : int { kAnneal = 0, kShrink = 1, kRebuild = 2 };

class Anneal : public Greedy {
  public:
    using Greedy::Greedy;
    std::vector<Pair> best;
    double best_ns = kInf, best_peak = kInf;

    void begin(double limit, std::uint64_t seed, i64 iterations, Mode mode, double heat) {
        profile.set_limit(limit);
        random_.state = seed * 0x9E3779B97F4A7C15ULL + 0x1234567;
        total_ = iterations, done_ = 0, mode_ = mode, heat_ = heat;
        best.clear();
        best_ns = best_peak = kInf;
        double bytes = 0;
        for (i64 s : evictable_) bytes += profile.size[s];
        bytes_unit_ = evictable_.empty() ? 1 : bytes / static_cast<double>(evictable_.size());
        ns_unit_ = price_unit();
        weight_ = 1;
        keep();
    }

  protected:
    i64 total_ = 0, done_ = 0;
    Mode mode_ = Mode::kAnneal;
    double heat_ = 1, temperature_ = 1, weight_ = 1, bytes_unit_ = 1, ns_unit_ = 1;
    std::vector<Pair> chain_;

    void anneal(i64 stop) {
        for (; done_ < stop; ++done_) {
            if (done_ % 64 == 0) adapt();
            const double excess = profile.excess, ns = profile.ns;
            log_.clear();
            move();
            if (log_.empty()) continue;
            const double delta = (profile.ns - ns) / ns_unit_ + weight_ * (profile.excess - excess) / bytes_unit_;
            if (delta > 0 && random_.uniform() >= std::exp(-delta / temperature_))
                undo();
            else
                keep();
        }
    }

    void cool() {
        const double share = static_cast<double>(done_) / static_cast<double>(std::max<i64>(total_, 1));
        temperature_ = heat_ * std::pow(0.01 / heat_, share);
    }

    void keep() {
        if (profile.excess > 0.5) return;
        if (mode_ == Mode::kShrink) {
            best_peak = profile.peak();
            best_ns = profile.ns;
            best = pairs();
            profile.set_limit(best_peak - std::max(1.0, 0.002 * best_peak));
        } else if (profile.ns < best_ns) {
            best_ns = profile.ns;
            best_peak = profile.limit;
            best = pairs();
        }
    }

  private:
    double price_unit() const {
        if (!profile.again_key.empty()) return std::max(1.0, profile.ns / static_cast<double>(profile.again_key.size()));
        double ns = 0;
        for (i64 s : evictable_) ns += profile.again_ns[profile.producer[s]];
        return evictable_.empty() ? 1 : std::max(1.0, ns / static_cast<double>(evictable_.size()));
    }

    void adapt() {
        cool();
        weight_ = std::clamp(profile.excess > 0 ? weight_ * kPace : weight_ / kPace, 1e-3, 1e6);
    }

    void move() {
        const bool empty = profile.again_key.empty();
        const double choice = random_.uniform();
        if (empty || choice < 0.35) {
            evict(profile.excess > 0.5 ? any_over() : any_event());
        } else if (choice < 0.50) {
            remove(profile.pair(profile.again_key[any_pair()]));
        } else if (choice < 0.75) {
            shift_pair();
        } else if (choice < 0.90) {
            remove(profile.pair(profile.again_key[any_pair()]));
            evict(profile.excess > 0.5 ? any_over() : any_event());
        } else {
            add_input();
        }
    }

    // Drop one idle storage at event `at`, preferring many bytes per nanosecond of recomputation.
    void evict(i64 at) {
        if (at < 0 || evictable_.empty()) return;
        const i64 rounds = random_.uniform() < 0.7 ? 4 : 1;
        i64 chosen = -1, stage = -1;
        double most = -1;
        for (i64 probe = 0, found = 0; probe < 16 && found < rounds; ++probe) {
            const i64 s = any_idle(at), use = next_use(s, at);
            if (use < 0) continue;
            ++found;
            const double worth = profile.size[s] / (1 + profile.again_ns[profile.producer[s]]) * random_.uniform();
            if (worth > most) most = worth, chosen = s, stage = use;
        }
        if (chosen < 0) return;
        const i64 op = profile.producer[chosen];
        chain_.clear();
        if (random_.uniform() < 0.4 && collect(stage, op, at, kLongestMove, chain_))
            for (const Pair& p : chain_) add(p);
        else
            add({stage, op});
    }

    void shift_pair() {
        const Pair p = profile.pair(profile.again_key[any_pair()]);
        i64 stage = -1;
        if (random_.uniform() < 0.5) {
            stage = p.stage + (random_.below(2) != 0 ? 1 : -1) * (1 + random_.below(5));
        } else {
            const i64* from = profile.again_creates.begin(p.op);
            const i64 outputs = profile.again_creates.end(p.op) - from;
            if (outputs == 0) return;
            const auto& readers = profile.read[from[random_.below(outputs)]];
            if (readers.empty()) return;
            stage = profile.stage_of(readers[random_.below(static_cast<i64>(readers.size()))]);
        }
        if (stage == p.stage || stage >= profile.num_ops || !profile.allowed(stage, p.op)) return;
        if (profile.has(profile.key(stage, p.op))) return;
        remove(p);
        add({stage, p.op});
    }

    void add_input() {
        const Pair p = profile.pair(profile.again_key[any_pair()]);
        const i64* from = profile.again_reads.begin(p.op);
        const i64 inputs = profile.again_reads.end(p.op) - from;
        if (inputs == 0) return;
        const i64 s = from[random_.below(inputs)];
        if (!profile.pinned[s] && profile.producer[s] != p.op) add({p.stage, profile.producer[s]});
    }
};

}  // namespace tightrope
