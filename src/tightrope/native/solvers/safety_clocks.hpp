// Vector clocks, death positions and hazards of ops issued on several streams.
//
//   stream 0   a---b---c-------d      the clock of d is (3, 2): the first 3 ops of stream 0 and the
//                         \   /       first 2 of stream 1 have ended when d starts. A storage whose
//   stream 1       x---y---\-+        last use is y is dead for stream 0 from d on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace safety {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u8 = std::uint8_t;
using Op = i64;
using Stream = i32;
using Position = i32;  // of an op inside its stream

struct Issue {
    i64 num_ops;
    i64 num_streams;
    const Stream* stream;      // of each op, in issue order
    const Position* position;  // of each op in its stream
    const i64* base;           // clock row of the first op of each stream

    i64 row(Op op) const { return base[stream[op]] + position[op]; }
};

// Rows of (key, value) grouped by key; values keep their order.
class Groups {
   public:
    Groups(i64 num_keys, i64 num_rows, const i64* key, const i64* value, i64 stride) : first_(num_keys + 1, 0) {
        for (i64 i = 0; i < num_rows; ++i) ++first_[key[i * stride] + 1];
        for (i64 k = 0; k < num_keys; ++k) first_[k + 1] += first_[k];
        value_.resize(num_rows);
        std::vector<i64> next(first_.begin(), first_.end() - 1);
        for (i64 i = 0; i < num_rows; ++i) value_[next[key[i * stride]]++] = static_cast<i32>(value[i * stride]);
    }

    i32* begin(i64 key) { return value_.data() + first_[key]; }
    i32* end(i64 key) { return value_.data() + first_[key + 1]; }

   private:
    std::vector<i64> first_;
    std::vector<i32> value_;
};

// clocks[row(v) * S + s] = number of leading ops of stream s that have ended when v starts.
inline void clocks(const Issue& issue, i64 num_waits, const i64* waits, Position* clocks) {
    const i64 width = issue.num_streams;
    Groups before(issue.num_ops, num_waits, waits + 1, waits, 2);
    for (Op v = 0; v < issue.num_ops; ++v) {
        Position* clock = clocks + issue.row(v) * width;
        if (issue.position[v] > 0)
            std::copy(clock - width, clock, clock);
        else
            std::fill(clock, clock + width, 0);
        clock[issue.stream[v]] = issue.position[v];
        for (const i32* u = before.begin(v); u != before.end(v); ++u) {
            const Position* other = clocks + issue.row(*u) * width;
            for (i64 s = 0; s < width; ++s) clock[s] = std::max(clock[s], other[s]);
            Position& known = clock[issue.stream[*u]];
            known = std::max(known, issue.position[*u] + 1);
        }
    }
}

// last[a * S + s] = largest position on s of an op that uses storage a, -1 where there is none.
inline void note_uses(const Issue& issue, i64 num_rows, const i64* rows, Position* last) {
    for (i64 i = 0; i < num_rows; ++i) {
        const Op op = rows[2 * i + 1];
        Position& known = last[rows[2 * i] * issue.num_streams + issue.stream[op]];
        known = std::max(known, issue.position[op]);
    }
}

// deaths[a * S + s] = first position on s at which every use of a has ended, the length of s if none.
inline void deaths(i64 num_streams, const i64* base, const Position* clocks, i64 num_storages,
                   const Position* last, const u8* resident, Position* deaths) {
    for (i64 a = 0; a < num_storages; ++a) {
        const Position* use = last + a * num_streams;
        for (i64 s = 0; s < num_streams; ++s) {
            i64 low = base[s], high = base[s + 1];
            if (resident[a]) low = high;
            while (low < high) {
                const i64 middle = low + (high - low) / 2;
                const Position* clock = clocks + middle * num_streams;
                bool ended = true;
                for (i64 t = 0; t < num_streams; ++t) ended &= clock[t] > use[t];
                (ended ? high : low) = ended ? middle : middle + 1;
            }
            deaths[a * num_streams + s] = static_cast<Position>(low - base[s]);
        }
    }
}

struct Hazard {
    i64 storage = -1, earlier = -1, later = -1;
};

// First storage, by number, with two uses of which one writes and that nothing orders.
class Hazards {
   public:
    Hazards(const Issue& issue, const Position* clocks) : issue_(issue), clocks_(clocks) {}

    Hazard find(i64 num_storages, const i64* writer, Groups& reads, Groups& mutates) {
        std::vector<Op> latest(issue_.num_streams);
        for (i64 a = 0; a < num_storages; ++a) {
            std::sort(reads.begin(a), reads.end(a));
            std::sort(mutates.begin(a), mutates.end(a));
            Op written = writer[a];
            const i32* read = reads.begin(a);
            std::fill(latest.begin(), latest.end(), -1);
            for (const i32* change = mutates.begin(a);; ++change) {
                const bool ends = change == mutates.end(a);
                for (; read != reads.end(a) && (ends || *read <= *change); ++read) {
                    if (!ends && *read == *change) continue;
                    if (!ordered(written, *read)) return {a, written, *read};
                    latest[issue_.stream[*read]] = *read;
                }
                if (ends) break;
                if (!ordered(written, *change)) return {a, written, *change};
                for (Op& reader : latest) {
                    if (!ordered(reader, *change)) return {a, reader, *change};
                    reader = -1;
                }
                written = *change;
            }
        }
        return {};
    }

   private:
    bool ordered(Op u, Op v) const {
        return u < 0 || u == v || clocks_[issue_.row(v) * issue_.num_streams + issue_.stream[u]] > issue_.position[u];
    }

    const Issue& issue_;
    const Position* clocks_;
};

}  // namespace safety
