// Search over topological orders for few bytes over a limit.
//
// Idea        idle[p] = what is live beside the op at position p. Moving one op v past the ops between
//             two positions changes their bytes by what v makes (alive later or earlier) and by the
//             inputs of v that nothing else there needs: one rotation and a few range additions.
//             Annealed on the sum of bytes over the limit; with `shrink` the limit
//             follows the smallest peak down.
// Guarantee   Every order keeps all precedences. Bytes are exact after every move. Same calls, same answers.
// Complexity  O(degree + distance) per move; O(ops + edges) memory.
// Gaps        One op moves at a time; no optimality is proved.
//
//     bytes ^        +--s--+   v makes s: when v moves right past w, s is not live at w any more
//           |  +--r--+     |   v reads r: when it was the last reader, r is now live at w
//           +--+--v--w-----+--> position
#pragma once
#include "solver_profile.hpp"
#include "solver_random.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace tightrope {

class Order {
  public:
    std::vector<i64> best;
    double best_excess = kInf, best_peak = kInf;

    // storage_rows: bytes, producer or -1, live after the last op.
    Order(i64 ops, i64 storages, const i64* need, const i64* storage_rows, const i64* read_start,
          const i64* read_item, const i64* before_start, const i64* before_item)
        : num_ops_(ops), need_(need, need + ops), reads_(read_start, read_item, ops),
          before_(before_start, before_item, ops), after_(ops), creates_(ops), readers_(storages), at_(ops),
          op_(ops), own_(ops), idle_(ops + 1) {
        for (i64 s = 0; s < storages; ++s) {
            size_.push_back(static_cast<double>(storage_rows[3 * s]));
            producer_.push_back(storage_rows[3 * s + 1]);
            at_end_.push_back(storage_rows[3 * s + 2] != 0);
            if (producer_[s] >= 0) creates_[producer_[s]].push_back(s);
        }
        for (i64 v = 0; v < ops; ++v) {
            for (const i64* s = reads_.begin(v); s != reads_.end(v); ++s) readers_[*s].push_back(v);
            for (const i64* u = before_.begin(v); u != before_.end(v); ++u) after_[*u].push_back(v);
        }
        double sum = 0;
        for (double s : size_) sum += s;
        unit_ = std::max(1.0, sum / static_cast<double>(std::max<i64>(1, storages)));
    }

    void load(const i64* order) {
        for (i64 p = 0; p < num_ops_; ++p) op_[p] = order[p], at_[order[p]] = p, own_[p] = need_[order[p]];
        std::fill(idle_.begin(), idle_.end(), 0);
        for (i64 s = 0; s < static_cast<i64>(size_.size()); ++s)
            if (producer_[s] >= 0) spread(at_[producer_[s]], last_use(s, -1), 0, num_ops_, size_[s]);
    }

    double peak() const {
        double top = 0;
        for (i64 p = 0; p < num_ops_; ++p) top = std::max(top, idle_[p] + own_[p]);
        return top;
    }
    double over(double limit, i64 low, i64 high) const {
        double sum = 0;
        for (i64 p = low; p <= high; ++p) sum += std::max(idle_[p] + own_[p] - limit, 0.0);
        return sum;
    }
    double over(double limit) const { return over(limit, 0, num_ops_ - 1); }
    const std::vector<i64>& current() const { return op_; }

    void begin(double limit, std::uint64_t seed, i64 iterations, bool shrink, double heat) {
        limit_ = limit, shrink_ = shrink, heat_ = heat, total_ = iterations, done_ = 0;
        random_.state = seed * 0x9E3779B97F4A7C15ULL + 0x7654321;
        best_excess = best_peak = kInf;
        excess_ = over(limit_);
        keep();
    }

    // Make at most `iterations` moves; returns how many are left of those asked for.
    i64 run(i64 iterations) {
        const i64 stop = std::min(done_ + iterations, total_);
        for (; done_ < stop; ++done_) {
            if (done_ % 64 == 0)
                temperature_ = heat_ * std::pow(0.01 / heat_, static_cast<double>(done_) / static_cast<double>(total_));
            const i64 from = random_.below(num_ops_), to = target(from);
            if (to == from) continue;
            const double change = move(from, to);
            excess_ += change;
            if (change > 0 && random_.uniform() >= std::exp(-change / (unit_ * temperature_)))
                excess_ += move(to, from);
            else if (change < 0)
                keep();
        }
        return total_ - done_;
    }

