// Rows of numbers in 2, 4 or 8 bits, each with its own width; see tightrope_ranks/graphs/rows.py.
//
// A row of D numbers in b bits: its smallest value (4 bytes, a float), its step (2 bytes, the upper half of a float,
// rounded up), and then ceil(D * b / 8) bytes. With Q = ceil(D / (8 / b)), byte k holds numbers k, k + Q, k + 2 Q, ...,
// the first in the lowest bits: packing is a loop without shuffles. A row in 32 bits is its floats. A value is rounded
// to one of its two neighbours at random, by a number that depends on the seed, the row's name and the column alone.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {
using i64 = std::int64_t;
using u32 = std::uint32_t;
using u16 = std::uint16_t;
using u8 = std::uint8_t;
constexpr i64 kHeader = 6;
constexpr float kLeast = 0x1p-126f;

i64 bytes_of(i64 columns, i64 bits) {
    if (bits == 32) return columns * 4;
    const i64 per = 8 / bits;
    return kHeader + (columns + per - 1) / per;
}

inline u32 mixed(u32 a, u32 b) {
    u32 h = a * 0x85EBCA6Bu + b * 0xC2B2AE35u + 0x27D4EB2Fu;
    h ^= h >> 15, h *= 0x2C1B3C6Du, h ^= h >> 12, h *= 0x297A2D39u, h ^= h >> 15;
    return h;
}

// A number in [0, 1), of 24 bits.
inline float random_at(u32 seed, u32 at) {
    u32 h = at * 0x9E3779B9u ^ seed;
    h ^= h >> 16, h *= 0x85EBCA6Bu, h ^= h >> 13, h *= 0xC2B2AE35u, h ^= h >> 16;
    return static_cast<float>(static_cast<std::int32_t>(h >> 8)) * 0x1p-24f;
}

float upper_half(float step) {  // the smallest float of 16 bits that is not below a positive one
    u32 bits;
    std::memcpy(&bits, &step, 4);
    bits = (bits + 0xFFFFu) & 0xFFFF0000u;
    std::memcpy(&step, &bits, 4);
    return step;
}

struct Range {
    float low, high;
    bool finite;
};

