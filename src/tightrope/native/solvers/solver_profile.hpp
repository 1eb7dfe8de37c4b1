// The byte profile of a set of recomputations, exact after every add and remove.
//
//     key:   (t, u) -> t * 2^bits + u; op t itself is (t, t), so re-runs of stage t sort before it
//
//     bytes ^      c        L1        k      L        a pair k between two readers of one copy
//           |      +--------+.........+------+        splits it: the bytes in (L1, k] are won
//           +------+--------+---------+------+--> event
//
// Where the last reader of a copy may write its result over it, the two never lie side by side: its event
// takes the bytes of the copy less.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace tightrope {

using i64 = std::int64_t;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Csr {
    std::vector<i64> start, item;
    Csr(const i64* offsets, const i64* items, i64 rows)
        : start(offsets, offsets + rows + 1), item(items, items + offsets[rows]) {}
    const i64* begin(i64 row) const { return item.data() + start[row]; }
    const i64* end(i64 row) const { return item.data() + start[row + 1]; }
};

struct Pair {
    i64 stage, op;
    bool operator==(const Pair&) const = default;
};

// Bytes are held as doubles: exact below 2^53, so sums may be taken in any order. Eight of them side by
// side let the compiler use vectors, which it may not for one sum of doubles: 4 times faster.
inline double shift(double* bytes, i64 first, i64 last, double delta, double limit) {
    double change[8] = {};
    i64 i = first;
    for (; i + 8 <= last; i += 8)
        for (int k = 0; k < 8; ++k) {
            const double before = bytes[i + k] - limit, after = before + delta;
            change[k] += (after > 0 ? after : 0) - (before > 0 ? before : 0);
            bytes[i + k] += delta;
        }
    for (; i < last; ++i) {
        const double before = bytes[i] - limit, after = before + delta;
        change[0] += (after > 0 ? after : 0) - (before > 0 ? before : 0);
        bytes[i] += delta;
    }
    return (change[0] + change[1]) + (change[2] + change[3]) + (change[4] + change[5]) + (change[6] + change[7]);
}

// How many of the ascending keys are below `at`, without a branch that depends on them: the lists are
// short and asked at random, so a mispredicted comparison would cost more than the search.
inline i64 rank(const std::vector<i64>& keys, i64 at) {
    i64 count = static_cast<i64>(keys.size());
    const i64* from = keys.data();
    for (; count > 1; count -= count / 2) from += static_cast<i64>(from[count / 2 - 1] < at) * (count / 2);
    return from - keys.data() + (count == 1 && *from < at ? 1 : 0);
}

// Bytes of many events. What is added to a whole block that stays under the limit is noted once, so that a
// long lifetime costs a step per block: 10 times faster at 100,000 ops.
class Levels {
  public:
    void operator=(const std::vector<double>& bytes) {
        size_ = static_cast<i64>(bytes.size());
        bytes_ = bytes;
        bytes_.resize((size_ + kBlock - 1) / kBlock * kBlock, -kInf);
        waiting_.assign(bytes_.size() / kBlock, 0);
        most_.resize(waiting_.size());
        for (i64 b = 0; b < static_cast<i64>(most_.size()); ++b) tighten(b);
    }
    double operator[](i64 at) const { return bytes_[at] + waiting_[at / kBlock]; }

    // Add to the events in [first, last), and return by how much their excess over `limit` grows.
    double shift(i64 first, i64 last, double delta, double limit) {
        double change = 0;
        for (i64 at = first; at < last;) {
            const i64 block = at / kBlock, end = std::min(last, (block + 1) * kBlock);
            if (most_[block] + std::max(delta, 0.0) > limit) {
                change += tightrope::shift(bytes_.data(), at, end, delta, limit - waiting_[block]);
                tighten(block);
            } else if (at % kBlock == 0 && (end % kBlock == 0 || end == size_)) {
                waiting_[block] += delta, most_[block] += delta;
            } else {
                for (i64 i = at; i < end; ++i) bytes_[i] += delta;
                most_[block] += std::max(delta, 0.0);
            }
            at = end;
        }
        return change;
    }

    // The first event from `at` with more than `limit` bytes, or the number of events.
    i64 first_over(i64 at, double limit) const {
        for (; at < size_; at = (at / kBlock + 1) * kBlock) {
            const i64 block = at / kBlock, end = std::min(size_, (block + 1) * kBlock);
            if (most_[block] <= limit) continue;
            for (; at < end; ++at)
                if ((*this)[at] > limit) return at;
            --at;
        }
        return size_;
    }

    // Hand the bytes of every event to `count`.
    template <class Count>
    void each(Count count) const {
        for (i64 at = 0; at < size_; ++at) count((*this)[at]);
    }

  private:
    static constexpr i64 kBlock = 64;
    i64 size_ = 0;
    std::vector<double> bytes_, waiting_, most_;  // of a block: what each of its events has more, and a bound on the most