  private:
    const i64 num_ops_;
    std::vector<double> need_;
    Csr reads_, before_;
    std::vector<std::vector<i64>> after_, creates_, readers_;
    std::vector<i64> at_, op_, producer_;
    std::vector<double> own_;   // need of the op at each position
    std::vector<double> idle_;  // bytes live beside it; the last entry stands for the end
    std::vector<double> size_;
    std::vector<char> at_end_;
    double limit_ = kInf, unit_ = 1, heat_ = 1, temperature_ = 1, excess_ = 0;
    bool shrink_ = false;
    i64 total_ = 0, done_ = 0;
    Random random_;

    // Last position at which s is needed, not counting op `without`; its producer's where nothing reads it.
    i64 last_use(i64 s, i64 without) const {
        if (at_end_[s]) return num_ops_;
        i64 last = producer_[s] < 0 ? -1 : at_[producer_[s]];
        for (i64 v : readers_[s])
            if (v != without) last = std::max(last, at_[v]);
        return last;
    }

    // A position to which the op at `from` may move; near ones are as likely as far ones.
    i64 target(i64 from) {
        const i64 v = op_[from];
        i64 low = 0, high = num_ops_ - 1;
        for (const i64* u = before_.begin(v); u != before_.end(v); ++u) low = std::max(low, at_[*u] + 1);
        for (i64 w : after_[v]) high = std::min(high, at_[w] - 1);
        if (low >= high) return from;
        const i64 near = random_.below(2) == 0 ? 8 : num_ops_;
        low = std::max(low, from - near), high = std::min(high, from + near);
        return low + random_.below(high - low + 1);
    }

    // Keep the order when it is the best so far.
    void keep() {
        if (shrink_) {
            if (excess_ > 0.5) return;
            best_peak = peak(), best_excess = 0, best = op_;
            limit_ = best_peak - std::max(1.0, 0.002 * best_peak);
            excess_ = over(limit_);
        } else if (excess_ < best_excess) {
            best_excess = excess_, best = op_;
        }
    }

    // Add to the bytes of positions (after, until], within [low, high].
    void spread(i64 after, i64 until, i64 low, i64 high, double delta) {
        for (i64 p = std::max(after + 1, low); p <= std::min(until, high); ++p) idle_[p] += delta;
    }

    // Move an op and return the change of bytes over the limit.
    double move(i64 from, i64 to) {
        const i64 v = op_[from], low = std::min(from, to), high = std::max(from, to);
        const double before = over(limit_, low, high);
        double beside = idle_[high + 1];  // what is live beside v at `to`, once its own storages are left out
        for (const i64* s = reads_.begin(v); s != reads_.end(v); ++s)
            if (producer_[*s] >= 0) spread(last_use(*s, v), from, low, high, -size_[*s]);
        for (i64 s : creates_[v]) {
            const i64 last = last_use(s, -1);
            spread(from, last, low, high, -size_[s]);
            if (last > high) beside -= size_[s];
        }
        rotate(from, to);
        idle_[to] = to == high ? beside : idle_[to + 1];
        for (const i64* s = reads_.begin(v); s != reads_.end(v); ++s)
            if (producer_[*s] >= 0) spread(last_use(*s, v), to, low, high, size_[*s]);
        for (i64 s : creates_[v]) spread(to, last_use(s, -1), low, high, size_[s]);
        return over(limit_, low, high) - before;
    }

    void rotate(i64 from, i64 to) {
        const i64 v = op_[from];
        const double own = own_[from];
        for (const i64 step = from < to ? 1 : -1; from != to; from += step) {
            op_[from] = op_[from + step], own_[from] = own_[from + step], idle_[from] = idle_[from + step];
            at_[op_[from]] = from;
        }
        op_[to] = v, own_[to] = own, at_[v] = to;
    }
};

}  // namespace tightrope
