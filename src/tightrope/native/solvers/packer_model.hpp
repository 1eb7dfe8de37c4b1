// The placement instance after preprocessing, and the values that every method shares.
//
//   address ^
//           |      +--B--+        time is cut into sections: spans between which the set of live
//           | +-A--+     |        buffers only shrinks, then grows; one section per inclusion-
//           +-+----+-----+->      maximal set of live buffers
//             0    1     2 section
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace packer {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;
using Bytes = i64;    // in units of the instance's granule
using Offset = i64;   // in units of the instance's granule
using Section = i32;
using Index = i32;

inline constexpr i64 kInfinity = i64{1} << 61;

// Buffers of one part of the instance; all vectors have one entry per buffer.
struct Part {
    std::vector<Bytes> size;
    std::vector<Bytes> align;
    std::vector<Offset> fixed;  // -1 = free to move
    std::vector<Section> start, end;
    std::vector<i64> born, died;  // in the caller's time
    std::vector<Index> id;        // of the caller's buffer
    Section num_sections = 0;
    Offset base = 0;  // address of the part's zero
    Bytes load = 0;   // largest sum of sizes in one section, or fixed top: a lower bound on the peak
    bool plain = true;  // no alignment above the granule, no fixed offset

    Index count() const { return static_cast<Index>(size.size()); }
    i64 width(Index j) const { return died[j] - born[j]; }

    // When every section begins, and when the last one ends, in the caller's time.
    std::vector<i64> times() const {
        std::vector<i64> time(num_sections + 1, std::numeric_limits<i64>::max());
        for (Index j = 0; j < count(); ++j) time[start[j]] = std::min(time[start[j]], born[j]);
        time.back() = *std::max_element(died.begin(), died.end());
        for (Section s = num_sections; s-- > 0;) time[s] = std::min(time[s], time[s + 1]);
        return time;
    }

    void push(const Part& from, Index j, Section first) {
        size.push_back(from.size[j]), align.push_back(from.align[j]), fixed.push_back(from.fixed[j]);
        start.push_back(from.start[j] - first), end.push_back(from.end[j] - first);
        born.push_back(from.born[j]), died.push_back(from.died[j]), id.push_back(from.id[j]);
        num_sections = std::max(num_sections, from.end[j] - first);
    }

    std::vector<Bytes> loads() const {
        std::vector<Bytes> sum(num_sections + 1, 0);
        for (Index j = 0; j < count(); ++j) sum[start[j]] += size[j], sum[end[j]] -= size[j];
        std::partial_sum(sum.begin(), sum.end(), sum.begin());
        sum.pop_back();
        return sum;
    }
};

struct Layout {
    std::vector<Offset> offset;
    Bytes peak = kInfinity;
};

inline Bytes peak_of(const Part& part, const std::vector<Offset>& offset) {
    Bytes peak = 0;
    for (Index j = 0; j < part.count(); ++j) peak = std::max(peak, offset[j] + part.size[j]);
    return peak;
}

inline Offset round_up(Offset offset, Bytes align) {
    return align == 1 ? offset : (offset + align - 1) / align * align;
}

// Processor time of this thread in milliseconds: waiting for a busy machine does not count.
inline i64 thread_milliseconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<i64>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

// Work is counted, so that equal seeds give equal answers; the clock only stops a run away.
struct Budget {
    i64 work_left = 0;
    i64 deadline = 0;  // in thread_milliseconds
    bool expired = false;
    i64 total = work_left;

    bool spend(i64 work) {
        work_left -= work;
        return work_left > 0 && !expired;
    }
    bool late() {
        expired = expired || thread_milliseconds() > deadline;
        return expired;
    }
    bool over() { return work_left <= 0 || late(); }
};

// splitmix64: small, seedable, the same everywhere.
struct Random {
    u64 state;

    u64 next() {
        u64 z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
    u64 below(u64 bound) { return next() % bound; }
};

}  // namespace packer
