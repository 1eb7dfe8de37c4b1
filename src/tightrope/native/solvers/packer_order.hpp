// Orders in which buffers are placed.
//
// Letters: T = largest load of any section that the buffer spans, W = life length, A = size * life,
// Z = size, O = number of conflicts, S = number of sections spanned. "TWA" sorts by T, then W, then A,
// larger first; what is still equal keeps the order of the part, which is not the caller's.
#pragma once

#include <array>
#include <cmath>
#include <string_view>

#include "packer_model.hpp"

namespace packer {

inline constexpr std::string_view kLetters = "TWAZOS";
using Features = std::array<std::vector<double>, kLetters.size()>;

// Largest entry of `loads` over the life of every buffer.
inline std::vector<double> largest_loads(const Part& part, const std::vector<double>& loads) {
    const Section m = part.num_sections;
    int levels = 1;
    while ((2 << (levels - 1)) <= m) ++levels;
    std::vector<std::vector<double>> top(levels, std::vector<double>(m));
    top[0] = loads;
    for (int k = 1; k < levels; ++k)
        for (Section s = 0; s + (1 << k) <= m; ++s) top[k][s] = std::max(top[k - 1][s], top[k - 1][s + (1 << (k - 1))]);
    std::vector<double> largest(part.count());
    for (Index j = 0; j < part.count(); ++j) {
        int k = 0;
        while ((2 << k) <= part.end[j] - part.start[j]) ++k;
        largest[j] = std::max(top[k][part.start[j]], top[k][part.end[j] - (1 << k)]);
    }
    return largest;
}

inline Features features(const Part& part) {
    const Index n = part.count();
    Features f;
    for (auto& column : f) column.resize(n);
    const auto loads = part.loads();
    f[0] = largest_loads(part, {loads.begin(), loads.end()});
    std::vector<i64> begun(part.num_sections + 1, 0), ended(part.num_sections + 1, 0);
    for (Index j = 0; j < n; ++j) ++begun[part.start[j]], ++ended[part.end[j]];
    std::partial_sum(begun.begin(), begun.end(), begun.begin());
    std::partial_sum(ended.begin(), ended.end(), ended.begin());
    for (Index j = 0; j < n; ++j) {
        const double width = static_cast<double>(part.width(j)), size = static_cast<double>(part.size[j]);
        f[1][j] = width, f[2][j] = size * width, f[3][j] = size;
        f[4][j] = static_cast<double>(begun[part.end[j] - 1] - ended[part.start[j]]);
        f[5][j] = part.end[j] - part.start[j];
    }
    return f;
}

// Sort by the letters, each value multiplied by exp(noise * normal).
inline std::vector<Index> order_by(const Features& f, std::string_view letters, double noise, Random& random) {
    const Index n = static_cast<Index>(f[0].size());
    std::vector<std::array<double, 3>> key(n);
    for (std::size_t at = 0; at < 3; ++at) {
        const auto& column = f[kLetters.find(letters[at])];
        for (Index j = 0; j < n; ++j) {
            double factor = 1.0;
            if (noise > 0) {
                const double radius = std::sqrt(-2 * std::log(1 - random.unit()));
                factor = std::exp(noise * radius * std::cos(6.283185307179586 * random.unit()));
            }
            key[j][at] = -column[j] * factor;
        }
    }
    std::vector<Index> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return key[a] < key[b]; });
    return order;
}

enum class Fit { size, size_log_life, size_sqrt_life, area };
enum class Tie { index, life, start };

inline std::vector<Index> fit_order(const Part& part, Fit fit, Tie tie) {
    const Index n = part.count();
    std::vector<std::pair<double, i64>> key(n);
    for (Index j = 0; j < n; ++j) {
        const double life = static_cast<double>(part.width(j));
        const double factor = fit == Fit::size              ? 1.0
                              : fit == Fit::size_log_life   ? std::log2(life + 1)
                              : fit == Fit::size_sqrt_life  ? std::sqrt(life)
                                                            : life;
        key[j].first = -static_cast<double>(part.size[j]) * factor;
        key[j].second = tie == Tie::index ? 0 : tie == Tie::life ? -part.width(j) : part.start[j];
    }
    std::vector<Index> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return key[a] < key[b]; });
    return order;
}

}  // namespace packer
