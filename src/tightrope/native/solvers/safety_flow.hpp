// Heaviest antichain of the reuse relation, by one maximum flow.
//
// a precedes b when b is written on stream s at or after the position at which a is dead for s. So the
// successors of a are one suffix of the storages born on each stream, and the bipartite network from
// every a to its successors needs no arcs of its own: a suffix is one number. The flow is the number of
// bytes that later storages take over from earlier ones; sum of sizes - flow is the answer (Dilworth).
//
//   born on stream 0   . . . . [ . . . . .     successors of a: two suffixes. A layer of the search is
//   born on stream 1   . . . . . . [ . . .     one range per stream, just left of all earlier layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace safety {

using Bytes = std::int64_t;
using Index = std::int32_t;

class Antichain {
   public:
    // Storages in the order in which their writers were issued.
    Antichain(Index num_storages, Index num_streams, const Bytes* size, const std::int32_t* stream,
              const std::int32_t* position, const std::int32_t* deaths)
        : count_(num_storages), width_(num_streams), size_(size), stream_(stream), born_(num_streams),
          waiting_(num_streams), pool_(num_streams), from_(std::size_t(num_storages) * num_streams),
          place_(num_storages), active_(num_streams, 0), reach_(num_streams, 0), supply_(num_storages, 0), demand_(num_storages, 0),
          taken_(num_storages), level_(num_storages, -1), next_arc_(num_storages, 0) {
        for (Index j = 0; j < count_; ++j) born_[stream[j]].push_back(j);
        for (Index s = 0; s < width_; ++s) index_births(s, position, deaths);
    }

    // Add storages until all are in or the heaviest antichain is above `budget` (< 0: no budget). Returns
    // the first storage that makes it so, or the number of storages.
    Index grow(Bytes budget) {
        for (Index j = 0; j < count_; ++j) {
            activate(j);
            if (budget < 0 || weight() <= budget) continue;
            maximize();
            if (weight() > budget) return j;
        }
        if (budget < 0) maximize();
        return count_;
    }

    Bytes weight() const { return total_ - flow_; }

    // In the heaviest antichain found by the last search; right only just after a maximization.
    bool witness(Index j) const { return level_[j] >= 0 && place_[j] < reach_[stream_[j]]; }

   private:
    struct Arc {
        Index from;
        Bytes flow;
    };
    struct Hop {
        Index a, b;
        std::size_t arc;
    };

    Index& from(Index a, Index s) { return from_[std::size_t(a) * width_ + s]; }

    // Turn death positions on s into indices of the storages born there.
    void index_births(Index s, const std::int32_t* position, const std::int32_t* deaths) {
        const std::vector<Index>& births = born_[s];
        for (Index i = 0; i < Index(births.size()); ++i) place_[births[i]] = i;
        waiting_[s].resize(births.size() + 1);
        for (Index a = 0; a < count_; ++a) {
            const auto first = std::partition_point(births.begin(), births.end(), [&](Index b) {
                return position[b] < deaths[std::size_t(a) * width_ + s];
            });
            from(a, s) = Index(first - births.begin());
            if (first != births.end()) waiting_[s][from(a, s)].push_back(a);
        }
    }

    // Let j in, and take over bytes from storages that are dead by then.
    void activate(Index j) {
        const Index s = stream_[j];
        ++active_[s];
        total_ += size_[j];
        supply_[j] = demand_[j] = size_[j];
        std::vector<Index>& pool = pool_[s];
        std::vector<Index>& dead = waiting_[s][place_[j]];
        pool.insert(pool.end(), dead.begin(), dead.end());
        while (demand_[j] > 0 && !pool.empty()) {
            const Index a = pool.back();
            const Bytes bytes = std::min(demand_[j], supply_[a]);
            if (bytes > 0) taken_[j].push_back({a, bytes});
            supply_[a] -= bytes, demand_[j] -= bytes, flow_ += bytes;
            if (supply_[a] == 0) pool.pop_back();
        }
    }

    void maximize() {
        while (layers())
            for (Index root : roots_)
                while (supply_[root] > 0 && augment(root)) {}
    }

