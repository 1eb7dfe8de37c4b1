// One quantiser for 1, 2, 4 and 8 bits; see tightrope_ranks/compress/codecs.py for what it promises.
//
// A tensor is cut into blocks of kBlock numbers. A block is a float, its scale, and then `bits` bits per number,
// the first number in the lowest bits; a tensor ends on a multiple of 4 bytes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {
using i64 = std::int64_t;
using u32 = std::uint32_t;
using u8 = std::uint8_t;
constexpr i64 kBlock = 4096;

i64 bytes_of(i64 count, i64 bits) { return 4 + (count * bits + 7) / 8; }

// A number in [0, 1) that depends on nothing but the seed, the tensor and the position.
inline float random_at(u32 seed, u32 at) {
    u32 h = at * 0x9E3779B9u ^ seed;
    h ^= h >> 16, h *= 0x85EBCA6Bu, h ^= h >> 13, h *= 0xC2B2AE35u, h ^= h >> 16;
    return static_cast<float>(h >> 8) * 0x1p-24f;
}

u32 mixed(u32 a, u32 b) {
    u32 h = a * 0x85EBCA6Bu + b * 0xC2B2AE35u + 0x27D4EB2Fu;
    h ^= h >> 15, h *= 0x2C1B3C6Du, h ^= h >> 12;
    return h;
}

void pack(const u8* level, i64 count, i64 bits, u8* out) {
    const i64 per = 8 / bits, whole = count / per;
    if (bits == 8) {
        std::memcpy(out, level, static_cast<std::size_t>(count));
        return;
    }
    for (i64 k = 0; k < whole; ++k) {
        u32 byte = 0;
        for (i64 p = 0; p < per; ++p) byte |= static_cast<u32>(level[k * per + p]) << (p * bits);
        out[k] = static_cast<u8>(byte);
    }
    if (whole * per < count) {
        u32 byte = 0;
        for (i64 p = 0; whole * per + p < count; ++p) byte |= static_cast<u32>(level[whole * per + p]) << (p * bits);
        out[whole] = static_cast<u8>(byte);
    }
}

template <int kBits>
void pack_as(const u8* level, i64 count, u8* out) {
    pack(level, count, kBits, out);
}

void pack_any(const u8* level, i64 count, i64 bits, u8* out) {
    switch (bits) {
        case 1: return pack_as<1>(level, count, out);
        case 2: return pack_as<2>(level, count, out);
        case 4: return pack_as<4>(level, count, out);
        default: return pack_as<8>(level, count, out);
    }
}

// Encode a block; what is not finite is sent as a scale that is no number, and leaves the residual as it was.
void encode_block(const float* x, float* residual, i64 count, i64 bits, u32 seed, i64 first, u8* out) {
    float value[kBlock];
    u8 level[kBlock];
    if (residual)
        for (i64 k = 0; k < count; ++k) value[k] = x[k] + residual[k];
    else
        std::memcpy(value, x, static_cast<std::size_t>(count) * sizeof(float));
    float sums[16] = {}, tops[16] = {};
    bool finite = true;
    for (i64 k = 0; k < count; ++k) {
        const float size = std::fabs(value[k]);
        sums[k & 15] += size;
        tops[k & 15] = size > tops[k & 15] ? size : tops[k & 15];
    }
    float sum = 0, top = 0;
    for (int k = 0; k < 16; ++k) sum += sums[k], top = std::max(top, tops[k]);
    finite = std::isfinite(sum);
    const float most = static_cast<float>((1 << (bits - 1)) - 1);
    float scale = bits == 1 ? sum / static_cast<float>(count) : top / most;
    if (!finite) scale = std::nanf("");
    std::memcpy(out, &scale, 4);
    if (!finite || scale == 0) {
        std::fill_n(out + 4, bytes_of(count, bits) - 4, bits == 1 ? u8{0} : u8{0});
        return;
    }
    if (bits == 1) {
        for (i64 k = 0; k < count; ++k) level[k] = value[k] >= 0;
        if (residual)
            for (i64 k = 0; k < count; ++k) residual[k] = value[k] - (value[k] >= 0 ? scale : -scale);
    } else {
        const float per = 1 / scale;
        for (i64 k = 0; k < count; ++k) {
            const float u = random_at(seed, static_cast<u32>(first + k));
            float q = std::floor(value[k] * per + u);
            q = q > most ? most : q < -most ? -most : q;
            level[k] = static_cast<u8>(static_cast<int>(q + most));
            if (residual) residual[k] = value[k] - q * scale;
        }
    }
    pack_any(level, count, bits, out + 4);
}

