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

constexpr int kTile = 8;                     // vectors of 32 bytes
constexpr i64 kAhead = 16, kAlone = 1 << 20;  // incidences fetched ahead; numbers that one thread adds

template <class T> struct Wide {
    static constexpr int lanes = 32 / sizeof(T);
    typedef T Vector __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
    using Mask = decltype(Vector{} != Vector{});
};

struct Lists {  // row(k) of a result takes rows idx[ptr[k]..ptr[k + 1]) of x
    i64 count, features, threads;
    const i32 *ptr, *idx, *rows;
    i64 row(i64 k) const { return rows ? rows[k] : k; }
    i64 work() const { return (ptr[count] + count) * features; }
};

// Runs part(0) to part(tasks - 1); returns whether one of them is true.
template <class Part> bool each(i64 tasks, i64 threads, Part part) {
    std::atomic<i64> next{0};
    std::atomic<bool> any{false};
    auto run = [&] {
        for (i64 t; (t = next++) < tasks;)
            if (part(t)) any = true;
    };
    std::vector<std::thread> others;
    for (i64 t = 1; t < std::min(threads, tasks); ++t) others.emplace_back(run);
    run();
    for (auto& other : others) other.join();
    return any;
}

// Calls part(begin, end) for lists, in chunks of equal work.
template <class Part> bool rows_of(const Lists& l, Part part) {
    const i64 chunks = l.threads > 1 && l.work() >= kAlone ? 16 * l.threads : 1, all = l.ptr[l.count] + l.count;
    auto cut = [&](i64 chunk) {
        auto before = [&](const i32& p) { return chunk == chunks || p + (&p - l.ptr) < all * chunk / chunks; };
        return std::partition_point(l.ptr, l.ptr + l.count, before) - l.ptr;
    };
    return each(chunks, l.threads, [&](i64 chunk) { return part(cut(chunk), cut(chunk + 1)); });
}

// Sums N vectors of a row; a factor is of the incidence where `each`, else of the row that it reads.
template <class T, int N, bool Weighted>
void tile(const Lists& l, i64 k, const T* factors, bool each, const T* x, T whole, T* y, typename Wide<T>::Mask& nan) {
    using V = typename Wide<T>::Vector;
    constexpr int W = Wide<T>::lanes;
    const i64 last = l.ptr[l.count];
    V acc[N] = {};
    for (i64 i = l.ptr[k]; i < l.ptr[k + 1]; ++i) {
        const T* from = x + l.idx[i] * l.features;
        if (i + kAhead < last)
            for (int j = 0; j < N; j += 2) __builtin_prefetch(x + l.idx[i + kAhead] * l.features + j * W);
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) {
            V v = *reinterpret_cast<const V*>(from + j * W);
            if constexpr (Weighted) v *= factors[each ? i : l.idx[i]];
            acc[j] += v;
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
        acc[j] *= whole;
        nan |= acc[j] != acc[j];
        *reinterpret_cast<V*>(y + j * W) = acc[j];
    }
}

template <class T> bool sums(const Lists& l, const T* scale, const T* values, const T* out, const T* x, T* y) {
    const T* factors = values ? values : scale;
    return rows_of(l, [&](i64 begin, i64 end) {
        typename Wide<T>::Mask nan = {};
        bool bad = false;
        for (i64 k = begin; k < end; ++k) {
            const i64 row = l.row(k);
            const T whole = out ? out[row] : T(1);
            T* to = y + row * l.features;
            i64 f = 0;
            auto tiles = [&]<int N>() {
                for (; f + N * Wide<T>::lanes <= l.features; f += N * Wide<T>::lanes)
                    factors ? tile<T, N, true>(l, k, factors, values, x + f, whole, to + f, nan)
                            : tile<T, N, false>(l, k, factors, values, x + f, whole, to + f, nan);
            };
            tiles.template operator()<kTile>();
            tiles.template operator()<kTile / 2>();
            tiles.template operator()<1>();
            for (; f < l.features; ++f) {
                T sum = 0;
                for (i64 i = l.ptr[k]; i < l.ptr[k + 1]; ++i)
                    sum += x[l.idx[i] * l.features + f] * (factors ? factors[values ? i : l.idx[i]] : T(1));
                to[f] = sum * whole;
                bad |= to[f] != to[f];
            }
        }
        for (int w = 0; w < Wide<T>::lanes; ++w) bad |= nan[w] != 0;
        return bad;
    });
}

// The largest of each column, and the first member that has it; 0 and -1 of an empty list.
template <class T> bool maxima(const Lists& l, const T* x, T* y, i32* who) {
    return rows_of(l, [&](i64 begin, i64 end) {
        int bad = 0;
        for (i64 k = begin; k < end; ++k) {
            T* best = y + l.row(k) * l.features;
            i32* at = who + l.row(k) * l.features;
            std::fill(best, best + l.features, T(0));
            std::fill(at, at + l.features, -1);
            for (i64 i = l.ptr[k]; i < l.ptr[k + 1]; ++i)
                for (i64 f = 0; f < l.features; ++f) {
                    const T value = x[l.idx[i] * l.features + f];
                    const bool take = (at[f] < 0) | (value > best[f]);
                    bad |= value != value;
                    best[f] = take ? value : best[f];
                    at[f] = take ? l.idx[i] : at[f];
                }
        }
        return bad != 0;
    });
}

// The gradient of maxima: row v takes those of the lists in which it is the largest, of each list once.
template <class T> bool chosen(const Lists& l, const T* grad, const i32* who, T* y) {
    return rows_of(l, [&](i64 begin, i64 end) {
        for (i64 k = begin; k < end; ++k) {
            T* to = y + l.row(k) * l.features;
            std::fill(to, to + l.features, T(0));
            for (i64 i = l.ptr[k]; i < l.ptr[k + 1]; ++i) {
                if (i > l.ptr[k] && l.idx[i] == l.idx[i - 1]) continue;
                const i64 at = l.idx[i] * l.features;
                for (i64 f = 0; f < l.features; ++f) to[f] += who[at + f] == l.row(k) ? grad[at + f] : T(0);
            }
        }
        return false;
    });
}

template <class T> bool call(i64 what, const Lists& l, void* const* t) {
    auto one = [&](int k) { return static_cast<T*>(t[k]); };
    if (what == 0) return sums<T>(l, one(0), one(1), one(2), one(3), one(4));
    if (what == 1) return maxima<T>(l, one(0), one(1), static_cast<i32*>(t[2]));
    return chosen<T>(l, one(0), static_cast<i32*>(t[1]), one(2));
}

}  // namespace

// n is {function, bytes of a number, lists, features, threads}. What is not given is null. 1: a result is NaN.
extern "C" int tightrope_hypergraph(const i64* n, const i32* ptr, const i32* idx, const i32* rows, void* const* t) {
    const Lists lists{n[2], n[3], n[4], ptr, idx, rows};
    return n[1] == 8 ? call<double>(n[0], lists, t) : call<float>(n[0], lists, t);
}
