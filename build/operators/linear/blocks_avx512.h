// Sums of products of rows with weights of 4 to 6 bits, for AVX-512 with VNNI.

#pragma once

#include <cstring>
#include <utility>

#include "linear/chunk.h"

namespace LANES {
namespace {

constexpr size_t kRows = 12;  // that share a read of the weight: as many as the registers hold

// Sums have 32 bits, so no weight has to be smaller.
template <size_t Bits>
constexpr bool kIsCentred = false;

template <size_t Bits>
void find_starts(const int8_t*, size_t, int32_t*) {}

// Numbers for 16 outputs.
struct Integers {
    __m512i all;
};

inline Integers zeros() { return {_mm512_setzero_si512()}; }

inline __m256i load_half(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// Return the weights of a quad; `high_bits` are those of its chunk.
template <size_t Bits, size_t Quad>
[[gnu::always_inline]] inline __m512i weights(const uint8_t* at, __m512i high_bits) {
    const __m256i both = load_half(at);
    const __m512i in_place = _mm512_inserti64x4(_mm512_castsi256_si512(both), _mm256_srli_epi16(both, 4), 1);
    __m512i result = _mm512_and_si512(in_place, _mm512_set1_epi8(15));
    if constexpr (Bits > 4) {
        constexpr int kFrom = Quad * (Bits - 4);  // the bits belong at 4
        const __m512i moved =
            kFrom < 4 ? _mm512_slli_epi16(high_bits, 4 - kFrom) : _mm512_srli_epi16(high_bits, kFrom - 4);
        result = _mm512_or_si512(result, _mm512_and_si512(moved, _mm512_set1_epi8(Bits == 5 ? 16 : 48)));
    }
    return result;
}

// Levels of a pair of groups, [16, 2], as integers of 16 bits.
inline __m512i levels_of_pair(const int8_t* from) { return _mm512_cvtepi8_epi16(load_half(from)); }

struct Levels {
    __m512i all;
    bool are_ones;
};

// Levels of one of the groups, or ones.
inline Levels levels_of_group(const int8_t* pair, bool is_second) {
    if (!pair) return {_mm512_setzero_si512(), true};
    const __m512i both = levels_of_pair(pair);
    return {_mm512_srai_epi32(is_second ? both : _mm512_slli_epi32(both, 16), 16), false};
}

// Add the products of a chunk to `totals`.
template <size_t Bits, size_t Count, size_t... Quads>
[[gnu::always_inline]] inline void add_chunk(const uint8_t* weight, const int8_t* rows, size_t stride,
                                             const int32_t*, const Levels& levels, Integers* totals,
                                             std::index_sequence<Quads...>) {
    using Numbers = Chunk<Bits>;
    __m512i high_bits = _mm512_setzero_si512(), sums[Count];
    if constexpr (Bits > 4) high_bits = _mm512_loadu_si512(weight);
#pragma GCC unroll 12
    for (size_t row = 0; row < Count; ++row) sums[row] = _mm512_setzero_si512();
    const auto add_quad = [&](auto quad) __attribute__((always_inline)) {
        constexpr size_t kQuadIndex = decltype(quad)::value;
        const uint8_t* at = weight + Numbers::kHighBytes + 32 * kQuadIndex;
        if constexpr (kQuadIndex % 2 == 0) fetch(at + kAhead);
        const __m512i quads = weights<Bits, kQuadIndex>(at, high_bits);
#pragma GCC unroll 12
        for (size_t row = 0; row < Count; ++row) {
            int32_t inputs;
            std::memcpy(&inputs, rows + row * stride + kQuad * kQuadIndex, sizeof(inputs));
            sums[row] = _mm512_dpbusd_epi32(sums[row], quads, _mm512_set1_epi32(inputs));
        }
    };
    (add_quad(std::integral_constant<size_t, Quads>()), ...);
#pragma GCC unroll 12
    for (size_t row = 0; row < Count; ++row) {
        if (!levels.are_ones) sums[row] = _mm512_mullo_epi32(sums[row], levels.all);
        totals[row].all = _mm512_add_epi32(totals[row].all, sums[row]);
    }
}

inline Lanes as_floats(const Integers& integers) { return {_mm512_cvtepi32_ps(integers.all)}; }

// Return the sum of levels times the sums of their groups.
inline Integers weighted(const int8_t* levels, const int16_t* sums, size_t pairs) {
    if (!levels) return {_mm512_set1_epi32(*sums)};
    __m512i total = _mm512_setzero_si512();
    for (size_t pair = 0; pair < pairs; ++pair) {
        int32_t both;
        std::memcpy(&both, sums + 2 * pair, sizeof(both));
        const __m512i products =
            _mm512_madd_epi16(levels_of_pair(levels + pair * 2 * kPanel), _mm512_set1_epi32(both));
        total = _mm512_add_epi32(total, products);
    }
    return {total};
}

// Return total + numbers * factor.
inline Integers plus_product(const Integers& total, const Integers& numbers, int32_t factor) {
    return {_mm512_add_epi32(total.all, _mm512_mullo_epi32(numbers.all, _mm512_set1_epi32(factor)))};
}

}  // namespace
}  // namespace LANES
