// Products of rows with a weight of 8-bit or 4-bit integers, for AVX2.
//
// A row is rounded to integers with a unit of its own, and integers are added exactly in any order. So a
// row's bits depend on itself alone: neither on other rows, nor on threads, nor on the processor.

#include "linear/kernel.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lanes.h"
#include "tasks.h"

namespace LANES {
namespace {

constexpr size_t kRows = 6;           // that share a read of the weight: as many as the registers hold
constexpr float kLargest = 8191;      // integer of a row
constexpr size_t kExactPairs = 1024;  // so many sums of at most 2 * 8191 * 128 fit into 32 bits
constexpr float kSmallest = 1e-30f;   // largest value of a row that does not count as 0
constexpr size_t kAhead = 1024;       // bytes of the weight that are fetched before they are needed
constexpr size_t kRoundingWork = 16;  // a number is rounded so much slower than it is multiplied

// Call `work` with the first and the last of the pairs that are added as integers: a group, or a part of it.
template <class Work>
void by_piece(size_t group, const Work& work) {
    for (size_t begin = 0; begin < group; begin += kExactPairs) work(begin, std::min(group, begin + kExactPairs));
}

// Rows as integers, the size of the unit of each, and the sums of what is added as integers.
struct Rounded {
    std::vector<int16_t> numbers;  // [rows, stride]
    std::vector<float> units;      // [rows]
    std::vector<int32_t> sums;     // [rows, num_sums]
    size_t stride = 0, num_sums = 0;

    void resize(size_t num_rows, const Projection& projection) {
        stride = (projection.num_inputs + kLanes - 1) / kLanes * kLanes;
        const size_t group = projection.num_pairs() / projection.num_groups;
        num_sums = projection.num_groups * ((group + kExactPairs - 1) / kExactPairs);
        numbers.resize(std::max(numbers.size(), num_rows * stride));
        units.resize(std::max(units.size(), num_rows));
        sums.resize(std::max(sums.size(), num_rows * num_sums));
    }
};

inline void store(int16_t* to, Lanes integers) {
    const __m256i low = _mm256_cvtps_epi32(integers.low), high = _mm256_cvtps_epi32(integers.high);
    const __m256i packed = _mm256_packs_epi32(low, high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0b11011000));
}

// Call `work` with the index and values of each sixteen numbers; those behind the last one are 0.
template <class Work>
void by_sixteen(const float* from, size_t size, const Work& work) {
    const size_t whole = size / kLanes * kLanes;
    for (size_t at = 0; at < whole; at += kLanes) work(at, load(from + at));
    if (whole == size) return;
    float rest[kLanes] = {};
    std::copy(from + whole, from + size, rest);
    work(whole, load(rest));
}

// Round a row to integers, and return their unit: NaN if a value is not finite.
float round_row(const float* from, size_t size, int16_t* to) {
    Lanes sizes = every(0), differences = every(0);
    by_sixteen(from, size, [&](size_t, Lanes values) {
        sizes = larger(sizes, absolute(values));
        differences = add(differences, subtract(values, values));  // 0, or NaN
    });
    const float most = largest(sizes);
    const Lanes inverse = every(most < kSmallest ? 0 : kLargest / most);
    by_sixteen(from, size, [&](size_t at, Lanes values) { store(to + at, multiply(values, inverse)); });
    return most / kLargest + sum(differences);
}

// Add up the integers of a row, as `Rounded` has them.
void add_pieces(const Projection& projection, const int16_t* row, int32_t* sums) {
    const size_t group = projection.num_pairs() / projection.num_groups;
    for (size_t first = 0; first < projection.num_pairs(); first += group) {
        by_piece(group, [&](size_t begin, size_t end) {
            int32_t sum = 0;
            for (size_t at = 2 * (first + begin); at < 2 * (first + end); ++at) sum += row[at];
            *sums++ = sum;
        });
    }
}

// Add a[2i] * b[2i] + a[2i + 1] * b[2i + 1] to sums[i]. In one piece, because GCC would multiply for all rows
// before it adds, and so many products do not fit into the registers.
[[gnu::always_inline]] inline void add_products(__m256i& sums, __m256i a, __m256i b) {
    __m256i products;
    asm("vpmaddwd %[a], %[b], %[products]\n\tvpaddd %[products], %[sums], %[sums]"
        : [sums] "+x"(sums), [products] "=&x"(products)
        : [a] "x"(a), [b] "x"(b));
}

// Sums of `Rows` rows for 16 outputs, eight each.
template <size_t Rows>
struct Sums {
    Sums<Rows - 1> others;
    __m256i low, high;

