// Addresses for storages of several streams: disjoint wherever two may be alive together.
//
// With several streams there is no common time axis, so no skyline over time and no segment tree: what
// counts is who conflicts with whom. Effort is counted, so that answers repeat.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "safety_flow.hpp"

namespace safety {

using Offset = std::int64_t;
using Word = std::uint64_t;
using Order = std::vector<Index>;

struct Layout {
    std::vector<Offset> offset;
    Bytes peak = std::numeric_limits<Bytes>::max();
};

struct Items {
    Index count;
    Index width;
    const Bytes* size;
    const Bytes* align;
    const std::int32_t* stream;
    const std::int32_t* position;
    const std::int32_t* deaths;

    bool precedes(Index a, Index b) const { return deaths[std::size_t(a) * width + stream[b]] <= position[b]; }
    bool conflict(Index a, Index b) const {
        return size[a] > 0 && size[b] > 0 && !precedes(a, b) && !precedes(b, a);
    }
};

// Who must not share addresses with whom: as lists where few do, as a bit matrix where many do, and asked
// pair by pair where the matrix would be too large.
class Conflicts {
   public:
    explicit Conflicts(const Items& items) : items_(items) {
        const std::int64_t n = items.count;
        std::vector<std::int64_t> degree(n, 0);
        std::int64_t left = std::max<std::int64_t>(n * n / 64, 1 << 16);
        sparse_ = sweep([&](Index a, Index b) { return ++degree[a], ++degree[b], --left > 0; });
        if (sparse_) {
            first_.assign(n + 1, 0);
            std::partial_sum(degree.begin(), degree.end(), first_.begin() + 1);
            near_.resize(first_.back());
            std::copy(first_.begin(), first_.end() - 1, degree.begin());
            sweep([&](Index a, Index b) { return near_[degree[a]++] = b, near_[degree[b]++] = a, true; });
        } else if (n <= kMostInMatrix) {
            words_ = (n + 63) / 64;
            bits_.assign(words_ * n, 0);
            sweep([&](Index a, Index b) { return set(a, b), set(b, a), true; });
        }
    }

    bool sparse() const { return sparse_; }
    bool listed() const { return sparse_ || words_ > 0; }

    bool has(Index j, Index k) const {
        return words_ > 0 ? bits_[words_ * j + (k >> 6)] >> (k & 63) & 1 : items_.conflict(j, k);
    }

    template <class Use>
    void each(Index j, Use use) const {
        if (sparse_)
            for (std::int64_t i = first_[j]; i < first_[j + 1]; ++i) use(near_[i]);
        const Word* row = bits_.data() + words_ * j;
        for (std::size_t w = 0; w < words_; ++w)
            for (Word bits = row[w]; bits != 0; bits &= bits - 1) use(Index(64 * w + std::countr_zero(bits)));
    }

   private:
    static constexpr std::int64_t kMostInMatrix = 40'000;  // 200 MB

    // Every conflicting pair once, by streams: a list of what is still alive when the next op starts there.
    template <class Use>
    bool sweep(Use use) const {
        std::vector<std::vector<Index>> alive(items_.width);
        for (Index b = 0; b < items_.count; ++b) {
            if (items_.size[b] == 0) continue;
            std::vector<Index>& here = alive[items_.stream[b]];
            std::erase_if(here, [&](Index a) { return items_.precedes(a, b); });
            for (Index a : here)
                if (!use(a, b)) return false;
            for (std::vector<Index>& list : alive) list.push_back(b);
        }
        return true;
    }

    void set(Index a, Index b) { bits_[words_ * a + (b >> 6)] |= Word{1} << (b & 63); }

    const Items& items_;
    bool sparse_ = false;
    std::size_t words_ = 0;
    std::vector<Word> bits_;
    std::vector<std::int64_t> first_;
    std::vector<Index> near_;
};

inline Offset aligned(Offset offset, Bytes align) { return (offset + align - 1) / align * align; }

class StreamPlacer {
   public:
    StreamPlacer(const Items& items, Bytes goal, std::int64_t work, std::uint64_t seed)
        : items_(items), conflicts_(items), goal_(goal), work_(work), random_(seed) {}

    // Place within `goal` if the work lasts; the best layout found in any case.
    Layout run() {
        measure();
        const int num_keys = conflicts_.listed() ? kKeys : 1;
        for (int key = 0; key < num_keys && best_.peak > goal_ && (key == 0 || work_ > 0); ++key) {
            const Order order = sorted(key);
            keep(first_fit(order), order, false);
            if (conflicts_.listed() && best_.peak > goal_ && work_ > 0) keep(dive(order), order, true);
        }
        if (conflicts_.listed()) improve();
        return best_;
    }

    int method() const { return method_; }

   private:
    static constexpr int kKeys = 6;
    static constexpr Offset kNowhere = -1;

    // For each storage: conflicting storages, and their bytes.
    void measure() {
        degree_.assign(items_.count, 0), load_.assign(items_.count, 0);
        for (Index j = 0; j < items_.count; ++j)
            conflicts_.each(j, [&](Index k) { ++degree_[j], load_[j] += items_.size[k]; });
    }