template <int kBits>
void add_block(const u8* in, i64 count, float factor, float* out) {
    float scale;
    std::memcpy(&scale, in, 4);
    in += 4;
    const float step = scale * factor;
    constexpr i64 per = 8 / kBits;
    constexpr u32 mask = (1u << kBits) - 1;
    constexpr int most = kBits == 1 ? 0 : (1 << (kBits - 1)) - 1;
    if (scale == 0) return;
    const i64 whole = count / per * per;
    for (i64 k = 0; k < whole; k += per)
        for (i64 p = 0; p < per; ++p) {
            const int q = static_cast<int>(in[k / per] >> (p * kBits) & mask);
            out[k + p] += step * static_cast<float>(kBits == 1 ? 2 * q - 1 : q - most);
        }
    for (i64 k = whole; k < count; ++k) {
        const int q = static_cast<int>(in[k / per] >> (k % per * kBits) & mask);
        out[k] += step * static_cast<float>(kBits == 1 ? 2 * q - 1 : q - most);
    }
}

void add_any(i64 bits, const u8* in, i64 count, float factor, float* out) {
    switch (bits) {
        case 1: return add_block<1>(in, count, factor, out);
        case 2: return add_block<2>(in, count, factor, out);
        case 4: return add_block<4>(in, count, factor, out);
        default: return add_block<8>(in, count, factor, out);
    }
}
}  // namespace

extern "C" i64 tightrope_encoded_bytes(i64 count, i64 bits) {
    const i64 whole = count / kBlock, rest = count % kBlock;
    const i64 size = whole * bytes_of(kBlock, bits) + (rest ? bytes_of(rest, bits) : 0);
    return (size + 3) / 4 * 4;
}

extern "C" void tightrope_encode(i64 bits, i64 parts, const float* const* x, float* const* residual,
                                 const i64* counts, const i64* ids, i64 seed, u8* out) {
    for (i64 part = 0; part < parts; ++part) {
        const u32 own = mixed(static_cast<u32>(seed), static_cast<u32>(ids[part]));
        u8* to = out;
        for (i64 at = 0; at < counts[part]; at += kBlock) {
            const i64 count = std::min(kBlock, counts[part] - at);
            float* rest = residual ? residual[part] + at : nullptr;
            encode_block(x[part] + at, rest, count, bits, own, at, to);
            to += bytes_of(count, bits);
        }
        out += tightrope_encoded_bytes(counts[part], bits);
        std::fill(to, out, u8{0});
    }
}

// Sum what all ranks sent, in their order, times a factor.
extern "C" void tightrope_decode(i64 bits, i64 parts, i64 ranks, const u8* wire, i64 stride, const i64* counts,
                                 float factor, float* const* out) {
    i64 begin = 0;
    for (i64 part = 0; part < parts; ++part) {
        for (i64 at = 0, from = begin; at < counts[part]; at += kBlock) {
            const i64 count = std::min(kBlock, counts[part] - at);
            std::fill_n(out[part] + at, count, 0.0f);
            for (i64 rank = 0; rank < ranks; ++rank)
                add_any(bits, wire + rank * stride + from, count, factor, out[part] + at);
            from += bytes_of(count, bits);
        }
        begin += tightrope_encoded_bytes(counts[part], bits);
    }
}
