// Products of rows with a weight of 8-bit or 4-bit integers, for AVX2.
//
// A row is rounded to integers with a unit of its own, and integers are added exactly in any order. So a
// row's bits depend on itself alone: neither on other rows, nor on threads, nor on the processor.

#include "linear/kernel.h"

#include <algorithm>
#include <cstring>
#include <numeric>
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

// Rows as integers.
struct Rounded {
    std::vector<int16_t> numbers;  // [rows, stride]
    std::vector<float> units;      // [rows]: the size of an integer
    std::vector<float> sums;       // [rows, groups]
    std::vector<int32_t> starts;   // [rows, pieces]: what is added as integers begins with them
    size_t stride = 0, num_groups = 0, num_pieces = 0;

    void resize(size_t num_rows, const Projection& projection) {
        stride = (projection.num_inputs + kLanes - 1) / kLanes * kLanes;
        num_groups = projection.num_groups;
        num_pieces = num_groups * ((projection.group_pairs() + kExactPairs - 1) / kExactPairs);
        numbers.resize(std::max(numbers.size(), num_rows * stride));
        units.resize(std::max(units.size(), num_rows));
        sums.resize(std::max(sums.size(), num_rows * num_groups));
        starts.resize(std::max(starts.size(), num_rows * num_pieces));
    }
};

// Some rows of `Rounded`.
struct Rows {
    const int16_t* numbers;
    const float* sums;
    const int32_t* starts;
    size_t stride, num_groups, num_pieces;