    Order sorted(int key) const {
        const auto value = [&](Index j) -> double {
            const double size = double(items_.size[j]), degree = degree_[j] + 1.0, load = double(load_[j]);
            switch (key) {
                case 0: return size;
                case 1: return size * std::log2(degree + 1);
                case 2: return size * std::sqrt(degree);
                case 3: return size * degree;
                case 4: return load;
                default: return degree;
            }
        };
        Order order(items_.count);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return value(a) > value(b); });
        return order;
    }

    void keep(Layout layout, const Order& order, bool dived) {
        if (layout.peak >= best_.peak) return;
        best_ = std::move(layout), best_order_ = order, dived_ = dived, method_ = dived ? 1 : 0;
    }

    struct Placed {
        Offset low, high;
        Index j;
        bool operator<(const Placed& other) const { return low < other.low; }
    };

    // One storage after another, each at its lowest free address.
    Layout first_fit(const Order& order) {
        std::vector<Placed> placed, near;
        Layout layout{std::vector<Offset>(items_.count, kNowhere), 0};
        for (Index j : order) {
            if (items_.size[j] == 0) {
                layout.offset[j] = 0;
                continue;
            }
            const Offset low = conflicts_.sparse() ? lowest_near(j, layout, near) : lowest(j, placed);
            const Placed mine{low, low + items_.size[j], j};
            if (!conflicts_.sparse())
                placed.insert(std::upper_bound(placed.begin(), placed.end(), mine), mine);
            layout.offset[j] = mine.low, layout.peak = std::max(layout.peak, mine.high);
        }
        return layout;
    }

    // Among all placed storages, sorted by address: few of them do not conflict.
    Offset lowest(Index j, const std::vector<Placed>& placed) {
        Offset at = 0;
        for (const Placed& other : placed) {
            if (other.low >= at + items_.size[j]) break;
            --work_;
            if (other.high > at && conflicts_.has(j, other.j)) at = aligned(other.high, items_.align[j]);
        }
        return at;
    }

    // Among the conflicting ones alone.
    Offset lowest_near(Index j, const Layout& layout, std::vector<Placed>& near) {
        near.clear();
        conflicts_.each(j, [&](Index k) {
            const Offset low = layout.offset[k];
            if (low != kNowhere) near.push_back({low, low + items_.size[k], k});
        });
        std::sort(near.begin(), near.end());
        work_ -= 8 * std::int64_t(near.size());
        Offset at = 0;
        for (const Placed& other : near) {
            if (other.low >= at + items_.size[j]) break;
            at = std::max(at, aligned(other.high, items_.align[j]));
        }
        return at;
    }

    // Again and again the storage with the lowest legal address, ties by rank. Addresses only grow, so a
    // heap whose keys are refreshed when popped suffices.
    Layout dive(const Order& order) {
        using Key = std::pair<Offset, Index>;
        Layout layout{std::vector<Offset>(items_.count, 0), 0};
        std::vector<Offset> floor(items_.count, 0);
        std::vector<Key> heap;
        for (Index rank = 0; rank < items_.count; ++rank)
            if (items_.size[order[rank]] > 0) heap.push_back({0, rank});
        while (!heap.empty()) {
            std::pop_heap(heap.begin(), heap.end(), std::greater<>());
            const auto [low, rank] = heap.back();
            const Index j = order[rank];
            heap.pop_back();
            work_ -= 16;
            if (low < floor[j]) {
                heap.push_back({floor[j], rank});
                std::push_heap(heap.begin(), heap.end(), std::greater<>());
                continue;
            }
            const Offset top = low + items_.size[j];
            layout.offset[j] = low, layout.peak = std::max(layout.peak, top);
            conflicts_.each(j, [&](Index k) { floor[k] = std::max(floor[k], aligned(top, items_.align[k])); });
            work_ -= degree_[j];
        }
        return layout;
    }

    // Squeaky wheel: storages that end too high move forward in the order.
    void improve() {
        std::vector<double> priority(items_.count);
        const auto restart = [&] {
            for (Index i = 0; i < items_.count; ++i) priority[best_order_[i]] = i;
        };
        restart();
        Layout layout = best_;
        int stale = 0;
        while (best_.peak > goal_ && work_ > 0) {
            const Offset threshold =
                goal_ + Offset(double(layout.peak - goal_) * std::uniform_real_distribution<>(0, 1)(random_));
            const double jump = items_.count * std::pow(10.0, std::uniform_real_distribution<>(-3, 0)(random_));
            for (Index j = 0; j < items_.count; ++j)
                if (layout.offset[j] + items_.size[j] > threshold) priority[j] -= jump;
            Order order(items_.count);
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(),
                             [&](Index a, Index b) { return priority[a] < priority[b]; });
            layout = dived_ ? dive(order) : first_fit(order);
            if (layout.peak < best_.peak) {
                best_ = layout, best_order_ = order, method_ = 2, stale = 0;
            } else if (++stale > 20) {
                restart(), layout = best_, stale = 0;
            }
        }
    }

    const Items& items_;
    Conflicts conflicts_;
    Bytes goal_;
    std::int64_t work_;
    std::mt19937_64 random_;
    std::vector<Bytes> load_;
    std::vector<std::int64_t> degree_;
    Layout best_;
    Order best_order_;
    bool dived_ = false;
    int method_ = 0;
};

}  // namespace safety