    // Breadth-first layers from all bytes not yet taken over; false = the flow is largest.
    bool layers() {
        std::fill(level_.begin(), level_.end(), -1);
        roots_.clear(), tops_.clear();
        for (Index a = 0; a < count_; ++a)
            if (supply_[a] > 0) level_[a] = 0, roots_.push_back(a);
        reach_ = active_;
        std::vector<Index> frontier = roots_, following;
        bool found = false;
        for (Index layer = 0; !found && !frontier.empty(); ++layer, frontier.swap(following)) {
            following.clear();
            for (Index s = 0; s < width_; ++s) {
                Index low = reach_[s];
                for (Index a : frontier) low = std::min(low, from(a, s));
                tops_.push_back(reach_[s]);
                for (Index i = low; i < reach_[s]; ++i) found |= visit(born_[s][i], layer, following);
                reach_[s] = low;
            }
        }
        return found;
    }

    bool visit(Index b, Index layer, std::vector<Index>& following) {
        std::vector<Arc>& arcs = taken_[b];
        std::erase_if(arcs, [](const Arc& arc) { return arc.flow == 0; });
        next_arc_[b] = 0;
        for (const Arc& arc : arcs)
            if (level_[arc.from] < 0) level_[arc.from] = layer + 1, following.push_back(arc.from);
        return demand_[b] > 0;
    }

    // One path along the layers from `root` to a storage with free demand; false = there is none left.
    bool augment(Index root) {
        path_.clear();
        for (Index a = root;;) {
            const Index b = candidate(a);
            if (b < 0) {
                level_[a] = kDead;
                if (path_.empty()) return false;
                a = path_.back().a;
                ++next_arc_[path_.back().b];
                path_.pop_back();
            } else if (demand_[b] > 0) {
                push(root, a, b);
                return true;
            } else {
                path_.push_back({a, b, next_arc_[b]});
                a = taken_[b][next_arc_[b]].from;
            }
        }
    }

    // A storage of a's layer that a may hand bytes to and that leads on. All storages adjacent to a lower
    // one are adjacent to the top one too, so exhausted ones are taken off the top.
    Index candidate(Index a) {
        const std::size_t layer = level_[a];
        if ((layer + 1) * width_ > tops_.size()) return -1;
        for (Index s = 0; s < width_; ++s) {
            Index& top = tops_[layer * width_ + s];
            for (; top > from(a, s); --top) {
                const Index b = born_[s][top - 1];
                if (demand_[b] > 0 || leads_on(b, Index(layer) + 1)) return b;
            }
        }
        return -1;
    }

    bool leads_on(Index b, Index layer) {
        for (std::size_t& at = next_arc_[b]; at < taken_[b].size(); ++at)
            if (taken_[b][at].flow > 0 && level_[taken_[b][at].from] == layer) return true;
        return false;
    }

    void push(Index root, Index a, Index b) {
        Bytes bytes = std::min(supply_[root], demand_[b]);
        for (const Hop& hop : path_) bytes = std::min(bytes, taken_[hop.b][hop.arc].flow);
        supply_[root] -= bytes, demand_[b] -= bytes, flow_ += bytes;
        taken_[b].push_back({a, bytes});
        for (const Hop& hop : path_) {
            taken_[hop.b][hop.arc].flow -= bytes;
            taken_[hop.b].push_back({hop.a, bytes});
        }
    }

    static constexpr Index kDead = 1 << 30;

    Index count_, width_;
    const Bytes* size_;
    const std::int32_t* stream_;
    std::vector<std::vector<Index>> born_;                  // storages written on each stream
    std::vector<std::vector<std::vector<Index>>> waiting_;  // [s][i]: those dead from the i-th birth on
    std::vector<std::vector<Index>> pool_;                  // dead, with bytes that nobody took over
    std::vector<Index> from_, place_, active_, reach_, roots_, tops_;
    std::vector<Bytes> supply_, demand_;
    std::vector<std::vector<Arc>> taken_;
    std::vector<Index> level_;
    std::vector<std::size_t> next_arc_;
    std::vector<Hop> path_;
    Bytes total_ = 0, flow_ = 0;
};

}  // namespace safety
