// Products of rows with a weight of 8-bit integers.
//
// A row is rounded to 14 bits with a unit of its own, and integers are added exactly in any order. So a
// row's bits depend on itself alone: neither on other rows, nor on threads, nor on the processor.

#include <algorithm>
#include <cstring>
#include <vector>

#include "lanes.h"
#include "linear/panel.h"
#include "tasks.h"

namespace LANES {
namespace {

constexpr float kLargest = 8191;      // integer of a row
constexpr size_t kExactPairs = 1024;  // so many sums of at most 2 * 8191 * 128 fit into 32 bits
constexpr float kSmallest = 1e-30f;   // largest value of a row that does not count as 0
constexpr size_t kAhead = 1024;       // bytes of the weight that are fetched before they are needed
constexpr size_t kRoundingWork = 16;  // a number is rounded so much slower than it is multiplied

// Rows as integers.
struct Rounded {
    std::vector<int16_t> numbers;  // [rows, stride]
    std::vector<float> units;      // [rows]: the size of an integer
    size_t stride = 0;

    void resize(size_t num_rows, size_t num_inputs) {
        stride = (num_inputs + kLanes - 1) / kLanes * kLanes;
        numbers.resize(std::max(numbers.size(), num_rows * stride));
        units.resize(std::max(units.size(), num_rows));
    }
};

inline void store(int16_t* to, Lanes integers) {
    const __m256i low = _mm256_cvtps_epi32(low_half(integers)), high = _mm256_cvtps_epi32(high_half(integers));
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

#ifdef __AVX512VNNI__

constexpr size_t kRows = 12;  // that share a read of the weight: as many as the registers hold

// Integers of 32 bits for 16 outputs, or pairs of 16 bits.
struct Integers {
    __m512i all;
};

inline Integers zeros() { return {_mm512_setzero_si512()}; }
inline Integers repeated(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Lanes as_floats(const Integers& integers) { return {_mm512_cvtepi32_ps(integers.all)}; }

// Weights of a pair of inputs.
inline Integers weights(const uint8_t* at) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)))};
}

// Add a[2i] * b[2i] + a[2i + 1] * b[2i + 1] to sums[i].
[[gnu::always_inline]] inline void add_products(Integers& sums, const Integers& a, const Integers& b) {
    sums.all = _mm512_dpwssd_epi32(sums.all, a.all, b.all);
}

#else

constexpr size_t kRows = 6;  // that share a read of the weight: as many as the registers hold

// Integers of 32 bits for 16 outputs, or pairs of 16 bits: those of eight in each register.
struct Integers {
    __m256i low, high;
};

inline Integers zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Integers repeated(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Lanes as_floats(const Integers& integers) {
    return {_mm256_cvtepi32_ps(integers.low), _mm256_cvtepi32_ps(integers.high)};
}

// Weights of a pair of inputs.
inline Integers weights(const uint8_t* at) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(at);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(halves)), _mm256_cvtepi8_epi16(_mm_loadu_si128(halves + 1))};
}

// In one piece, because GCC would multiply for all rows before it adds, and so many products do not fit into
// the registers.
[[gnu::always_inline]] inline void add_products(__m256i& sums, __m256i a, __m256i b) {
    __m256i products;
    asm("vpmaddwd %[a], %[b], %[products]\n\tvpaddd %[products], %[sums], %[sums]"
        : [sums] "+x"(sums), [products] "=&x"(products)
        : [a] "x"(a), [b] "x"(b));
}

// Add a[2i] * b[2i] + a[2i + 1] * b[2i + 1] to sums[i].
[[gnu::always_inline]] inline void add_products(Integers& sums, const Integers& a, const Integers& b) {
    add_products(sums.low, a.low, b.low);
    add_products(sums.high, a.high, b.high);
}

#endif

// Sums of `Count` rows.
template <size_t Count>
struct Sums {
    Sums<Count - 1> others;
    Integers sums = zeros();

    // Add the products of a pair of inputs. `rows` points to the pair of the first row.
    [[gnu::always_inline]] void add(const Integers& weights, const int16_t* rows, size_t stride) {
        others.add(weights, rows, stride);
        int32_t pair;
        std::memcpy(&pair, rows + (Count - 1) * stride, sizeof(pair));
        add_products(sums, weights, repeated(pair));
    }

    [[gnu::always_inline]] void add_to(Lanes* totals, Lanes scale) const {
        others.add_to(totals, scale);
        totals[Count - 1] = multiply_add(as_floats(sums), scale, totals[Count - 1]);
    }
};

template <>
struct Sums<0> {
    void add(const Integers&, const int16_t*, size_t) {}
    void add_to(Lanes*, Lanes) const {}
};

// Multiply `Count` rows with a panel, to `totals` in the unit of each row.
template <size_t Count>
void multiply_rows(const Projection& projection, size_t panel, const int16_t* rows, size_t stride,
                   Lanes* totals) {
    const uint8_t* weight = projection.weight + panel * projection.panel_bytes();
    const Units units(projection, panel, 0);
    const size_t group_pairs = projection.num_pairs() / projection.num_groups;
    std::fill(totals, totals + Count, every(0));
    for (size_t group = 0; group < projection.num_groups; ++group) {
        const size_t first = group * group_pairs, end = first + group_pairs;
        for (size_t begin = first; begin < end; begin += kExactPairs) {
            Sums<Count> sums;
            for (size_t pair = begin; pair < std::min(end, begin + kExactPairs); ++pair) {
                fetch(weight + kAhead);
                sums.add(weights(weight), rows + 2 * pair, stride);
                weight += 2 * kPanel;
            }
            sums.add_to(totals, units.get(group));
        }
    }
}

template <size_t Count = kRows>
void multiply_at_most(size_t num_rows, const Projection& projection, size_t panel, const int16_t* rows,
                      size_t stride, Lanes* totals) {
    if (num_rows >= Count)
        multiply_rows<Count>(projection, panel, rows, stride, totals);
    else if constexpr (Count > 1)
        multiply_at_most<Count - 1>(num_rows, projection, panel, rows, stride, totals);
}

}  // namespace

void multiply_bytes(const Projection& projection, const float* input, size_t num_rows, float* output) {
    static thread_local Rounded kept;
    Rounded& rounded = kept;  // of this thread, for all threads
    const size_t size = projection.num_inputs, num_outputs = projection.num_outputs;
    rounded.resize(num_rows, size);
    in_parallel(num_rows, kRoundingWork * num_rows * size, [&](size_t row) {
        rounded.units[row] = round_row(input + row * size, size, rounded.numbers.data() + row * rounded.stride);
    });
    in_parallel(projection.num_panels(), num_rows * size * num_outputs, [&](size_t panel) {
        const size_t first = panel * kPanel, width = std::min(kPanel, num_outputs - first);
        for (size_t begin = 0; begin < num_rows; begin += kRows) {
            Lanes totals[kRows];
            const size_t count = std::min(kRows, num_rows - begin);
            multiply_at_most(count, projection, panel, rounded.numbers.data() + begin * rounded.stride,
                             rounded.stride, totals);
            for (size_t row = 0; row < count; ++row) {
                const Lanes values = multiply(totals[row], every(rounded.units[begin + row]));
                store_some(output + (begin + row) * num_outputs + first, values, width);
            }
        }
    });
}

}  // namespace LANES
