// Sums of products of rows with weights of 4 to 6 bits, for AVX2.

#pragma once

#include <cstring>
#include <utility>

#include "linear/chunk.h"

namespace LANES {
namespace {

constexpr size_t kRows = 6;  // that share a read of the weight: as many as the registers hold

// Whether the middle is subtracted from each weight, so that the products of a chunk fit into 16 bits: those
// of an output are added up in two sums, of 16 products of 127 * 15 or 127 * 16, or of 8 of 127 * 32.
template <size_t Bits>
constexpr bool kIsCentred = Bits > 4;

// Find where the sums of chunks start, so that they are those of weights less the middle of their range. In 16
// bits a sum may overflow on the way to its result, which fits.
template <size_t Bits>
void find_starts(const int8_t* numbers, size_t num_chunks, int32_t* starts) {
    for (size_t chunk = 0; chunk < num_chunks; ++chunk) {
        int32_t first = 0, second = 0;
        for (size_t quad = 0; quad < Chunk<Bits>::kQuads; ++quad, numbers += kQuad) {
            first += numbers[0] + numbers[1];
            second += numbers[2] + numbers[3];
        }
        first *= -Chunk<Bits>::kMiddle;
        second *= -Chunk<Bits>::kMiddle;
        starts[chunk] = static_cast<int32_t>(static_cast<uint32_t>(second) << 16 | (first & 0xffff));
    }
}

inline __m256i load_bytes(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Numbers for 16 outputs, or what belongs to them: those of eight in each register.
struct Integers {
    __m256i low, high;
};

inline Integers zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }

// Return the weights of a quad; `high_bits` are those of its chunk.
template <size_t Bits, size_t Quad>
[[gnu::always_inline]] inline Integers weights(const uint8_t* at, const Integers& high_bits) {
    const __m256i four = _mm256_set1_epi8(15), both = load_bytes(at);
    Integers result{_mm256_and_si256(both, four), _mm256_and_si256(_mm256_srli_epi16(both, 4), four)};
    if constexpr (Bits > 4) {
        constexpr int kFrom = Quad * (Bits - 4);  // the bits belong at 4
        const __m256i mask = _mm256_set1_epi8(Bits == 5 ? 16 : 48);
        const auto moved = [&](__m256i bits) {
            bits = kFrom < 4 ? _mm256_slli_epi16(bits, 4 - kFrom) : _mm256_srli_epi16(bits, kFrom - 4);
            return _mm256_and_si256(bits, mask);
        };
        result.low = _mm256_or_si256(result.low, moved(high_bits.low));
        result.high = _mm256_or_si256(result.high, moved(high_bits.high));
    }
    return result;
}

// Add weights * row, neighbours together, to sums of 16 bits. In one piece, because GCC would multiply for all
// rows before it adds, and so many products do not fit into the registers.
[[gnu::always_inline]] inline void add_products(__m256i& sums, __m256i weights, __m256i row) {
    __m256i products;
    asm("vpmaddubsw %[row], %[weights], %[products]\n\tvpaddw %[products], %[sums], %[sums]"
        : [sums] "+x"(sums), [products] "=&x"(products)
        : [row] "x"(row), [weights] "x"(weights));
}

// Sums of `Count` rows for 16 outputs.
template <size_t Count>
struct Sums {
    Sums<Count - 1> others;
    __m256i low, high;

    // Begin a chunk. `starts` points to that of the first row.
    [[gnu::always_inline]] void start(const int32_t* starts, size_t stride) {
        others.start(starts, stride);
        low = high = starts ? _mm256_set1_epi32(starts[(Count - 1) * stride]) : _mm256_setzero_si256();
    }

    // Add the products of a quad of inputs. `rows` points to the quad of the first row.
    [[gnu::always_inline]] void add(const Integers& weights, const int8_t* rows, size_t stride) {
        others.add(weights, rows, stride);
        int32_t quad;
        std::memcpy(&quad, rows + (Count - 1) * stride, sizeof(quad));
        const __m256i inputs = _mm256_set1_epi32(quad);
        add_products(low, weights.low, inputs);
        add_products(high, weights.high, inputs);
    }