    Rows(const Rounded& all, size_t first)
        : numbers(all.numbers.data() + first * all.stride),
          sums(all.sums.data() + first * all.num_groups),
          starts(all.starts.data() + first * all.num_pieces),
          stride(all.stride),
          num_groups(all.num_groups),
          num_pieces(all.num_pieces) {}
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

// Add up the integers of a row in groups, and in pieces times the number that stands for a weight of 0.
void add_up(const Projection& projection, const int16_t* row, float* sums, int32_t* starts) {
    const size_t group = projection.group_pairs();
    for (size_t first = 0; first < projection.num_pairs(); first += group) {
        int32_t all = 0;
        for (size_t begin = first; begin < first + group; begin += kExactPairs) {
            const size_t end = std::min(first + group, begin + kExactPairs);
            const int32_t sum = std::accumulate(row + 2 * begin, row + 2 * end, 0);
            *starts++ = -projection.stored_zero() * sum;
            all += sum;
        }
        *sums++ = static_cast<float>(all);
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

// Sums of `Count` rows for 16 outputs, eight each.
template <size_t Count>
struct Sums {
    Sums<Count - 1> others;
    __m256i low, high;

    // Begin with what `starts` has for the first row, and behind it for the others.
    [[gnu::always_inline]] Sums(const int32_t* starts, size_t num_pieces)
        : others(starts, num_pieces), low(_mm256_set1_epi32(starts[(Count - 1) * num_pieces])), high(low) {}

    // Add the products of a pair of inputs. `rows` points to the pair of the first row.
    [[gnu::always_inline]] void add(__m256i low_weights, __m256i high_weights, const int16_t* rows,
                                    size_t stride) {
        others.add(low_weights, high_weights, rows, stride);
        int32_t pair;
        std::memcpy(&pair, rows + (Count - 1) * stride, sizeof(pair));
        const __m256i pairs = _mm256_set1_epi32(pair);
        add_products(low, low_weights, pairs);
        add_products(high, high_weights, pairs);
    }

    [[gnu::always_inline]] void add_to(Lanes* totals, Lanes scale) const {
        others.add_to(totals, scale);
        const Lanes sums{_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
        totals[Count - 1] = multiply_add(sums, scale, totals[Count - 1]);
    }
};

template <>
struct Sums<0> {
    Sums(const int32_t*, size_t) {}
    void add(__m256i, __m256i, const int16_t*, size_t) {}
    void add_to(Lanes*, Lanes) const {}
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

inline void fetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

// Scales of a panel, or its offsets, group after group.
class GroupScales {
public:
    GroupScales(const Projection& projection, size_t panel, size_t kind)
        : are_halves_(projection.scales.are_halves), groups_of_a_unit_(projection.groups_of_a_unit()) {
        const Scales& scales = projection.scales;
        unit_size_ = kPanel * (are_halves_ ? sizeof(Half) : sizeof(float));
        const size_t before = panel * scales.num_kinds + kind;
        unit_ = static_cast<const uint8_t*>(scales.units) + before * scales.num_units * unit_size_;
        next_panel_units_ = scales.num_kinds * scales.num_units * unit_size_;
        if (!scales.levels) return;
        level_ = scales.levels + before * projection.num_groups * kPanel;
        next_panel_levels_ = scales.num_kinds * projection.num_groups * kPanel;
    }

    // Return those of the group. Nothing is kept in registers, which the sums of rows need.
    [[gnu::always_inline]] Lanes get() const {
        const Lanes unit = are_halves_ ? load(reinterpret_cast<const Half*>(unit_))
                                       : load(reinterpret_cast<const float*>(unit_));
        if (!level_) return unit;
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(level_));
        const Lanes levels{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
        return multiply(levels, unit);
    }

    // Go on to the next group, and fetch what the next panel has in its place.
    [[gnu::always_inline]] void advance() {
        if (level_) {
            fetch(level_ + next_panel_levels_);
            level_ += kPanel;
        }
        if (++group_ < groups_of_a_unit_) return;
        fetch(unit_ + next_panel_units_);
        unit_ += unit_size_;
        group_ = 0;
    }

private:
    const bool are_halves_;
    const size_t groups_of_a_unit_;
    size_t unit_size_, next_panel_units_, next_panel_levels_ = 0, group_ = 0;
    const uint8_t* unit_;
    const int8_t* level_ = nullptr;
};

// Multiply `Count` rows with the offsets of a panel.
template <size_t Count>
void multiply_offsets(const Projection& projection, size_t panel, const Rows& rows, Lanes* totals) {
    Lanes sums[Count];
    std::fill(sums, sums + Count, every(0));
    GroupScales offsets(projection, panel, 1);
    for (size_t group = 0; group < projection.num_groups; ++group, offsets.advance()) {
        const Lanes offset = offsets.get();
        for (size_t row = 0; row < Count; ++row)
            sums[row] = multiply_add(every(rows.sums[row * rows.num_groups + group]), offset, sums[row]);
    }
    std::copy(sums, sums + Count, totals);
}

// Multiply `Count` rows with a panel, to `totals` in the unit of each row.
template <class Numbers, size_t Count>
void multiply_rows(const Projection& projection, size_t panel, Rows rows, Lanes* totals) {
    const uint8_t* weight = projection.weight + panel * projection.panel_bytes();
    const size_t group = projection.group_pairs();
    if (projection.scales.num_kinds == 2)
        multiply_offsets<Count>(projection, panel, rows, totals);
    else
        std::fill(totals, totals + Count, every(0));
    GroupScales scales(projection, panel, 0);
    for (size_t first = 0; first < projection.num_pairs(); first += group, scales.advance()) {
        for (size_t begin = first; begin < first + group; begin += kExactPairs) {
            const size_t end = std::min(first + group, begin + kExactPairs);
            Sums<Count> sums(rows.starts++, rows.num_pieces);
            for (size_t pair = begin; pair < end; ++pair, weight += Numbers::kSize) {
                fetch(weight + kAhead);
                const Numbers numbers(weight);
                sums.add(numbers.low, numbers.high, rows.numbers + 2 * pair, rows.stride);
            }
            sums.add_to(totals, scales.get());
        }
    }
}

template <class Numbers, size_t Count>
void multiply_at_most(size_t num_rows, const Projection& projection, size_t panel, const Rows& rows,
                      Lanes* totals) {
    if (num_rows >= Count)
        multiply_rows<Numbers, Count>(projection, panel, rows, totals);
    else if constexpr (Count > 1)
        multiply_at_most<Numbers, Count - 1>(num_rows, projection, panel, rows, totals);
}

void compute_panel(const Projection& projection, size_t panel, const Rounded& rounded, size_t num_rows,
                   float* output) {
    const size_t first = panel * kPanel, width = std::min<size_t>(kPanel, projection.num_outputs - first);
    for (size_t begin = 0; begin < num_rows; begin += kRows) {
        Lanes totals[kRows];
        const size_t count = std::min(kRows, num_rows - begin);
        const auto multiply_panel =
            projection.num_bits == 4 ? multiply_at_most<Nibbles, kRows> : multiply_at_most<Bytes, kRows>;
        multiply_panel(count, projection, panel, Rows(rounded, begin), totals);
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
        add_up(projection, numbers, rounded.sums.data() + row * rounded.num_groups,
               rounded.starts.data() + row * rounded.num_pieces);
    });
    in_parallel(projection.num_panels(), num_rows * size * projection.num_outputs,
                [&](size_t panel) { compute_panel(projection, panel, rounded, num_rows, output); });
}

}  // namespace LANES
