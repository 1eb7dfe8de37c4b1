// The pipeline over the parts: first-fit portfolio, dives, squeaky wheel, search, neighbourhoods.
#pragma once

#include <array>
#include <memory>

#include "packer_dive.hpp"
#include "packer_fit.hpp"
#include "packer_order.hpp"
#include "packer_prepare.hpp"
#include "packer_search.hpp"

namespace packer {

enum class Switch { scaling, compression, zero_cuts, lifelong, portfolio, dives, squeaky, search, section_bounds,
                    dominance, hatless, decomposition, skip_inference, restarts, memory, neighbourhoods,
                    hot_core, weights, trials };
enum class Status { optimal, feasible, infeasible, time_limit };
enum class Method { first_fit, hot_core, portfolio, dive, squeaky, search, neighbourhood };

struct Switches {
    u64 bits;
    bool operator()(Switch which) const { return (bits >> static_cast<int>(which)) & 1; }
    Pruning pruning() const {
        const Switches& use = *this;
        return {use(Switch::section_bounds), use(Switch::dominance),      use(Switch::hatless),
                use(Switch::decomposition),  use(Switch::skip_inference), use(Switch::memory)};
    }
};

inline constexpr Index kSearchable = 5000;  // buffers; the search keeps conflict lists and a deep stack

// Element k = 1, 2, ... of 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ...
inline i64 luby(i64 k) {
    for (i64 power = 1;; power = 2 * power + 1) {
        if (power == k) return (power + 1) / 2;
        if (power > k) k -= power / 2, power = 0;
    }
}

// What the last trials left to place. On hard instances the runs that found a solution had been among the
// deepest 6 % after 400 nodes: going on with the deepest tenth finds solutions three times as often.
class Trials {
   public:
    Index allowed() const {
        if (left_.size() < kFew) return std::numeric_limits<Index>::max();
        std::vector<Index> sorted(left_);
        const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 10);
        std::nth_element(sorted.begin(), at, sorted.end());
        return *at;
    }
    i64 passed() const { return passed_; }
    void add(const Trial& trial) {
        if (trial.left < 0) return;
        passed_ += trial.left <= trial.allowed;
        if (left_.size() < kMany) left_.push_back(trial.left);
        else left_[static_cast<std::size_t>(oldest_++) % kMany] = trial.left;
    }

   private:
    static constexpr std::size_t kFew = 8, kMany = 64;
    std::vector<Index> left_;
    i64 passed_ = 0, oldest_ = 0;
};

// Offsets for a part, found with at most `work`; the part's own `base` counts as zero.
std::vector<Offset> solve_apart(Part part, Switches use, u64 seed, i64 work, Budget& budget);

// One part on its way from the first layout to its goal.
class Task {
   public:
    Task(const Part& part, Switches use, u64 seed, Budget& budget)
        : part_(part), use_(use), random_{seed}, budget_(budget), refuted_(part.load - 1) {
        // Some orders leave many holes of nearly the right size and take ten times as long as others.
        for (const Tie tie : {Tie::life, Tie::start, Tie::index}) {
            Budget share{kFirstPrice * (part.count() + 100), budget.deadline};
            const i64 before = share.work_left;
            best_ = first_fit(part, fit_order(part, Fit::size, tie), kInfinity, share);
            budget.spend(before - share.work_left);
            if (best_.peak < kInfinity) return;
        }
        best_ = first_fit(part, fit_order(part, Fit::size, Tie::index), kInfinity, budget, true);
    }

    const Layout& best() const { return best_; }
    Bytes peak() const { return part_.base + best_.peak; }
    Bytes refuted() const { return part_.base + refuted_; }  // no placement has this peak or a smaller one
    Method method() const { return method_; }
    i64 nodes() const { return nodes_; }
    bool searchable() const {
        return use_(Switch::search) && part_.count() <= kSearchable;
    }