    // Add the sums times the level of each output to `totals`.
    [[gnu::always_inline]] void add_to(Integers* totals, const Integers& level) const {
        others.add_to(totals, level);
        Integers& total = totals[Count - 1];
        total.low = _mm256_add_epi32(total.low, _mm256_madd_epi16(low, level.low));
        total.high = _mm256_add_epi32(total.high, _mm256_madd_epi16(high, level.high));
    }
};

template <>
struct Sums<0> {
    void start(const int32_t*, size_t) {}
    void add(const Integers&, const int8_t*, size_t) {}
    void add_to(Integers*, const Integers&) const {}
};

// Levels of a pair of groups, [16, 2], as integers of 16 bits.
[[gnu::always_inline]] inline Integers levels_of_pair(const int8_t* from) {
    const __m128i* at = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(at)), _mm256_cvtepi8_epi16(_mm_loadu_si128(at + 1))};
}

// Levels of one of the groups, or ones, twice: for the two sums that an output has.
[[gnu::always_inline]] inline Integers levels_of_group(const int8_t* pair, bool is_second) {
    if (!pair) return {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    const Integers both = levels_of_pair(pair);
    const __m256i places = _mm256_set1_epi32(is_second ? 0x03020302 : 0x01000100);
    const __m128i four_outputs = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    const __m256i lane = _mm256_broadcastsi128_si256(four_outputs);
    const __m256i from = _mm256_add_epi8(places, lane);
    return {_mm256_shuffle_epi8(both.low, from), _mm256_shuffle_epi8(both.high, from)};
}

// Add the products of a chunk to `totals`.
template <size_t Bits, size_t Count, size_t... Quads>
[[gnu::always_inline]] inline void add_chunk(const uint8_t* weight, const int8_t* rows, size_t stride,
                                             const int32_t* starts, const Integers& level, Integers* totals,
                                             std::index_sequence<Quads...>) {
    using Numbers = Chunk<Bits>;
    Integers high_bits;
    if constexpr (Bits > 4) high_bits = {load_bytes(weight), load_bytes(weight + 32)};
    Sums<Count> sums;
    sums.start(kIsCentred<Bits> ? starts : nullptr, stride / (Numbers::kQuads * kQuad));
    const auto add_quad = [&](auto quad) __attribute__((always_inline)) {
        constexpr size_t kQuadIndex = decltype(quad)::value;
        const uint8_t* at = weight + Numbers::kHighBytes + 32 * kQuadIndex;
        if constexpr (kQuadIndex % 2 == 0) fetch(at + kAhead);
        sums.add(weights<Bits, kQuadIndex>(at, high_bits), rows + kQuad * kQuadIndex, stride);
    };
    (add_quad(std::integral_constant<size_t, Quads>()), ...);
    sums.add_to(totals, level);
}

inline Lanes as_floats(const Integers& integers) {
    return {_mm256_cvtepi32_ps(integers.low), _mm256_cvtepi32_ps(integers.high)};
}

// Return the sum of levels times the sums of their groups.
[[gnu::always_inline]] inline Integers weighted(const int8_t* levels, const int16_t* sums, size_t pairs) {
    if (!levels) return {_mm256_set1_epi32(*sums), _mm256_set1_epi32(*sums)};
    Integers total{_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t pair = 0; pair < pairs; ++pair) {
        int32_t both;
        std::memcpy(&both, sums + 2 * pair, sizeof(both));
        const __m256i inputs = _mm256_set1_epi32(both);
        const Integers level = levels_of_pair(levels + pair * 2 * kPanel);
        total.low = _mm256_add_epi32(total.low, _mm256_madd_epi16(level.low, inputs));
        total.high = _mm256_add_epi32(total.high, _mm256_madd_epi16(level.high, inputs));
    }
    return total;
}

// Return total + numbers * factor.
inline Integers plus_product(const Integers& total, const Integers& numbers, int32_t factor) {
    const __m256i factors = _mm256_set1_epi32(factor);
    return {_mm256_add_epi32(total.low, _mm256_mullo_epi32(numbers.low, factors)),
            _mm256_add_epi32(total.high, _mm256_mullo_epi32(numbers.high, factors))};
}

}  // namespace
}  // namespace LANES
