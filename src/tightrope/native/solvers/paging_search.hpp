// Annealing over sets of re-runs and page-ins.
//
// Energy = objective + weight * bytes over the limit (both tiers, summed over runs) + overtime, all
// in units of the mean price of a re-run. The weight rises while nothing fits and falls while
// everything does, so that the walk keeps to the border where good plans are.
#pragma once
#include <cmath>
#include <limits>
#include "paging_model.hpp"

namespace tightrope::paging {

struct Goal {
    i64 limit = 0, tier_limit = 0, ns_limit = 0, by_joules = 0;
    double joule_limit = 0;
    bool rerun = true, page = true;
};

class Search {
  public:
    explicit Search(Tables tables) : tables_(std::move(tables)), evaluate_(tables_) {}

    Decisions current, best;
    double best_value = std::numeric_limits<double>::infinity();

    Cost cost(const Decisions& decisions, i64 limit, i64 tier_limit) {
        return evaluate_(decisions, limit, tier_limit);
    }

    void begin(const Goal& goal, std::uint64_t seed, i64 iterations, double heat) {
        goal_ = goal;
        state_ = seed * 0x9E3779B97F4A7C15ull + 0x632BE59BD9B4E019ull;
        iterations_ = left_ = iterations;
        heat_ = heat;
        best.clear();
        best_value = best_bytes_ = std::numeric_limits<double>::infinity();
        Cost base = evaluate_({}, goal_.limit, goal_.tier_limit);
        scale(base);
        weight_ = 1;
        cost_ = evaluate_(current, goal_.limit, goal_.tier_limit);
        stale_ = false;
        consider();
    }

    i64 run(i64 steps) {
        for (; steps > 0 && left_ > 0; --steps, --left_) {
            double done = 1 - static_cast<double>(left_) / static_cast<double>(iterations_);
            double temperature = heat_ * std::pow(1e-4, done);
            if (left_ % kRestart == 0 && !best.empty() && best_value < std::numeric_limits<double>::infinity())
                restart();
            step(temperature);
            if (left_ % kAdapt == 0) weight_ = std::clamp(weight_ * (fits(cost_) ? 0.9 : 1.1), 0.05, 1e4);
        }
        return left_;
    }

  private:
    static constexpr i64 kAdapt = 64, kRestart = 20000;

    std::uint64_t bits() {
        std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    i64 below(i64 count) { return static_cast<i64>(bits() % static_cast<std::uint64_t>(count)); }
    double unit() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }

    double price(const Decision& d) const {
        const Storage* s = d.page ? &tables_.storages[d.id] : nullptr;
        if (goal_.by_joules)
            return s ? tables_.in_joules[d.id] + tables_.out_joules[d.id]
                     : tables_.watts * 1e-9 * static_cast<double>(tables_.ops[d.id].again_ns);
        return static_cast<double>(s ? s->in_ns + s->out_ns : tables_.ops[d.id].again_ns);
    }

    void scale(const Cost& base) {
        double sum = 0, bytes = 0;
        i64 count = 0, stored = 0;
        for (std::int32_t op = 0; op < static_cast<std::int32_t>(tables_.ops.size()); ++op)
            if (tables_.ops[op].first <= tables_.ops[op].last && goal_.rerun) {
                sum += price({0, 0, op, 0});
                ++count;
            }
        for (std::int32_t s = 0; s < static_cast<std::int32_t>(tables_.storages.size()); ++s)
            if (tables_.storages[s].size) {
                bytes += static_cast<double>(tables_.storages[s].size);
                ++stored;
                if (tables_.storages[s].pageable && goal_.page) {
                    sum += price({0, 1, s, 0});
                    ++count;
                }
            }
        unit_ = std::max(sum / std::max<i64>(count, 1), 1e-30);
        byte_ = 1 / std::max(bytes / std::max<i64>(stored, 1), 1.0);
        base_value_ = value(base);
    }

    double value(const Cost& cost) const {
        return goal_.by_joules ? cost.joules : static_cast<double>(cost.ns);
    }

