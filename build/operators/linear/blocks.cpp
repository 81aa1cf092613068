// Products of rows with a weight of integers of 4 to 6 bits.
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

#ifdef __AVX512VNNI__
#include "linear/blocks_avx512.h"
#else
#include "linear/blocks_avx2.h"
#endif

namespace LANES {
namespace {

constexpr float kLargest = 127;       // integer of a row
constexpr float kSmallest = 1e-30f;   // largest value of a block that does not count as 0
constexpr size_t kRoundingWork = 32;  // a number is rounded so much slower than it is multiplied

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
    const __m256i low = _mm256_cvtps_epi32(low_half(integers)), high = _mm256_cvtps_epi32(high_half(integers));
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

// Some rows of `Rounded`.
struct Rows {
    const int8_t* numbers;
    const float* units;
    const int16_t* sums;
    const int32_t* starts;
};

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
        Integers totals[Count];
        std::fill(totals, totals + Count, zeros());
        for (size_t group = 0; group < shape.groups_of_a_block; ++group) {
            const auto level = levels_of_group(levels ? levels + group / 2 * 2 * kPanel : nullptr, group % 2);
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
            Integers& total = totals[row];
            if (has_offsets) {
                const Integers shift = of_row(levels ? levels + level_bytes : nullptr);
                results[row] = multiply_add(as_floats(shift), multiply(offsets.get(unit), size), results[row]);
            }
            if (has_offsets == kIsCentred<Bits>)  // add the middle again, or subtract it now
                total = plus_product(total, of_row(levels), has_offsets ? Numbers::kMiddle : -Numbers::kMiddle);
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
        if (kIsCentred<Bits>) find_starts<Bits>(numbers, num_chunks, rounded.starts.data() + row * num_chunks);
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