    // One pass of every cheap method, in order of price; `goal` is a peak.
    void cheap(Bytes goal) {
        const auto done = [&] { return peak() <= goal || budget_.over(); };
        if (use_(Switch::hot_core))
            for (const double share : {0.9995, 0.998, 0.99, 0.95, 0.8})
                if (!done()) hot_core(share);
        if (use_(Switch::portfolio))
            for (const Tie tie : {Tie::index, Tie::start, Tie::life})
                for (const Fit fit : {Fit::size, Fit::size_log_life, Fit::size_sqrt_life, Fit::area}) {
                    if (done()) return;
                    if (fit == Fit::size && tie == Tie::life) continue;
                    offer(first_fit(part_, fit_order(part_, fit, tie), best_.peak, budget_), Method::portfolio);
                }
        if (use_(Switch::dives))
            for (const char* letters : {"TWA", "TAW", "AWT", "ZWT", "WAT"}) {
                if (done()) return;
                offer(dive(part_, order_by(keys(), letters, 0, random_), best_.peak, budget_), Method::dive);
            }
        if (use_(Switch::squeaky))
            for (int round = 0; round < kSqueaks && !done(); ++round) squeak();
    }

    // One restart: at the goal if only that counts, else somewhere between what is refuted and known.
    void probe(Bytes goal, bool only_goal) {
        const Bytes known = best_.peak, least = std::max(goal - part_.base, refuted_ + 1);
        if (!use_(Switch::restarts)) return search(bound, least, 0);
        const i64 at = rounds_++ % kCycle;
        if (only_goal || known - 1 <= least || kAims[at] == bound) return search(bound, least, turns_[bound]++);
        if (at == kCycle - 1 && use_(Switch::neighbourhoods)) return neighbourhood();
        const Aim aim = kAims[at];
        const Bytes gap = known - 1 - least, percent = part_.load / 100;
        const Bytes step = aim == half ? gap / 2 : aim == near ? std::min(gap / 2, percent / 2) : std::min(gap, percent);
        search(aim, known - 1 - step, turns_[aim]++);
    }

