// The cheapest path of a sequence of items through slots; see tightrope_trace.align for the moves and their costs.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace {
using i64 = std::int64_t;
constexpr i64 kFar = i64{1} << 60;
}  // namespace

extern "C" i64 tightrope_align(i64 items, i64 slots, const i64* kind, const i64* cost, const i64* stay,
                                const i64* skip, const i64* family, i64 back, i64 far, i64* path) {
    if (!items || !slots) return 0;
    std::vector<i64> before(slots), through(slots), total(slots), jumped(slots), next(slots);
    i64 sum = 0, families = 0;
    for (i64 j = 0; j < slots; ++j) {
        before[j] = sum;
        sum += skip[j];
        through[j] = sum;
        families = std::max(families, family[j] + 1);
    }
    std::vector<i64> least(families);
    std::vector<std::int32_t> steps(static_cast<std::size_t>(items * slots)), from(slots);
    for (i64 j = 0; j < slots; ++j) total[j] = before[j] + cost[kind[0] * slots + j];
    for (i64 row = 1; row < items; ++row) {
        std::fill(least.begin(), least.end(), -1);
        i64 best = slots - 1;
        for (i64 j = slots - 1; j >= 0; --j) {  // jumps lead back: their sources are later slots
            i64& near = least[family[j]];
            if (near < 0 || total[j] < total[near]) near = j;
            if (total[j] < total[best]) best = j;
            jumped[j] = total[j];
            from[j] = static_cast<std::int32_t>(j);
            if (total[near] + back < jumped[j]) {
                jumped[j] = total[near] + back;
                from[j] = static_cast<std::int32_t>(near);
            }
            if (total[best] + far < jumped[j]) {
                jumped[j] = total[best] + far;
                from[j] = static_cast<std::int32_t>(best);
            }
        }
        i64 reach = kFar;
        std::int32_t source = 0;
        std::int32_t* step = &steps[static_cast<std::size_t>(row * slots)];
        const i64* price = cost + kind[row] * slots;
        const i64* again = stay + kind[row] * slots;
        for (i64 j = 0; j < slots; ++j) {
            i64 now = total[j] + again[j];
            step[j] = static_cast<std::int32_t>(j);
            if (jumped[j] < total[j] && jumped[j] + price[j] < now) {
                now = jumped[j] + price[j];
                step[j] = from[j];
            }
            if (reach < kFar && reach + before[j] + price[j] < now) {
                now = reach + before[j] + price[j];
                step[j] = source;
            }
            next[j] = now;
            if (jumped[j] - through[j] < reach) {
                reach = jumped[j] - through[j];
                source = from[j];
            }
        }
        total.swap(next);
    }
    for (i64 j = 0; j < slots; ++j) total[j] += sum - through[j];
    path[items - 1] = std::min_element(total.begin(), total.end()) - total.begin();
    const i64 least_total = total[path[items - 1]];
    for (i64 row = items - 1; row > 0; --row)
        path[row - 1] = steps[static_cast<std::size_t>(row * slots + path[row])];
    return least_total;
}
