// Products of rows with a weight of integers of 4 to 6 bits, for AVX2.
//
// A row is rounded to 8 bits in blocks of inputs, each with a unit of its own, as llama.cpp rounds it. The
// integers of a block are added exactly in any order, and the blocks in theirs. So a row's bits depend on
// itself alone: neither on other rows, nor on threads, nor on the processor.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "lanes.h"
#include "linear/panel.h"
#include "tasks.h"

namespace LANES {
namespace {

constexpr size_t kRows = 6;           // that share a read of the weight: as many as the registers hold
constexpr size_t kQuad = 4;           // inputs whose products an instruction adds
constexpr float kLargest = 127;       // integer of a row
constexpr float kSmallest = 1e-30f;   // largest value of a block that does not count as 0
constexpr size_t kAhead = 1024;       // bytes of the weight that are fetched before they are needed
constexpr size_t kRoundingWork = 32;  // a number is rounded so much slower than it is multiplied

// Some quads of inputs, of which the weight has `Bits` bits for each of 16 outputs.
template <size_t Bits>
struct Chunk {
    static constexpr size_t kQuads = Bits == 6 ? 4 : 8;
    static constexpr size_t kHighBytes = Bits == 4 ? 0 : 64;
    static constexpr size_t kBytes = kHighBytes + kQuads * 32;
    static constexpr int32_t kMiddle = 1 << (Bits - 1);
    // Whether the middle is subtracted from each weight, so that the products of a chunk fit into 16 bits: those
    // of an output are added up in two sums, of 16 products of 127 * 15 or 127 * 16, or of 8 of 127 * 32.
    static constexpr bool kIsCentred = Bits > 4;
};

// How inputs are divided.
struct Shape {
    size_t chunks_of_a_group, groups_of_a_block, num_blocks, blocks_of_a_unit;

    explicit Shape(const Projection& projection) {
        const size_t chunk = projection.inputs_of_a_chunk();
        const size_t of_a_unit = projection.num_inputs / projection.scales.num_units / chunk;
        size_t of_a_block = std::min(of_a_unit, kLargestBlock / chunk);
        while (of_a_unit % of_a_block) --of_a_block;
        blocks_of_a_unit = of_a_unit / of_a_block;
        groups_of_a_block = projection.groups_of_a_unit();
        chunks_of_a_group = of_a_block / groups_of_a_block;
        num_blocks = projection.scales.num_units * blocks_of_a_unit;
    }

    size_t pairs_of_a_block() const { return (groups_of_a_block + 1) / 2; }
};

// Rows as integers.
struct Rounded {
    std::vector<int8_t> numbers;  // [rows, inputs]
    std::vector<float> units;     // [rows, blocks]: the size of an integer
    std::vector<int16_t> sums;    // [rows, blocks, pairs of groups, 2]
    std::vector<int32_t> starts;  // [rows, chunks]: two numbers of 16 bits, where the sums of a chunk start

