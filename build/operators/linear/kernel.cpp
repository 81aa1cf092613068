// Products of rows with a weight of 8-bit integers, for AVX2.
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

constexpr size_t kRows = 6;              // rows that share a read of the weight; as many as the registers hold
constexpr float kLargest = 8191;         // integer of a row
constexpr size_t kExactPairs = 1024;     // so many sums of at most 2 * 8191 * 128 fit into 32 bits
constexpr float kSmallest = 1e-30f;      // of the largest value of a row that does not count as 0
constexpr size_t kAhead = 1024;          // bytes of the weight that are fetched before they are needed
constexpr size_t kRoundingWork = 16;     // a number is rounded so much slower than it is multiplied

// Rows as integers, [rows, stride], and the size of the unit of each.
struct Rounded {
    std::vector<int16_t> numbers;
    std::vector<float> units;
    size_t stride = 0;

    void resize(size_t num_rows, size_t size) {
        stride = (size + kLanes - 1) / kLanes * kLanes;
        numbers.resize(std::max(numbers.size(), num_rows * stride));
        units.resize(std::max(units.size(), num_rows));
    }
};

inline void store(int16_t* to, Lanes integers) {
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(integers.low), _mm256_cvtps_epi32(integers.high));
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
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();

    // Add the products of a pair of inputs. `rows` points to the pair of the first row.
    [[gnu::always_inline]] void add(__m256i low_weights, __m256i high_weights, const int16_t* rows, size_t stride) {
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
    void add(__m256i, __m256i, const int16_t*, size_t) {}
    void add_to(Lanes*) const {}
};

// Multiply `Rows` rows with a panel.
template <size_t Rows>
void multiply_rows(const int8_t* panel, size_t num_pairs, const int16_t* rows, size_t stride, Lanes* totals) {
    for (Lanes* total = totals; total < totals + Rows; ++total) *total = every(0);
    for (size_t begin = 0; begin < num_pairs; begin += kExactPairs) {
        const size_t end = std::min(num_pairs, begin + kExactPairs);
        Sums<Rows> sums;
        for (size_t pair = begin; pair < end; ++pair, panel += 2 * kPanel) {
            _mm_prefetch(reinterpret_cast<const char*>(panel + kAhead), _MM_HINT_T0);
            const __m128i* weights = reinterpret_cast<const __m128i*>(panel);
            sums.add(_mm256_cvtepi8_epi16(_mm_loadu_si128(weights)),
                     _mm256_cvtepi8_epi16(_mm_loadu_si128(weights + 1)), rows + 2 * pair, stride);
        }
        sums.add_to(totals);
    }
}

// Multiply at most `Rows` rows with a panel.
template <size_t Rows>
void multiply_at_most(size_t num_rows, const int8_t* panel, size_t num_pairs, const int16_t* rows, size_t stride,
                      Lanes* totals) {
    if (num_rows >= Rows)
        multiply_rows<Rows>(panel, num_pairs, rows, stride, totals);
    else if constexpr (Rows > 1)
        multiply_at_most<Rows - 1>(num_rows, panel, num_pairs, rows, stride, totals);
}

void multiply_panel(const Projection& projection, size_t panel, const Rounded& rounded, size_t num_rows,
                    float* output) {
    const size_t first = panel * kPanel, width = std::min<size_t>(kPanel, projection.num_outputs - first);
    const int8_t* weight = projection.weight + panel * projection.panel_bytes();
    const Lanes scale = load(projection.scale + first);
    for (size_t begin = 0; begin < num_rows; begin += kRows) {
        Lanes totals[kRows];
        const size_t count = std::min(kRows, num_rows - begin);
        multiply_at_most<kRows>(count, weight, projection.num_pairs(),
                                rounded.numbers.data() + begin * rounded.stride, rounded.stride, totals);
        for (size_t row = 0; row < count; ++row) {
            const Lanes values = multiply(totals[row], multiply(every(rounded.units[begin + row]), scale));
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
    rounded.resize(num_rows, size);
    in_parallel(num_rows, kRoundingWork * num_rows * size, [&](size_t row) {
        const float* from = input + row * size;
        rounded.units[row] = round_row(from, size, rounded.numbers.data() + row * rounded.stride);
    });
    in_parallel(projection.num_panels(), num_rows * size * projection.num_outputs,
                [&](size_t panel) { multiply_panel(projection, panel, rounded, num_rows, output); });
}

}  // namespace LANES