    double over(const Cost& cost) const {
        double late = goal_.ns_limit ? std::max<double>(0, static_cast<double>(cost.ns - goal_.ns_limit)) /
                                           static_cast<double>(goal_.ns_limit)
                                     : 0;
        double hot = goal_.joule_limit > 0 ? std::max(0.0, cost.joules / goal_.joule_limit - 1) : 0;
        double bytes = static_cast<double>(cost.excess + cost.tier_excess) * byte_;
        return bytes + 100 * (late + hot) + (late + hot > 0 ? 1 : 0);
    }

    bool fits(const Cost& cost) const {
        return cost.excess == 0 && cost.tier_excess == 0 &&
               (!goal_.ns_limit || cost.ns <= goal_.ns_limit) &&
               (goal_.joule_limit <= 0 || cost.joules <= goal_.joule_limit);
    }

    double energy(const Cost& cost) const {
        return (value(cost) - base_value_) / unit_ + weight_ * over(cost);
    }

    void consider() {
        if (!fits(cost_)) return;
        double now = value(cost_), bytes = static_cast<double>(cost_.peak);
        if (now < best_value || (now == best_value && bytes < best_bytes_)) {
            best = current;
            best_value = now;
            best_bytes_ = bytes;
        }
    }

    void restart() {
        current = best;
        cost_ = evaluate_(current, goal_.limit, goal_.tier_limit);
        stale_ = false;
    }

    void step(double temperature) {
        before_ = current;
        if (!move()) {
            current = before_;
            return;
        }
        Cost was = cost_;
        double old = energy(was);
        cost_ = evaluate_(current, goal_.limit, goal_.tier_limit);
        double change = energy(cost_) - old;
        if (change <= 0 || unit() < std::exp(-change / temperature)) {
            stale_ = false;
            consider();
        } else {
            current = before_;
            cost_ = was;
            stale_ = true;
        }
    }

    bool move() {
        double choice = unit();
        if (current.empty() || choice < 0.4) return relieve();
        if (choice < 0.6) return remove();
        if (choice < 0.75) return shift();
        if (choice < 0.9) return exchange();
        if (tables_.engines && choice < 0.96) return hide();
        return remove() && relieve();
    }

    bool add(Decision d) {
        auto at = std::lower_bound(current.begin(), current.end(), d);
        if (at != current.end() && at->same(d)) return false;
        current.insert(at, d);
        return true;
    }

    bool allowed(const Decision& d) const {
        if (d.stage < 0 || d.stage >= static_cast<std::int32_t>(tables_.ops.size())) return false;
        if (d.page) {
            const Storage& s = tables_.storages[d.id];
            return goal_.page && s.pageable && d.stage > s.producer;
        }
        const Op& op = tables_.ops[d.id];
        return goal_.rerun && op.first <= d.stage && d.stage <= op.last;
    }

    // Evaluations of refused moves leave the tables of another set behind; bring back those of this one.
    void refresh() {
        if (stale_) evaluate_(before_, goal_.limit, goal_.tier_limit);
        stale_ = false;
    }

    bool relieve() {
        refresh();
        const std::vector<Run>& runs = evaluate_.runs();
        i64 k = -1, seen = 0;
        const std::vector<i64>& memory = evaluate_.memory();
        for (std::size_t i = 0; i < runs.size(); ++i)
            if (memory[i] > goal_.limit && below(++seen) == 0) k = static_cast<i64>(i);
        if (k < 0) k = below(static_cast<i64>(runs.size()));
        std::int32_t chosen = -1;
        double most = -1;
        const std::vector<Copy>& copies = evaluate_.copies();
        for (std::size_t c = 0; c < copies.size(); ++c) {
            const Copy& copy = copies[c];
            if (copy.made >= k || copy.last <= k || reads(runs[k], copy.storage)) continue;
            double worth = static_cast<double>(tables_.storages[copy.storage].size) * byte_ *
                           (0.05 + unit());
            if (unit() < 0.7) worth /= 0.01 + cheapest(copy.storage) / unit_;
            if (worth > most) {
                most = worth;
                chosen = static_cast<std::int32_t>(c);
            }
        }
        return chosen >= 0 && bring_back(copies[chosen].storage, k);
    }