    void resize(size_t num_rows, size_t num_inputs, size_t num_chunks, const Shape& shape) {
        numbers.resize(std::max(numbers.size(), num_rows * num_inputs));
        units.resize(std::max(units.size(), num_rows * shape.num_blocks));
        sums.resize(std::max(sums.size(), num_rows * shape.num_blocks * shape.pairs_of_a_block() * 2));
        starts.resize(std::max(starts.size(), num_rows * num_chunks));
    }
};

inline void store(int8_t* to, Lanes integers) {
    const __m256i low = _mm256_cvtps_epi32(integers.low), high = _mm256_cvtps_epi32(integers.high);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0b11011000);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

// Round a block to integers, and return their unit: NaN if a value is not finite.
float round_block(const float* from, size_t size, int8_t* to) {
    Lanes sizes = every(0), differences = every(0);
    for (size_t at = 0; at < size; at += kLanes) {
        const Lanes values = load(from + at);
        sizes = larger(sizes, absolute(values));
        differences = add(differences, subtract(values, values));  // 0, or NaN
    }
    const float most = largest(sizes);
    const Lanes inverse = every(most < kSmallest ? 0 : kLargest / most);
    for (size_t at = 0; at < size; at += kLanes) store(to + at, multiply(load(from + at), inverse));
    return most / kLargest + sum(differences);
}

void round_row(const Shape& shape, size_t group, const float* from, int8_t* to, float* units, int16_t* sums) {
    const size_t size = group * shape.groups_of_a_block;
    for (size_t block = 0; block < shape.num_blocks; ++block, from += size) {
        *units++ = round_block(from, size, to);
        for (size_t index = 0; index < 2 * shape.pairs_of_a_block(); ++index) {
            const bool is_there = index < shape.groups_of_a_block;
            *sums++ = is_there ? static_cast<int16_t>(std::accumulate(to, to + group, 0)) : 0;
            if (is_there) to += group;
        }
    }
}

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

inline __m256i load_integers(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Numbers for 16 outputs, or what belongs to them: those of eight in each register.
struct Halves {
    __m256i low, high;
};

// Return the weights of a quad; `high_bits` are those of its chunk.
template <size_t Bits, size_t Quad>
[[gnu::always_inline]] inline Halves weights(const uint8_t* at, const Halves& high_bits) {
    const __m256i four = _mm256_set1_epi8(15), both = load_integers(at);
    Halves result{_mm256_and_si256(both, four), _mm256_and_si256(_mm256_srli_epi16(both, 4), four)};
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
    [[gnu::always_inline]] void add(const Halves& weights, const int8_t* rows, size_t stride) {
        others.add(weights, rows, stride);
        int32_t quad;
        std::memcpy(&quad, rows + (Count - 1) * stride, sizeof(quad));
        const __m256i inputs = _mm256_set1_epi32(quad);
        add_products(low, weights.low, inputs);
        add_products(high, weights.high, inputs);
    }

    // Add the sums times the level of each output to `totals`.
    [[gnu::always_inline]] void add_to(Halves* totals, const Halves& level) const {
        others.add_to(totals, level);
        Halves& total = totals[Count - 1];
        total.low = _mm256_add_epi32(total.low, _mm256_madd_epi16(low, level.low));
        total.high = _mm256_add_epi32(total.high, _mm256_madd_epi16(high, level.high));
    }
};

template <>
struct Sums<0> {
    void start(const int32_t*, size_t) {}
    void add(const Halves&, const int8_t*, size_t) {}
    void add_to(Halves*, const Halves&) const {}
};

// Levels of a pair of groups, [16, 2], as integers of 16 bits.
[[gnu::always_inline]] inline Halves levels_of_pair(const int8_t* from) {
    const __m128i* at = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(at)), _mm256_cvtepi8_epi16(_mm_loadu_si128(at + 1))};
}

// Levels of one of the groups, twice: for the two sums that an output has.
[[gnu::always_inline]] inline Halves levels_of_group(const int8_t* pair, bool is_second) {
    const Halves both = levels_of_pair(pair);
    const __m256i places = _mm256_set1_epi32(is_second ? 0x03020302 : 0x01000100);
    const __m128i four_outputs = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    const __m256i lane = _mm256_broadcastsi128_si256(four_outputs);
    const __m256i from = _mm256_add_epi8(places, lane);
    return {_mm256_shuffle_epi8(both.low, from), _mm256_shuffle_epi8(both.high, from)};
}

// Some rows of `Rounded`.
struct Rows {
    const int8_t* numbers;
    const float* units;
    const int16_t* sums;
    const int32_t* starts;
};

// Add the products of a chunk to `totals`.
template <size_t Bits, size_t Count, size_t... Quads>
[[gnu::always_inline]] inline void add_chunk(const uint8_t* weight, const int8_t* rows, size_t stride,
                                             const int32_t* starts, const Halves& level, Halves* totals,
                                             std::index_sequence<Quads...>) {
    using Numbers = Chunk<Bits>;
    Halves high_bits;
    if constexpr (Bits > 4) high_bits = {load_integers(weight), load_integers(weight + 32)};
    Sums<Count> sums;
    sums.start(Numbers::kIsCentred ? starts : nullptr, stride / (Numbers::kQuads * kQuad));
    const auto add_quad = [&](auto quad) __attribute__((always_inline)) {
        constexpr size_t kQuadIndex = decltype(quad)::value;
        const uint8_t* at = weight + Numbers::kHighBytes + 32 * kQuadIndex;
        if constexpr (kQuadIndex % 2 == 0) fetch(at + kAhead);
        sums.add(weights<Bits, kQuadIndex>(at, high_bits), rows + kQuad * kQuadIndex, stride);
    };
    (add_quad(std::integral_constant<size_t, Quads>()), ...);
    sums.add_to(totals, level);
}

inline Lanes as_floats(const Halves& integers) {
    return {_mm256_cvtepi32_ps(integers.low), _mm256_cvtepi32_ps(integers.high)};
}

// Return the sum of levels times the sums of their groups.
[[gnu::always_inline]] inline Halves weighted(const int8_t* levels, const int16_t* sums, size_t pairs) {
    if (!levels) return {_mm256_set1_epi32(*sums), _mm256_set1_epi32(*sums)};
    Halves total{_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t pair = 0; pair < pairs; ++pair) {
        int32_t both;
        std::memcpy(&both, sums + 2 * pair, sizeof(both));
        const __m256i inputs = _mm256_set1_epi32(both);
        const Halves level = levels_of_pair(levels + pair * 2 * kPanel);
        total.low = _mm256_add_epi32(total.low, _mm256_madd_epi16(level.low, inputs));
        total.high = _mm256_add_epi32(total.high, _mm256_madd_epi16(level.high, inputs));
    }
    return total;
}

// Multiply `Count` rows with a panel.
template <size_t Bits, size_t Count>
void multiply_rows(const Projection& projection, const Shape& shape, size_t panel, const Rows& rows,
                   Lanes* results) {
    using Numbers = Chunk<Bits>;
    const uint8_t* weight = projection.weight + panel * projection.panel_bytes();
    const bool has_offsets = projection.scales.num_kinds == 2;
    const Units scales(projection, panel, 0), offsets(projection, panel, has_offsets ? 1 : 0);
    const size_t pairs = shape.pairs_of_a_block(), stride = projection.num_inputs;
    const size_t level_bytes = projection.scales.num_units * pairs * 2 * kPanel;
    const int8_t* levels = projection.scales.levels;  // of a unit's groups
    if (levels) levels += panel * projection.scales.num_kinds * level_bytes;
    const int8_t* numbers = rows.numbers;
    const int32_t* starts = rows.starts;
    std::fill(results, results + Count, every(0));
    for (size_t block = 0; block < shape.num_blocks; ++block) {
        const size_t unit = block / shape.blocks_of_a_unit;
        Halves totals[Count];
        std::fill(totals, totals + Count, Halves{_mm256_setzero_si256(), _mm256_setzero_si256()});
        for (size_t group = 0; group < shape.groups_of_a_block; ++group) {
            const __m256i one = _mm256_set1_epi16(1);
            const Halves level =
                levels ? levels_of_group(levels + group / 2 * 2 * kPanel, group % 2) : Halves{one, one};
            for (size_t chunk = 0; chunk < shape.chunks_of_a_group; ++chunk) {
                add_chunk<Bits, Count>(weight, numbers, stride, starts++, level, totals,
                                       std::make_index_sequence<Numbers::kQuads>());
                weight += Numbers::kBytes;
                numbers += Numbers::kQuads * kQuad;
            }
        }
        const Lanes scale = scales.get(unit);
        for (size_t row = 0; row < Count; ++row) {
            const Lanes size = every(rows.units[row * shape.num_blocks + block]);
            const int16_t* sums = rows.sums + (row * shape.num_blocks + block) * 2 * pairs;
            const auto of_row = [&](const int8_t* of_kind) { return weighted(of_kind, sums, pairs); };
            Halves& total = totals[row];
            if (has_offsets) {
                const Halves shift = of_row(levels ? levels + level_bytes : nullptr);
                results[row] = multiply_add(as_floats(shift), multiply(offsets.get(unit), size), results[row]);
            }
            if (has_offsets == Numbers::kIsCentred) {  // add the middle again, or subtract it now
                const Halves shift = of_row(levels);
                const __m256i middle = _mm256_set1_epi32(has_offsets ? Numbers::kMiddle : -Numbers::kMiddle);
                total.low = _mm256_add_epi32(total.low, _mm256_mullo_epi32(shift.low, middle));
                total.high = _mm256_add_epi32(total.high, _mm256_mullo_epi32(shift.high, middle));
            }
            results[row] = multiply_add(as_floats(total), multiply(scale, size), results[row]);
        }
        if (levels) levels += pairs * 2 * kPanel;
    }
}

template <size_t Bits, size_t Count = kRows>
void multiply_at_most(size_t num_rows, const Projection& projection, const Shape& shape, size_t panel,
                      const Rows& rows, Lanes* results) {
    if (num_rows >= Count)
        multiply_rows<Bits, Count>(projection, shape, panel, rows, results);
    else if constexpr (Count > 1)
        multiply_at_most<Bits, Count - 1>(num_rows, projection, shape, panel, rows, results);
}

template <size_t Bits>
void compute(const Projection& projection, const float* input, size_t num_rows, float* output) {
    static thread_local Rounded kept;
    Rounded& rounded = kept;  // of this thread, for all threads
    const Shape shape(projection);
    const size_t size = projection.num_inputs, num_outputs = projection.num_outputs;
    const size_t group = shape.chunks_of_a_group * projection.inputs_of_a_chunk();
    const size_t num_sums = shape.num_blocks * shape.pairs_of_a_block() * 2;
    const size_t num_chunks = size / projection.inputs_of_a_chunk();
    rounded.resize(num_rows, size, num_chunks, shape);
    in_parallel(num_rows, kRoundingWork * num_rows * size, [&](size_t row) {
        int8_t* numbers = rounded.numbers.data() + row * size;
        round_row(shape, group, input + row * size, numbers, rounded.units.data() + row * shape.num_blocks,
                  rounded.sums.data() + row * num_sums);
        if (Chunk<Bits>::kIsCentred) find_starts<Bits>(numbers, num_chunks, rounded.starts.data() + row * num_chunks);
    });
    in_parallel(projection.num_panels(), num_rows * size * num_outputs, [&](size_t panel) {
        const size_t first = panel * kPanel, width = std::min(kPanel, num_outputs - first);
        for (size_t begin = 0; begin < num_rows; begin += kRows) {
            Lanes results[kRows];
            const size_t count = std::min(kRows, num_rows - begin);
            const Rows rows{rounded.numbers.data() + begin * size,
                            rounded.units.data() + begin * shape.num_blocks,
                            rounded.sums.data() + begin * num_sums,
                            rounded.starts.data() + begin * num_chunks};
            multiply_at_most<Bits>(count, projection, shape, panel, rows, results);
            for (size_t row = 0; row < count; ++row)
                store_some(output + (begin + row) * num_outputs + first, results[row], width);
        }
    });
}

}  // namespace

void multiply_blocks(const Projection& projection, const float* input, size_t num_rows, float* output) {
    const auto multiply = projection.num_bits == 4   ? compute<4>
                          : projection.num_bits == 5 ? compute<5>
                                                     : compute<6>;
    multiply(projection, input, num_rows, output);
}

}  // namespace LANES