    // Begin with `factor` times the sum of the inputs. `sums` points to that of the first row.
    [[gnu::always_inline]] Sums(int32_t factor, const int32_t* sums, size_t num_sums)
        : others(factor, sums, num_sums),
          low(_mm256_set1_epi32(factor * sums[(Rows - 1) * num_sums])),
          high(low) {}

    // Add the products of a pair of inputs. `rows` points to the pair of the first row.
    [[gnu::always_inline]] void add(__m256i low_weights, __m256i high_weights, const int16_t* rows,
                                    size_t stride) {
        others.add(low_weights, high_weights, rows, stride);
        int32_t pair;
        std::memcpy(&pair, rows + (Rows - 1) * stride, sizeof(pair));
        const __m256i pairs = _mm256_set1_epi32(pair);
        add_products(low, low_weights, pairs);
        add_products(high, high_weights, pairs);
    }

    [[gnu::always_inline]] void add_to(Lanes* totals) const {
        others.add_to(totals);
        const Lanes sums{_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
        totals[Rows - 1] = LANES::add(totals[Rows - 1], sums);
    }
};

template <>
struct Sums<0> {
    Sums(int32_t, const int32_t*, size_t) {}
    void add(__m256i, __m256i, const int16_t*, size_t) {}
    void add_to(Lanes*) const {}
};

// The numbers of a pair of inputs for 16 outputs, eight in each register.
struct Bytes {
    static constexpr size_t kSize = 2 * kPanel;
    __m256i low, high;

    explicit Bytes(const uint8_t* at)
        : low(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)))),
          high(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + kPanel)))) {}
};

struct Nibbles {
    static constexpr size_t kSize = kPanel;
    __m256i low, high;

    explicit Nibbles(const uint8_t* at) {
        const __m256i both = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        low = _mm256_and_si256(both, _mm256_set1_epi16(15));
        high = _mm256_srli_epi16(both, 4);
    }
};

