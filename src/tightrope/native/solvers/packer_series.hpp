// A series of restarts of one kind of search, each with another order and its own limit of nodes.
#pragma once

#include <string_view>

#include "packer_fuse.hpp"
#include "packer_niche.hpp"
#include "packer_order.hpp"
#include "packer_search.hpp"

namespace packer {

enum class Switch { scaling, compression, zero_cuts, lifelong, portfolio, dives, squeaky, search, section_bounds,
                    dominance, hatless, decomposition, skip_inference, restarts, memory, neighbourhoods,
                    hot_core, weights, trials, niches, fusion };

struct Switches {
    u64 bits;
    bool operator()(Switch which) const { return (bits >> static_cast<int>(which)) & 1; }
    Pruning pruning() const {
        const Switches& use = *this;
        return {use(Switch::section_bounds), use(Switch::dominance),      use(Switch::hatless),
                use(Switch::decomposition),  use(Switch::skip_inference), use(Switch::memory)};
    }
};

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

// A part with what all its series share, made when it is first needed.
class Subject {
   public:
    explicit Subject(const Part& part) : part(part) {}

    const Features& keys() {
        if (keys_[0].empty()) keys_ = features(part);
        return keys_;
    }
    const Shared& overlaps() {
        if (!overlaps_) overlaps_ = std::make_shared<const Overlaps>(part);
        return overlaps_;
    }

    // In instants as often as buffers begin at the very instant at which others end, else in sections.
    const Lives& lives(Random& random) {
        if (instants_.time.empty()) instants_ = Lives::in_instants(part), sections_ = Lives::in_sections(part);
        return random.unit() < instants_.meeting() ? instants_ : sections_;
    }

    const Part& part;

   private:
    Features keys_;
    Lives instants_, sections_;
    Shared overlaps_;
};

enum class Kind { canonical, niches, fused };

class Series {
   public:
    // `largest` = largest capacity that will be asked for.
    Series(Subject& subject, Switches use, Kind kind, Bytes largest, u64 seed)
        : subject_(subject), part_(subject.part), use_(use), kind_(kind), largest_(largest), random_{seed} {}

    // One restart. Only the kinds that search the part itself can answer "none".
    Answer run(Bytes capacity, Budget& budget) {
        ++turn_;
        return kind_ == Kind::fused ? fused(capacity, budget) : direct(capacity, budget);
    }
    const std::vector<Offset>& offsets() const { return offset_; }
    i64 nodes() const { return nodes_; }

   private:
    static constexpr i64 kFirstLimit = 2000, kBaseLimit = 800;
    static constexpr i64 kSpareNodes = 200;  // beyond one per buffer

    // The order of a restart: the first three as they are, the others noisy.
    std::vector<Index> order(const Features& keys, bool plain) {
        static constexpr const char* kFirst[] = {"TWA", "TAW", "WAT"};
        static constexpr const char* kLater[] = {"TWA", "TAW", "WAT", "TWZ", "TZW", "WTA",
                                                 "ATW", "OTA", "TOA", "SWA", "WAZ"};
        const char* letters = plain ? kFirst[turn_ - 1] : kLater[random_.below(std::size(kLater))];
        return order_by(keys, letters, plain ? 0 : 0.3 * random_.unit(), random_);
    }

    Answer direct(Bytes capacity, Budget& budget) {
        const bool plain = turn_ <= 3, canonical = kind_ == Kind::canonical;
        if (!searcher_)
            searcher_ = canonical ? make_searcher<Search>(part_, largest_, subject_.overlaps(), use_.pruning())
                                  : make_searcher<NicheSearch>(part_, largest_, subject_.overlaps(),
                                                               use_(Switch::decomposition), use_(Switch::memory));
        const bool weighted = canonical && !plain && use_(Switch::weights) && random_.unit() < 0.7;
        const auto ranks = order(weighted ? weighted_keys() : subject_.keys(), plain);
        Trial trial;
        i64 limit = kFirstLimit;
        if (!canonical) {
            limit = (part_.count() + kSpareNodes) * luby(turn_);
        } else if (!plain) {
            if (use_(Switch::trials)) trial = {part_.count() + kSpareNodes, trials_.allowed()};
            limit = trial.nodes + kBaseLimit * luby(use_(Switch::trials) ? trials_.passed() + 1 : turn_ - 3);
        }
        const i64 before = searcher_->nodes();
        const Answer answer = searcher_->run(ranks, capacity, use_(Switch::restarts) ? limit : kInfinity, trial, budget);
        trials_.add(trial);
        if (!canonical) searcher_->forget();
        nodes_ += searcher_->nodes() - before;
        if (answer == Answer::found) offset_ = searcher_->offsets();
        return answer;
    }

    // Search a part whose buffers were fused at random.
    Answer fused(Bytes capacity, Budget& budget) {
        const double apart = kApart * std::pow(random_.unit(), 2);
        Fuser fuser(part_, subject_.lives(random_), apart, random_);
        const bool padded = random_.unit() < kPad, wheels = random_.unit() < kWheels, joins = random_.unit() < kJoin;
        if (padded) fuser.pad();
        const double doubt = joins ? kDoubt * std::pow(100, random_.unit()) : 0;
        const Fused fused = fuser.run(wheels, doubt);
        Subject subject(fused.part);
        const auto searcher = make_searcher<NicheSearch>(fused.part, largest_, subject.overlaps(),
                                                         use_(Switch::decomposition), use_(Switch::memory));
        budget.spend(kFusePrice * part_.count() + 8 * subject.overlaps()->count());
        Trial none;
        const i64 limit = (fused.part.count() + kSpareNodes) * std::min(luby(turn_), kFusedPatience);
        const Answer answer = searcher->run(order(subject.keys(), false), capacity, limit, none, budget);
        nodes_ += searcher->nodes();
        if (answer != Answer::found) return Answer::unknown;
        offset_ = fused.offsets_inside(searcher->offsets(), part_.count());
        return answer;
    }

    // Features whose loads are raised where the search failed often.
    Features weighted_keys() {
        Features weighted = subject_.keys();
        const auto& failures = searcher_->failures();
        const double most = 1 + *std::max_element(failures.begin(), failures.end()), strength = random_.unit();
        const auto known = part_.loads();
        std::vector<double> loads(known.begin(), known.end());
        for (std::size_t s = 0; s < loads.size(); ++s) loads[s] *= 1 + strength * failures[s] / most;
        weighted[0] = largest_loads(part_, loads);
        searcher_->forget();
        return weighted;
    }

    static constexpr double kPad = 0.5, kWheels = 0.9, kJoin = 0.95, kApart = 0.1;  // shares of the restarts
    static constexpr double kDoubt = 0.03;  // smallest
    // A placement of well fused buffers is found with little backtracking: rather fuse anew than search on.
    static constexpr i64 kFusedPatience = 4;
    static constexpr i64 kFusePrice = 800;  // work per buffer
    Subject& subject_;
    const Part& part_;
    Switches use_;
    Kind kind_;
    Bytes largest_;
    Random random_;
    std::unique_ptr<Searcher> searcher_;
    Trials trials_;
    std::vector<Offset> offset_;
    i64 turn_ = 0, nodes_ = 0;
};

}  // namespace packer