    // One more round of the squeaky wheel.
    void squeak() {
        if (places_.empty()) places_ = fit_order(part_, Fit::size_log_life, Tie::index);
        const Bytes line = part_.load + static_cast<Bytes>(random_.unit() * static_cast<double>(best_.peak - part_.load));
        std::vector<double> place(part_.count());
        for (std::size_t at = 0; at < places_.size(); ++at) {
            const Index j = places_[at];
            const bool high = best_.offset[j] + part_.size[j] > line;
            place[j] = static_cast<double>(at) * (high ? 0.3 + 0.7 * random_.unit() : 1.0);
        }
        std::vector<Index> order(places_);
        std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return place[a] < place[b]; });
        const bool fit = (squeaks_++ & 1) == 0;
        Layout layout = fit ? first_fit(part_, order, best_.peak, budget_) : dive(part_, order, best_.peak, budget_);
        if (offer(std::move(layout), Method::squeaky)) places_ = std::move(order);
    }

   private:
    static constexpr i64 kFirstPrice = 2000;  // work per buffer, three times the usual
    static constexpr int kSqueaks = 20;
    // Peaks that probes ask for, by distance from the best: seeds that close a step of 1 % close it in about
    // the time that one of 0.5 % takes, and a whole gap of several percent is seldom closed at all.
    enum Aim { bound, half, near, far };
    static constexpr Aim kAims[] = {bound, near, far, far,  near, far, half, near,
                                    far,   far,  near, half, far,  near, far, far};
    static constexpr i64 kCycle = std::size(kAims);  // the last one is a neighbourhood instead
    static constexpr i64 kFirstLimit = 2000, kBaseLimit = 800, kNeighbourhoodLimit = 400;
    static constexpr i64 kTrialNodes = 200;  // beyond one per buffer

    bool offer(Layout layout, Method method) {
        if (layout.peak >= best_.peak) return false;
        best_ = std::move(layout), method_ = std::max(method_, method);
        return true;
    }

    // Settle the time around the largest load first, then fit the other buffers around it.
    void hot_core(double share) {
        const auto loads = part_.loads();
        const auto hot = [&](Bytes load) { return static_cast<double>(load) >= share * static_cast<double>(part_.load); };
        const auto first = static_cast<Section>(std::find_if(loads.begin(), loads.end(), hot) - loads.begin());
        const auto last = static_cast<Section>(loads.rend() - std::find_if(loads.rbegin(), loads.rend(), hot));
        if (last - first == part_.num_sections || *std::max_element(part_.fixed.begin(), part_.fixed.end()) >= 0) return;
        Part core, whole = part_;
        for (Index j = 0; j < part_.count(); ++j) {
            if (part_.end[j] <= first || part_.start[j] >= last) continue;
            core.push(part_, j, first);
            core.start.back() = std::max(core.start.back(), 0);
            core.end.back() = std::min(core.end.back(), last - first);
            core.id.back() = j;
        }
        core.num_sections = last - first, core.plain = part_.plain;
        const std::vector<Index> inside = core.id;
        const i64 work = kFirstPrice * (core.count() + 100);
        const auto offset = solve_apart(std::move(core), use_, random_.next(), work, budget_);
        for (Index j : inside) whole.fixed[j] = offset[j];
        offer(first_fit(whole, fit_order(part_, Fit::size, Tie::life), best_.peak, budget_), Method::hot_core);
    }

    const Features& keys() {
        if (keys_[0].empty()) keys_ = features(part_);
        return keys_;
    }

    // Features whose loads are raised where the search failed often.
    Features weighted_keys(Searcher& searcher) {
        Features weighted = keys();
        const auto& failures = searcher.failures();
        const double most = 1 + *std::max_element(failures.begin(), failures.end()), strength = random_.unit();
        const auto known = part_.loads();
        std::vector<double> loads(known.begin(), known.end());
        for (std::size_t s = 0; s < loads.size(); ++s) loads[s] *= 1 + strength * failures[s] / most;
        weighted[0] = largest_loads(part_, loads);
        searcher.forget();
        return weighted;
    }

    void search(Aim slot, Bytes capacity, i64 turn) {
        static constexpr const char* kFirst[] = {"TWA", "TAW", "WAT"};
        static constexpr const char* kLater[] = {"TWA", "TAW", "WAT", "TWZ", "TZW", "WTA",
                                                 "ATW", "OTA", "TOA", "SWA", "WAZ"};
        auto& searcher = searchers_[slot];
        if (!searcher) searcher = make_search(part_, use_.pruning(), best_.peak);
        const bool plain = turn < 3;
        const char* letters = plain ? kFirst[turn] : kLater[random_.below(std::size(kLater))];
        const bool weighted = !plain && use_(Switch::weights) && random_.unit() < 0.7;
        const auto order = order_by(weighted ? weighted_keys(*searcher) : keys(), letters,
                                    plain ? 0 : 0.3 * random_.unit(), random_);
        const i64 before = searcher->nodes();
        Trial trial;
        i64 limit = !use_(Switch::restarts) ? kInfinity : kFirstLimit;
        if (!plain) {
            if (use_(Switch::trials)) trial = {part_.count() + kTrialNodes, trials_[slot].allowed()};
            limit = trial.nodes + kBaseLimit * luby(use_(Switch::trials) ? trials_[slot].passed() + 1 : turn - 2);
        }
        const Answer answer = searcher->run(order, capacity, limit, trial, budget_);
        trials_[slot].add(trial);
        nodes_ += searcher->nodes() - before;
        if (answer == Answer::none) refuted_ = std::max(refuted_, capacity);
        if (answer != Answer::found) return;
        std::vector<Offset> offset = searcher->offsets();
        const Bytes peak = peak_of(part_, offset);
        offer({std::move(offset), peak}, Method::search);
    }

    // Keep the buffers outside a time window where they are and search for a lower place for the rest.
    void neighbourhood() {
        const Bytes target = best_.peak - 1;
        const Section m = part_.num_sections;
        const Section half = 1 + static_cast<Section>(random_.below(1 + m / 4));
        const Section middle = static_cast<Section>(random_.below(m));
        Part part;
        part.plain = part_.plain;
        for (Index j = 0; j < part_.count(); ++j) {
            const bool inside = part_.start[j] < middle + half && part_.end[j] > middle - half;
            const bool high = best_.offset[j] + part_.size[j] > target;
            part.push(part_, j, 0);
            if (!inside && !high && part.fixed[j] < 0) part.fixed[j] = best_.offset[j], part.plain = false;
        }
        const auto searcher = make_search(part, use_.pruning(), best_.peak);
        const auto order = order_by(keys(), "TWA", 0.2, random_);
        Trial none;
        const Answer answer = searcher->run(order, target, kNeighbourhoodLimit, none, budget_);
        nodes_ += searcher->nodes();
        if (answer != Answer::found) return;
        std::vector<Offset> offset = searcher->offsets();
        const Bytes peak = peak_of(part_, offset);
        offer({std::move(offset), peak}, Method::neighbourhood);
    }

    const Part& part_;
    Switches use_;
    Random random_;
    Budget& budget_;
    Bytes refuted_;
    Layout best_;
    Method method_ = Method::first_fit;
    Features keys_;
    std::vector<Index> places_;
    std::array<std::unique_ptr<Searcher>, 4> searchers_;
    std::array<i64, 4> turns_{};
    std::array<Trials, 4> trials_;
    i64 rounds_ = 0, squeaks_ = 0, nodes_ = 0;
};

