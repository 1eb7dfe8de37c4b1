// Sums and maxima over lists of rows: members of hyperedges, or hyperedges of vertices.
//
// Idea        A row of the result is gathered in registers, 256 bytes at a time, and written once.
// Guarantee   One thread sums a row in the order of its list: no number of threads changes a bit.
// Complexity  One read of a row of x per incidence, one write per row of the result.
// Gaps        Threads are started per call; a call that adds under a million numbers has one.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

using i32 = std::int32_t;
using i64 = std::int64_t;

namespace {

constexpr i64 kAhead = 16, kChunk = 64;  // incidences fetched ahead; rows that a thread takes at once
constexpr i64 kAlone = 1 << 20;          // numbers that one thread adds

template <class T> struct Call {  // row k of a result y takes rows idx[ptr[k]..ptr[k + 1]) of x
    i64 count, features;
    const i32 *ptr, *idx;
    const T *scale, *out, *x;  // null = 1: of rows of x, of rows of y
    T* y;
    i32* who;
};

// Calls part(begin, end) for rows of y, as threads become free.
template <class T, class Part> void each(const Call<T>& c, i64 threads, Part part) {
    std::atomic<i64> next{0};
    auto run = [&] {
        for (i64 k; (k = next.fetch_add(kChunk)) < c.count;) part(k, std::min(k + kChunk, c.count));
    };
    std::vector<std::thread> others;
    if (i64{c.ptr[c.count]} * c.features >= kAlone)
        for (i64 t = 1; t < threads; ++t) others.emplace_back(run);
    run();
    for (auto& other : others) other.join();
}

// Sums N vectors V of row k, from column f on.
template <class V, int N, bool Weighted, class T> void tile(const Call<T>& c, i64 k, i64 f) {
    constexpr int W = sizeof(V) / sizeof(T);
    const i64 last = c.ptr[c.count];
    V acc[N] = {};
    for (i64 i = c.ptr[k]; i < c.ptr[k + 1]; ++i) {
        const T* from = c.x + c.idx[i] * c.features + f;
        if (i + kAhead < last)
            for (int j = 0; j < N; j += 2) __builtin_prefetch(c.x + c.idx[i + kAhead] * c.features + f + j * W);
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) {
            V v = *reinterpret_cast<const V*>(from + j * W);
            if constexpr (Weighted) v *= c.scale[c.idx[i]];
            acc[j] += v;
        }
    }
    T* to = c.y + k * c.features + f;
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) *reinterpret_cast<V*>(to + j * W) = acc[j] * (c.out ? c.out[k] : T(1));
}

template <bool Weighted, class T> void sums(const Call<T>& c, i64 begin, i64 end) {
    typedef T Vector __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
    constexpr int W = 32 / sizeof(T);
    for (i64 k = begin; k < end; ++k) {
        i64 f = 0;
        for (; f + 8 * W <= c.features; f += 8 * W) tile<Vector, 8, Weighted>(c, k, f);
        for (; f + 4 * W <= c.features; f += 4 * W) tile<Vector, 4, Weighted>(c, k, f);
        for (; f + W <= c.features; f += W) tile<Vector, 1, Weighted>(c, k, f);
        for (; f < c.features; ++f) tile<T, 1, Weighted>(c, k, f);
    }
}

// The largest of each column, or NaN, and the first member that has it; both 0 in an empty list.
template <class T> void maxima(const Call<T>& c, i64 begin, i64 end) {
    std::fill(c.y + begin * c.features, c.y + end * c.features, T(0));
    std::fill(c.who + begin * c.features, c.who + end * c.features, 0);
    for (i64 k = begin; k < end; ++k) {
        T* best = c.y + k * c.features;
        i32* who = c.who + k * c.features;
        for (i64 i = c.ptr[k]; i < c.ptr[k + 1]; ++i)
            for (i64 f = 0; f < c.features; ++f) {
                const T value = c.x[c.idx[i] * c.features + f];
                const bool take = (i == c.ptr[k]) | (value > best[f]) | ((value != value) & (best[f] == best[f]));
                best[f] = take ? value : best[f];
                who[f] = take ? c.idx[i] : who[f];
            }
    }
}

template <class T> void run(const i64* n, void* const* t) {
    auto i = [&](int k) { return static_cast<i32*>(t[k]); };
    auto one = [&](int k) { return static_cast<T*>(t[k]); };
    const Call<T> c{n[1], n[2], i(0), i(1), one(2), one(3), one(4), one(5), i(6)};
    each(c, n[3], [&](i64 begin, i64 end) {
        c.who     ? maxima(c, begin, end)
        : c.scale ? sums<true>(c, begin, end)
                  : sums<false>(c, begin, end);
    });
}

}  // namespace

// n is {bytes of a number, lists, features, threads}; t are the pointers of Call. Maxima where `who`
// is given, else sums.
extern "C" void tightrope_hypergraph(const i64* n, void* const* t) {
    n[0] == 8 ? run<double>(n, t) : run<float>(n, t);
}