// Scales of a panel as floats, [groups, kinds, 16].
template <class Unit>
const float* multiply_units(const Projection& projection, const Unit* units, const int8_t* levels) {
    static thread_local Scratch scratch;
    const size_t each = projection.num_groups / projection.scales.num_units;
    const size_t kinds = projection.scales.num_kinds;
    float* scales = scratch.of(projection.num_groups * kinds * kPanel);
    float* to = scales;
    for (size_t group = 0; group < projection.num_groups; ++group) {
        const Unit* unit = units + group / each * kinds * kPanel;
        for (size_t kind = 0; kind < kinds; ++kind, to += kPanel, unit += kPanel) {
            Lanes values = load(unit);
            if (levels) {
                const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
                const Lanes counts{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
                values = multiply(values, counts);
                levels += kPanel;
            }
            store(to, values);
        }
    }
    return scales;
}

const float* panel_scales(const Projection& projection, size_t panel) {
    const Scales& scales = projection.scales;
    const size_t size = scales.num_kinds * kPanel, begin = panel * scales.num_units * size;
    const int8_t* levels = scales.levels ? scales.levels + panel * projection.num_groups * size : nullptr;
    if (scales.are_halves) return multiply_units(projection, static_cast<const Half*>(scales.units) + begin, levels);
    const float* units = static_cast<const float*>(scales.units) + begin;
    return levels ? multiply_units(projection, units, levels) : units;
}

// A part of the rows, as `Rounded` has them.
struct SomeRows {
    const int16_t* numbers;
    const int32_t* sums;
    size_t stride, num_sums;
};

// Multiply `Rows` rows with a panel, to `totals` in the unit of each row.
template <class Numbers, size_t Rows>
void multiply_rows(const Projection& projection, const uint8_t* weight, const float* scale, SomeRows rows,
                   Lanes* totals) {
    const size_t group = projection.num_pairs() / projection.num_groups, kinds = projection.scales.num_kinds;
    const int32_t factor = -projection.stored_zero();
    std::fill(totals, totals + Rows, every(0));
    for (size_t first = 0; first < projection.num_pairs(); first += group, scale += kinds * kPanel) {
        Lanes products[Rows];
        std::fill(products, products + Rows, every(0));
        by_piece(group, [&](size_t begin, size_t end) {
            Sums<Rows> sums(factor, rows.sums, rows.num_sums);
            for (size_t pair = first + begin; pair < first + end; ++pair, weight += Numbers::kSize) {
                _mm_prefetch(reinterpret_cast<const char*>(weight + kAhead), _MM_HINT_T0);
                const Numbers numbers(weight);
                sums.add(numbers.low, numbers.high, rows.numbers + 2 * pair, rows.stride);
            }
            sums.add_to(products);
            for (size_t row = 0; kinds == 2 && row < Rows; ++row) {
                const Lanes sum = every(static_cast<float>(rows.sums[row * rows.num_sums]));
                totals[row] = multiply_add(sum, load(scale + kPanel), totals[row]);
            }
            ++rows.sums;
        });
        for (size_t row = 0; row < Rows; ++row)
            totals[row] = multiply_add(products[row], load(scale), totals[row]);
    }
}

template <class Numbers, size_t Rows>
void multiply_at_most(size_t num_rows, const Projection& projection, const uint8_t* weight, const float* scale,
                      const SomeRows& rows, Lanes* totals) {
    if (num_rows >= Rows)
        multiply_rows<Numbers, Rows>(projection, weight, scale, rows, totals);
    else if constexpr (Rows > 1)
        multiply_at_most<Numbers, Rows - 1>(num_rows, projection, weight, scale, rows, totals);
}

void compute_panel(const Projection& projection, size_t panel, const Rounded& rounded, size_t num_rows,
                   float* output) {
    const size_t first = panel * kPanel, width = std::min<size_t>(kPanel, projection.num_outputs - first);
    const auto multiply_panel =
        projection.num_bits == 4 ? multiply_at_most<Nibbles, kRows> : multiply_at_most<Bytes, kRows>;
    const uint8_t* weight = projection.weight + panel * projection.panel_bytes();
    const float* scale = panel_scales(projection, panel);
    for (size_t begin = 0; begin < num_rows; begin += kRows) {
        Lanes totals[kRows];
        const size_t count = std::min(kRows, num_rows - begin);
        const SomeRows rows{rounded.numbers.data() + begin * rounded.stride,
                            rounded.sums.data() + begin * rounded.num_sums, rounded.stride, rounded.num_sums};
        multiply_panel(count, projection, weight, scale, rows, totals);
        for (size_t row = 0; row < count; ++row) {
            const Lanes values = multiply(totals[row], every(rounded.units[begin + row]));
            float* to = output + (begin + row) * projection.num_outputs + first;
            if (width == kPanel) {
                store(to, values);
            } else {
                float all[kPanel];
                store(all, values);
                std::copy(all, all + width, to);
            }
        }
    }
}

}  // namespace

void multiply(const Projection& projection, const float* input, size_t num_rows, float* output) {
    static thread_local Rounded kept;
    Rounded& rounded = kept;  // of this thread, for all threads
    const size_t size = projection.num_inputs;
    rounded.resize(num_rows, projection);
    in_parallel(num_rows, kRoundingWork * num_rows * size, [&](size_t row) {
        const float* from = input + row * size;
        int16_t* numbers = rounded.numbers.data() + row * rounded.stride;
        rounded.units[row] = round_row(from, size, numbers);
        add_pieces(projection, numbers, rounded.sums.data() + row * rounded.num_sums);
    });
    in_parallel(projection.num_panels(), num_rows * size * projection.num_outputs,
                [&](size_t panel) { compute_panel(projection, panel, rounded, num_rows, output); });
}

}  // namespace LANES