// All parts of an instance; `limit` is the capacity asked for, -1 = make the peak small.
class Solver {
   public:
    Solver(const std::vector<Part>& parts, Bytes load, Switches use, Bytes limit, u64 seed, Budget& budget)
        : parts_(parts), limit_(limit), budget_(budget), bound_(load) {
        for (const Part& part : parts) bound_ = std::max(bound_, part.base + part.load);
        for (const Part& part : parts) tasks_.emplace_back(part, use, seed + tasks_.size(), budget);
    }

    Status run(std::vector<Offset>& offset) {
        const Bytes goal = std::max(limit_, bound_);
        for (Task& task : tasks_) task.cheap(goal);
        Bytes refuted = bound_ - 1;
        while (!tasks_.empty() && !budget_.over()) {
            Task& worst = *std::max_element(tasks_.begin(), tasks_.end(),
                                            [](const Task& a, const Task& b) { return a.peak() < b.peak(); });
            if (worst.peak() <= std::max(goal, refuted + 1) || (limit_ >= 0 && refuted >= limit_)) break;
            if (worst.searchable()) worst.probe(std::max(goal, refuted + 1), limit_ >= 0);
            else worst.squeak();
            refuted = std::max(refuted, worst.refuted());
        }
        return finish(offset, refuted);
    }

    i64 nodes() const {
        i64 sum = 0;
        for (const Task& task : tasks_) sum += task.nodes();
        return sum;
    }
    Method method() const {
        Method strongest = Method::first_fit;
        for (const Task& task : tasks_) strongest = std::max(strongest, task.method());
        return strongest;
    }

   private:
    Status finish(std::vector<Offset>& offset, Bytes refuted) const {
        Bytes peak = bound_;  // buffers outside every part never lie above the load
        for (std::size_t at = 0; at < tasks_.size(); ++at) {
            const Part& part = parts_[at];
            peak = std::max(peak, tasks_[at].peak());
            for (Index j = 0; j < part.count(); ++j) offset[part.id[j]] = part.base + tasks_[at].best().offset[j];
        }
        if (limit_ >= 0 && refuted >= limit_) return Status::infeasible;
        if (peak <= refuted + 1) return Status::optimal;
        return limit_ < 0 || peak <= limit_ ? Status::feasible : Status::time_limit;
    }

    const std::vector<Part>& parts_;
    Bytes limit_;
    Budget& budget_;
    std::vector<Task> tasks_;
    Bytes bound_;
};

inline std::vector<Offset> solve_apart(Part part, Switches use, u64 seed, i64 work, Budget& budget) {
    std::vector<Offset> offset(*std::max_element(part.id.begin(), part.id.end()) + 1, 0);
    const auto loads = part.loads();
    const Bytes load = *std::max_element(loads.begin(), loads.end());
    Splitter splitter(use(Switch::zero_cuts), use(Switch::lifelong), offset);
    const std::vector<Part> parts = splitter.split(std::move(part));
    const i64 before = std::min(budget.work_left / 4, work);
    Budget share{before, budget.deadline};
    use.bits &= ~(u64{1} << static_cast<int>(Switch::hot_core));
    Solver(parts, load, use, -1, seed, share).run(offset);
    budget.spend(before - share.work_left);
    return offset;
}

}  // namespace packer
