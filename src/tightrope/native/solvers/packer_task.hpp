// One part on its way from the first layout to its goal.
#pragma once

#include "packer_dive.hpp"
#include "packer_fit.hpp"
#include "packer_series.hpp"

namespace packer {

enum class Method { first_fit, hot_core, portfolio, dive, squeaky, search, niches, fused, neighbourhood };

inline constexpr Index kSearchable = 5000;  // buffers; the search keeps conflict lists and a deep stack

// Offsets for a part, found with at most `work`; the part's own `base` counts as zero.
std::vector<Offset> solve_apart(Part part, Switches use, u64 seed, i64 work, Budget& budget);

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
    i64 nodes() const {
        i64 sum = nodes_;
        for (const Lane& lane : lanes_)
            if (lane.series) sum += lane.series->nodes();
        return sum;
    }
    bool searchable() const {
        return (use_(Switch::search) || (use_(Switch::niches) && part_.plain)) && part_.count() <= kSearchable;
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
                offer(dive(part_, order_by(subject_.keys(), letters, 0, random_), best_.peak, budget_), Method::dive);
            }
        if (use_(Switch::squeaky))
            for (int round = 0; round < kSqueaks && !done(); ++round) squeak();
    }

    // One restart, in the lane that has had least of its share of the work. `least` is a peak below which
    // nothing is sought.
    void probe(Bytes least) {
        if (lanes_.empty()) open_lanes();
        const Bytes low = std::max(least - part_.base, refuted_ + 1);
        const bool only_bound = best_.peak - 1 <= low || !use_(Switch::restarts);
        Lane* next = nullptr;
        for (Lane& lane : lanes_) {
            if (lane.aim == Aim::asked || (only_bound && lane.aim != Aim::bound)) continue;
            if (!next || lane.spent * next->share < next->spent * lane.share) next = &lane;
        }
        if (next->aim == Aim::around) neighbourhood(*next);
        else search(*next, target(next->aim, low), budget_);
    }

    // One restart for exactly the capacity that was asked for, at the expense of another budget. Nothing
    // that `probe` does depends on it, unless the capacity is reached or refuted.
    void ask(Bytes capacity, Budget& budget) {
        if (lanes_.empty()) open_lanes();
        Lane* next = nullptr;
        for (Lane& lane : lanes_)
            if (lane.aim == Aim::asked && (!next || lane.spent * next->share < next->spent * lane.share)) next = &lane;
        search(*next, capacity - part_.base, budget);
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
    static constexpr i64 kNeighbourhoodLimit = 400;

    // What a lane's probes ask for: the bound itself; half of the gap to it, 0.5 % or 1 % less than the best
    // peak; the capacity of the caller. Seeds that close a step of 1 % close it in about the time that one
    // of 0.5 % takes, and a whole gap of several percent is closed at once or hardly at all.
    enum class Aim { bound, half, near, far, around, asked };
    struct Lane {
        Aim aim;
        Kind kind;
        i64 share = 1, spent = 0;
        std::unique_ptr<Series> series = nullptr;
    };

    void open_lanes() {
        const auto open = [&](Aim aim, i64 share) {
            const bool plain = part_.plain;
            if (plain && use_(Switch::niches)) lanes_.push_back({aim, Kind::niches, 2 * share});
            if (plain && use_(Switch::niches) && use_(Switch::fusion)) lanes_.push_back({aim, Kind::fused, 8 * share});
            if (use_(Switch::search)) lanes_.push_back({aim, Kind::canonical, 2 * share});
        };
        open(Aim::bound, 8), open(Aim::half, 2), open(Aim::far, 2), open(Aim::near, 2), open(Aim::asked, 1);
        if (use_(Switch::neighbourhoods)) lanes_.push_back({Aim::around, Kind::canonical, 6});
    }

    Bytes target(Aim aim, Bytes low) const {
        if (aim == Aim::bound) return low;
        const Bytes gap = best_.peak - 1 - low, percent = part_.load / 100;
        return best_.peak - 1 - (aim == Aim::half ? gap / 2 : aim == Aim::near ? std::min(gap / 2, percent / 2) : std::min(gap, percent));
    }

    void search(Lane& lane, Bytes capacity, Budget& budget) {
        if (!lane.series) {
            const u64 seed = random_.state ^ mix(static_cast<u64>(&lane - lanes_.data()) + 1);
            lane.series = std::make_unique<Series>(subject_, use_, lane.kind, best_.peak, seed);
        }
        const i64 before = budget.work_left;
        const Answer answer = lane.series->run(capacity, budget);
        lane.spent += before - budget.work_left;
        if (answer == Answer::none) refuted_ = std::max(refuted_, capacity);
        if (answer != Answer::found) return;
        const Method method = lane.kind == Kind::canonical ? Method::search
                              : lane.kind == Kind::niches  ? Method::niches
                                                           : Method::fused;
        offer({lane.series->offsets(), peak_of(part_, lane.series->offsets())}, method);
    }

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
        const auto times = part_.times();
        Part core, whole = part_;
        for (Index j = 0; j < part_.count(); ++j) {
            if (part_.end[j] <= first || part_.start[j] >= last) continue;
            core.push(part_, j, first);
            if (part_.start[j] < first) core.start.back() = 0, core.born.back() = times[first];
            if (part_.end[j] > last) core.end.back() = last - first, core.died.back() = times[last];
            core.id.back() = j;
        }
        core.num_sections = last - first, core.plain = part_.plain;
        const std::vector<Index> inside = core.id;
        // Never a share of what is left: with less done before, the same seed would find something else.
        const i64 work = std::min(budget_.total / 4, kFirstPrice * (core.count() + 100));
        if (work > budget_.work_left) return;
        const auto offset = solve_apart(std::move(core), use_, random_.next(), work, budget_);
        for (Index j : inside) whole.fixed[j] = offset[j];
        offer(first_fit(whole, fit_order(part_, Fit::size, Tie::life), best_.peak, budget_), Method::hot_core);
    }

    // Keep the buffers outside a time window where they are and search for a lower place for the rest.
    void neighbourhood(Lane& lane) {
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
        const i64 before = budget_.work_left;
        const auto overlaps = std::make_shared<const Overlaps>(part);
        budget_.spend(20 * part_.count() + 8 * overlaps->count());
        const auto searcher = make_searcher<Search>(part, best_.peak, overlaps, use_.pruning());
        const auto order = order_by(subject_.keys(), "TWA", 0.2, random_);
        Trial none;
        const Answer answer = searcher->run(order, target, kNeighbourhoodLimit, none, budget_);
        nodes_ += searcher->nodes(), lane.spent += before - budget_.work_left;
        if (answer != Answer::found) return;
        std::vector<Offset> offset = searcher->offsets();
        const Bytes peak = peak_of(part_, offset);
        offer({std::move(offset), peak}, Method::neighbourhood);
    }

    const Part& part_;
    Subject subject_{part_};
    Switches use_;
    Random random_;
    Budget& budget_;
    Bytes refuted_;
    Layout best_;
    Method method_ = Method::first_fit;
    std::vector<Index> places_;
    std::vector<Lane> lanes_;
    i64 squeaks_ = 0, nodes_ = 0;
};

}  // namespace packer