    void tighten(i64 block) {
        double top[8];
        std::fill(top, top + 8, -kInf);
        for (const double* from = &bytes_[block * kBlock]; from < bytes_.data() + (block + 1) * kBlock; from += 8)
            for (int k = 0; k < 8; ++k) top[k] = from[k] > top[k] ? from[k] : top[k];
        most_[block] = *std::max_element(top, top + 8) + waiting_[block];
    }
};

class Profile {
  public:
    const i64 num_ops, num_storages, bits, end_key;
    std::vector<double> base_need, again_need, again_ns, size;
    std::vector<i64> producer, first, last, away, back;  // re-runs in [first, last] without [away, back)
    std::vector<i64> base_over, again_over, part;        // storages that may be written over, -1 = none
    std::vector<char> pinned;
    Csr reads, again_reads, again_creates;
    Levels base;                    // bytes while the first run of op t is at its peak
    std::vector<i64> again_key;     // re-runs, ascending
    std::vector<double> again;      // bytes while each re-run is at its peak
    std::vector<std::vector<i64>> made, read;
    double limit = kInf, excess = 0, ns = 0;

    Profile(i64 ops, i64 storages, const i64* op_rows, const i64* storage_rows, const i64* read_start,
            const i64* read_item, const i64* again_start, const i64* again_item, const i64* create_start,
            const i64* create_item)
        : num_ops(ops), num_storages(storages), bits(std::bit_width(static_cast<std::uint64_t>(ops))),
          end_key((ops << bits) + ops),
          reads(read_start, read_item, ops), again_reads(again_start, again_item, ops),
          again_creates(create_start, create_item, ops), made(storages), read(storages) {
        for (i64 op = 0; op < ops; ++op) {
            const i64* row = op_rows + 10 * op;
            base_need.push_back(static_cast<double>(row[0]));
            again_need.push_back(static_cast<double>(row[1]));
            again_ns.push_back(static_cast<double>(row[2]));
            first.push_back(row[3]);
            last.push_back(row[4]);
            away.push_back(row[5]);
            back.push_back(row[6]);
            base_over.push_back(row[7]);
            again_over.push_back(row[8]);
            part.push_back(row[9]);
        }
        for (i64 s = 0; s < storages; ++s) {
            const i64* row = storage_rows + 4 * s;
            size.push_back(static_cast<double>(row[0]));
            producer.push_back(row[1]);
            pinned.push_back(row[2] != 0);
            if (row[1] >= 0) made[s].push_back(key(row[1], row[1]));
        }
        for (i64 op = 0; op < ops; ++op)
            for (const i64* s = reads.begin(op); s != reads.end(op); ++s) read[*s].push_back(key(op, op));
        for (i64 s = 0; s < storages; ++s)
            if (storage_rows[4 * s + 3] != 0) read[s].push_back(end_key);
        base = base_need;
        for (i64 s = 0; s < storages; ++s)
            if (producer[s] >= 0 && !read[s].empty()) spread(made[s][0], read[s].back(), size[s]);
        for (i64 op = 0; op < ops; ++op) base.shift(op, op + 1, -overlap(key(op, op)), limit);
    }

    i64 key(i64 stage, i64 op) const { return (stage << bits) + op; }
    i64 stage_of(i64 at) const { return at >> bits; }
    i64 op_of(i64 at) const { return at & ((i64{1} << bits) - 1); }
    Pair pair(i64 at) const { return {stage_of(at), op_of(at)}; }
    // First stage whose first run is at or after `at`.
    i64 stage_from(i64 at) const { return stage_of(at) + (op_of(at) > stage_of(at) ? 1 : 0); }
    bool allowed(i64 stage, i64 op) const {
        return op >= 0 && first[op] <= stage && stage <= last[op] && (stage < away[op] || stage >= back[op]);
    }
    bool has(i64 at) const {
        const i64 slot = rank(again_key, at);
        return slot < static_cast<i64>(again_key.size()) && again_key[slot] == at;
    }
    double over(double bytes) const { return std::max(bytes - limit, 0.0); }

    void set_limit(double bytes) {
        limit = bytes;
        excess = 0;
        base.each([&](double b) { excess += over(b); });
        for (double b : again) excess += over(b);
    }

    double peak() const {
        double top = 0;
        base.each([&](double b) { top = std::max(top, b); });
        for (double b : again) top = std::max(top, b);
        return top;
    }

    // The copy of s that an event at `at` reads: its creation, its last reader, the next creation.
    struct Copy {
        i64 start, stop, next;
    };
    Copy copy(i64 s, i64 at) const {
        const auto& m = made[s];
        auto it = m.end();
        while (it != m.begin() && *(it - 1) >= at) --it;
        const i64 start = it == m.begin() ? -1 : *(it - 1);
        const i64 next = it == m.end() ? end_key + 1 : *it == at ? (it + 1 == m.end() ? end_key + 1 : *(it + 1)) : *it;
        return {start, reader_before(s, start, next), next};
    }
    // Last reader in (after, before), or `after` when there is none.
    i64 reader_before(i64 s, i64 after, i64 before) const {
        const i64 found = rank(read[s], before);
        return found == 0 ? after : std::max(after, read[s][found - 1]);
    }
    i64 reader_after(i64 s, i64 at) const {
        const i64 found = rank(read[s], at + 1);
        return found == static_cast<i64>(read[s].size()) ? -1 : read[s][found];
    }

