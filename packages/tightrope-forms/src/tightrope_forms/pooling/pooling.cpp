// Maximum pools over planes, with the place of each maximum in its window as a byte.
//
// Idea        A row of results meets one row and column of its windows at a time, so loops run along rows.
// Guarantee   The first of equal values wins, and NaN wins, as in torch. Gradients are added in torch's order.
// Complexity  One comparison per result and place of the window.
// Gaps        Threads are started per call; a call of under a million comparisons has one.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

using i64 = std::int64_t;
using u8 = std::uint8_t;

namespace {

constexpr i64 kBlock = 64;       // results of a row at a time
constexpr i64 kAlone = 1 << 20;  // comparisons that one thread makes

struct Sizes {
    i64 bytes, planes, rows, columns, out_rows, out_columns, high, wide, down, right, top, left, threads;
};

// The first result, and the one after the last, whose window has `at` inside of a line of `size`.
inline i64 first(i64 at, i64 step) { return at >= 0 ? 0 : (-at + step - 1) / step; }
inline i64 last(i64 at, i64 step, i64 size, i64 count) {
    return at >= size ? 0 : std::min(count, (size - 1 - at) / step + 1);
}

template <class T> struct Place;  // as wide as the number, so that both are chosen in one vector
template <> struct Place<float> { using type = std::int32_t; };
template <> struct Place<double> { using type = std::int64_t; };

// The results [begin, end) of a row, at most kBlock, all at once.
template <class T, i64 Step> void block(const Sizes& s, const T* x, T* y, u8* who, i64 from, i64 begin, i64 end) {
    using I = typename Place<T>::type;
    const i64 above = std::max<i64>(-from, 0), step = Step ? Step : s.right;
    T best[kBlock];
    I place[kBlock];
    for (i64 k = begin; k < end; ++k) {
        best[k - begin] = -std::numeric_limits<T>::infinity();
        place[k - begin] = I(above * s.wide + std::max<i64>(s.left - k * step, 0));
    }
    for (i64 h = above; h < s.high && from + h < s.rows; ++h)
        for (i64 w = 0; w < s.wide; ++w) {
            const i64 at = w - s.left;
            const i64 low = std::max(begin, first(at, step));
            const i64 count = std::min(end, last(at, step, s.columns, s.out_columns)) - low;
            const T* line = x + (from + h) * s.columns + at + low * step;
            T* b = best + (low - begin);
            I* p = place + (low - begin);
            const I here = I(h * s.wide + w);
            for (i64 k = 0; k < count; ++k) {
                const T value = line[k * step];
                const bool keep = value <= b[k];  // not where one is NaN
                const bool stays = keep | ((b[k] != b[k]) & (value == value));
                b[k] = stays ? b[k] : value;
                p[k] = stays ? p[k] : here;
            }
        }
    std::copy(best, best + (end - begin), y + begin);
    for (i64 k = begin; k < end; ++k) who[k] = u8(place[k - begin]);
}

template <class T> void forward(const Sizes& s, i64 plane, const T* x, T* y, u8* who) {
    x += plane * s.rows * s.columns;
    for (i64 k = 0; k < s.out_rows; ++k) {
        const i64 at = (plane * s.out_rows + k) * s.out_columns, from = k * s.down - s.top;
        for (i64 begin = 0; begin < s.out_columns; begin += kBlock) {
            const i64 end = std::min(begin + kBlock, s.out_columns);
            auto part = s.right == 1 ? block<T, 1> : s.right == 2 ? block<T, 2> : block<T, 0>;
            part(s, x, y + at, who + at, from, begin, end);
        }
    }
}

// Bytes that are no places of a window, as of a result that was never made, write nothing outside of the plane.
template <class T> void backward(const Sizes& s, i64 plane, T* x, const T* y, const u8* who) {
    const i64 size = s.rows * s.columns;
    i64 offset[256], at = plane * s.out_rows * s.out_columns;
    for (i64 place = 0; place < 256; ++place)
        offset[place] = place / s.wide * s.columns + place % s.wide - s.left;
    x += plane * size;
    std::fill(x, x + size, T(0));
    for (i64 i = 0; i < s.out_rows; ++i) {
        const i64 line = (i * s.down - s.top) * s.columns;
        for (i64 k = 0; k < s.out_columns; ++k, ++at) {
            const i64 to = line + k * s.right + offset[who[at]];
            if (to >= 0 && to < size) x[to] += y[at];
        }
    }
}

// Calls part(plane) for every plane, in some threads.
template <class Part> void each(const Sizes& s, Part part) {
    const bool alone = s.planes * s.out_rows * s.out_columns * s.high * s.wide < kAlone;
    const i64 count = alone ? 1 : std::min(s.threads, s.planes);
    auto run = [&](i64 number) {
        for (i64 plane = number; plane < s.planes; plane += count) part(plane);
    };
    std::vector<std::thread> others;
    for (i64 number = 1; number < count; ++number) others.emplace_back(run, number);
    run(0);
    for (auto& other : others) other.join();
}

template <class T> void run(const Sizes& s, bool back, void* x, void* y, u8* who) {
    T *const in = static_cast<T*>(x), *const out = static_cast<T*>(y);
    each(s, [&](i64 plane) { back ? backward(s, plane, in, out, who) : forward(s, plane, in, out, who); });
}

}  // namespace

// n has the numbers of Sizes; x and y are input and result, or their gradients where `back` is set.
extern "C" void tightrope_pooling(const i64* n, i64 back, void* x, void* y, void* who) {
    const Sizes s{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12]};
    s.bytes == 8 ? run<double>(s, back, x, y, static_cast<u8*>(who))
                 : run<float>(s, back, x, y, static_cast<u8*>(who));
}