    bool reads(const Run& run, i64 storage) const {
        if (run.kind == 2) return run.id == storage;
        return (run.kind ? tables_.again_reads : tables_.reads).has(run.id, storage);
    }

    double cheapest(std::int32_t storage) const {
        Decision page{0, 1, storage, 0};
        Decision again{0, 0, static_cast<std::int32_t>(tables_.storages[storage].producer), 0};
        double found = std::numeric_limits<double>::infinity();
        if (goal_.page && tables_.storages[storage].pageable) found = price(page);
        if (goal_.rerun && again.id >= 0) found = std::min(found, price(again));
        return found;
    }

    // Make the storage anew, one way or the other, before its first reader after run k.
    bool bring_back(std::int32_t storage, i64 k) {
        const std::vector<Run>& runs = evaluate_.runs();
        for (std::size_t i = k + 1; i < runs.size(); ++i)
            if (reads(runs[i], storage)) return provide(runs[i].stage, storage, 0);
        return false;
    }

    bool provide(std::int32_t stage, std::int32_t storage, int depth) {
        Decision page{stage, 1, storage, 0};
        Decision again{stage, 0, static_cast<std::int32_t>(tables_.storages[storage].producer), 0};
        bool may_page = allowed(page), may_rerun = again.id >= 0 && allowed(again);
        if (!may_page && !may_rerun) return false;
        if (may_page && (!may_rerun || unit() < 0.5)) return add(page);
        if (!add(again)) return false;
        if (unit() < 0.4)
            for (const i64* s = tables_.again_reads.begin(again.id); s != tables_.again_reads.end(again.id); ++s)
                if (depth < 6 && !live(stage, *s) && unit() < 0.7)
                    provide(stage, static_cast<std::int32_t>(*s), depth + 1);
        return true;
    }

    // Whether a copy is held at the first run of a stage anyway.
    bool live(std::int32_t stage, i64 storage) const {
        for (const Copy& copy : evaluate_.copies())
            if (copy.storage == storage && evaluate_.runs()[copy.made].stage <= stage &&
                evaluate_.runs()[copy.last].stage >= stage)
                return true;
        return false;
    }

    bool remove() {
        current.erase(current.begin() + below(static_cast<i64>(current.size())));
        return true;
    }

    Decision take() {
        auto at = current.begin() + below(static_cast<i64>(current.size()));
        Decision taken = *at;
        current.erase(at);
        return taken;
    }

    bool shift() {
        Decision d = take();
        std::int32_t far = static_cast<std::int32_t>(1 + below(5));
        d.stage += unit() < 0.5 ? far : -far;
        return allowed(d) && add(d);
    }

    // A re-run becomes a page-in of what it makes, or the other way round.
    bool exchange() {
        Decision d = take();
        Decision other{d.stage, 1 - d.page, 0, 0};
        if (d.page) {
            other.id = static_cast<std::int32_t>(tables_.storages[d.id].producer);
        } else {
            const Rows& made = tables_.again_creates;
            i64 count = made.end(d.id) - made.begin(d.id);
            if (count == 0) return false;
            other.id = static_cast<std::int32_t>(made.begin(d.id)[below(count)]);
        }
        return allowed(other) && add(other);
    }

    // Begin a page-in earlier or later, or release the fast copy later.
    bool hide() {
        Decision d = take();
        if (!d.page) return false;
        std::int32_t far = static_cast<std::int32_t>(1 + below(3));
        if (unit() < 0.5) {
            d.lag = std::max<std::int32_t>(0, d.lag + (unit() < 0.5 ? far : -far));
        } else {
            d.stage += unit() < 0.7 ? -far : far;
        }
        return allowed(d) && add(d);
    }

    Tables tables_;
    Evaluator evaluate_;
    Goal goal_;
    Decisions before_;
    Cost cost_;
    std::uint64_t state_ = 1;
    i64 iterations_ = 0, left_ = 0;
    double heat_ = 1, weight_ = 1, unit_ = 1, byte_ = 1, base_value_ = 0;
    double best_bytes_ = std::numeric_limits<double>::infinity();
    bool stale_ = true;
};

}  // namespace tightrope::paging