    // The storage that the event at `at` may write over.
    i64 target(i64 at) const { return op_of(at) == stage_of(at) ? base_over[op_of(at)] : again_over[op_of(at)]; }
    // Bytes that the event at `at` takes less: it writes over a copy that was made in its part, which it reads last.
    double overlap(i64 at) const {
        const i64 s = target(at);
        if (s < 0 || producer[s] < 0) return 0;
        const Copy c = copy(s, at);
        return c.stop == at && part[stage_of(c.start)] == part[stage_of(at)] ? size[s] : 0;
    }

    void add(Pair p) {
        const i64 at = key(p.stage, p.op);
        const i64 slot = rank(again_key, at);
        const bool before_again = slot < static_cast<i64>(again_key.size()) && stage_of(again_key[slot]) == p.stage;
        const double live =
            before_again ? again[slot] + overlap(again_key[slot]) - again_need[op_of(again_key[slot])]
                         : base[p.stage] + overlap(key(p.stage, p.stage)) - base_need[p.stage];
        const double bytes = live + again_need[p.op];
        again_key.insert(again_key.begin() + slot, at);
        again.insert(again.begin() + slot, bytes);
        excess += over(bytes);
        ns += again_ns[p.op];
        for (const i64* s = again_creates.begin(p.op); s != again_creates.end(p.op); ++s) {
            const Copy c = copy(*s, at);
            const i64 earlier = reader_before(*s, c.start, at);
            settle(*s, earlier, c.stop, 1);
            if (c.stop > at) spread(earlier, at, -size[*s]);
            insert(made[*s], at);
            settle(*s, earlier, c.stop, -1);
        }
        for (const i64* s = again_reads.begin(p.op); s != again_reads.end(p.op); ++s) {
            const Copy c = copy(*s, at);
            settle(*s, c.stop, at, 1);
            if (c.stop < at) spread(c.stop, at, size[*s]);
            insert(read[*s], at);
            settle(*s, c.stop, at, -1);
        }
    }

    void remove(Pair p) {
        const i64 at = key(p.stage, p.op);
        for (const i64* s = again_reads.begin(p.op); s != again_reads.end(p.op); ++s) {
            settle(*s, at, copy(*s, at).stop, 1);
            erase(read[*s], at);
            const Copy c = copy(*s, at);
            if (c.stop < at) spread(c.stop, at, -size[*s]);
            settle(*s, c.stop, at, -1);
        }
        for (const i64* s = again_creates.begin(p.op); s != again_creates.end(p.op); ++s) {
            const Copy c = copy(*s, at);
            const i64 earlier = reader_before(*s, c.start, at);
            settle(*s, earlier, c.stop, 1);
            erase(made[*s], at);
            if (c.stop > at) spread(earlier, at, size[*s]);
            settle(*s, earlier, c.stop, -1);
        }
        const i64 slot = rank(again_key, at);
        excess -= over(again[slot]);
        ns -= again_ns[p.op];
        again_key.erase(again_key.begin() + slot);
        again.erase(again.begin() + slot);
    }

    void clear() {
        while (!again_key.empty()) remove(pair(again_key.back()));
    }

  private:
    // Lists of readers and creations are short: moving their tail by hand beats a call to memmove.
    static void insert(std::vector<i64>& keys, i64 at) {
        keys.push_back(at);
        std::size_t i = keys.size() - 1;
        for (; i > 0 && keys[i - 1] > at; --i) keys[i] = keys[i - 1];
        keys[i] = at;
    }
    static void erase(std::vector<i64>& keys, i64 at) {
        i64 carried = keys.back();
        keys.pop_back();
        for (std::size_t i = keys.size(); carried != at; --i) std::swap(carried, keys[i - 1]);
    }

    // Take back (sign 1), or give again (-1), what two events save by writing over s: around a change of its lists.
    void settle(i64 s, i64 one, i64 other, double sign) {
        for (const i64 at : {one, other == one ? i64{-1} : other}) {
            if (at < 0 || at >= end_key || target(at) != s) continue;
            const double bytes = sign * overlap(at);
            if (bytes == 0) continue;
            if (op_of(at) == stage_of(at))
                excess += base.shift(stage_of(at), stage_of(at) + 1, bytes, limit);
            else
                excess += shift(again.data(), rank(again_key, at), rank(again_key, at) + 1, bytes, limit);
        }
    }

    // Add to the bytes of every event in (after, until].
    void spread(i64 after, i64 until, double delta) {
        const i64 from = stage_of(after) + (op_of(after) == stage_of(after) ? 1 : 0);
        const i64 to = stage_of(until) + (op_of(until) == stage_of(until) ? 1 : 0);
        excess += base.shift(from, std::min(to, num_ops), delta, limit);
        excess += shift(again.data(), rank(again_key, after + 1), rank(again_key, until + 1), delta, limit);
    }
};

}  // namespace tightrope