// Floats in the order of whole numbers, which compilers find the extremes of in vectors; beyond both ends is no number.
inline std::int32_t ordered(std::int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

Range range_of(const float* x, i64 columns) {
    std::int32_t low = INT32_MAX, high = INT32_MIN, bits;
    for (i64 k = 0; k < columns; ++k) {
        std::memcpy(&bits, x + k, 4);
        const std::int32_t v = ordered(bits);
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    low = ordered(low), high = ordered(high);
    Range range;
    std::memcpy(&range.low, &low, 4);
    std::memcpy(&range.high, &high, 4);
    range.finite = std::isfinite(range.high) && std::isfinite(range.low) && std::isfinite(range.high - range.low);
    return range;
}

template <int kBits>
void encode_row(const float* x, i64 columns, Range range, u32 seed, u8* level, u8* out) {
    constexpr float most = static_cast<float>((1 << kBits) - 1);
    float low = range.low, step = 0;
    if (!range.finite) {
        low = step = std::nanf("");
    } else if (range.high > range.low) {
        step = (range.high - range.low) / most;
        step = upper_half(step < kLeast ? kLeast : step);
    }
    u32 half;
    std::memcpy(&half, &step, 4);
    const u16 upper = static_cast<u16>(half >> 16);
    std::memcpy(out, &low, 4);
    std::memcpy(out + 4, &upper, 2);
    constexpr i64 per = 8 / kBits;
    const i64 quarter = (columns + per - 1) / per;
    out += kHeader;
    if (!(step > 0)) {
        std::memset(out, 0, static_cast<std::size_t>(quarter));
        return;
    }
    const float scale = 1 / step;
    u8* to = kBits == 8 ? out : level;
    for (i64 k = 0; k < columns; ++k) {
        float q = (x[k] - low) * scale + random_at(seed, static_cast<u32>(k));
        q = q > most ? most : q;
        to[k] = static_cast<u8>(static_cast<std::int32_t>(q));
    }
    if (kBits == 8) return;
    for (i64 k = columns; k < per * quarter; ++k) level[k] = 0;
    for (i64 k = 0; k < quarter; ++k) {
        u32 byte = level[k];
        for (i64 p = 1; p < per; ++p) byte |= static_cast<u32>(level[k + p * quarter]) << (p * kBits);
        out[k] = static_cast<u8>(byte);
    }
}

template <int kBits, bool kAdd>
void decode_row(const u8* in, i64 columns, float* out) {
    float low, step;
    u16 upper;
    std::memcpy(&low, in, 4);
    std::memcpy(&upper, in + 4, 2);
    const u32 half = static_cast<u32>(upper) << 16;
    std::memcpy(&step, &half, 4);
    in += kHeader;
    constexpr i64 per = 8 / kBits;
    constexpr u32 mask = (1u << kBits) - 1;
    const i64 quarter = (columns + per - 1) / per;
    for (i64 p = 0; p < per; ++p) {
        const i64 count = (p + 1) * quarter <= columns ? quarter : columns - p * quarter;
        for (i64 k = 0; k < count; ++k) {
            const float q = static_cast<float>(static_cast<std::int32_t>(in[k] >> (p * kBits) & mask));
            const float value = low + step * q;
            out[p * quarter + k] = kAdd ? out[p * quarter + k] + value : value;
        }
    }
}

template <bool kAdd>
void decode_any(i64 bits, const u8* in, i64 columns, float* out) {
    switch (bits) {
        case 2: return decode_row<2, kAdd>(in, columns, out);
        case 4: return decode_row<4, kAdd>(in, columns, out);
        case 8: return decode_row<8, kAdd>(in, columns, out);
        default: break;
    }
    if (!kAdd) {
        std::memcpy(out, in, static_cast<std::size_t>(columns) * 4);
        return;
    }
    for (i64 k = 0; k < columns; ++k) {
        float value;
        std::memcpy(&value, in + 4 * k, 4);
        out[k] += value;
    }
}
}  // namespace

// Encode rows `which` of x, one behind another; `traced`, where given, is added the square of each row's range.
extern "C" void tightrope_rows_encode(const float* x, i64 columns, const i64* which, const u8* bits, i64 rows,
                                      i64 seed, float* traced, u8* out) {
    std::vector<u8> level(static_cast<std::size_t>(columns + 8));
    for (i64 row = 0; row < rows; ++row) {
        const float* from = x + which[row] * columns;
        const u32 own = mixed(static_cast<u32>(seed), static_cast<u32>(row));
        const i64 b = bits[row];
        if (b != 32 || traced) {
            const Range range = range_of(from, columns);
            if (traced) traced[row] += (range.high - range.low) * (range.high - range.low);
            if (b == 2) encode_row<2>(from, columns, range, own, level.data(), out);
            if (b == 4) encode_row<4>(from, columns, range, own, level.data(), out);
            if (b == 8) encode_row<8>(from, columns, range, own, level.data(), out);
        }
        if (b == 32) std::memcpy(out, from, static_cast<std::size_t>(columns) * 4);
        out += bytes_of(columns, b);
    }
}

// Write rows one behind another to places `which` of out, or add them there.
extern "C" void tightrope_rows_decode(const u8* in, i64 columns, const i64* which, const u8* bits, i64 rows, i64 add,
                                      float* out) {
    for (i64 row = 0; row < rows; ++row) {
        float* to = out + which[row] * columns;
        if (add) decode_any<true>(bits[row], in, columns, to);
        else decode_any<false>(bits[row], in, columns, to);
        in += bytes_of(columns, bits[row]);
    }
}
