// Scores, softmax and weighted sums of a few rows over the positions of a block or segment.

#pragma once

#include <algorithm>
#include <limits>

#include "attention/block.h"
#include "lanes.h"

namespace LANES {

constexpr int kSegment = 256;      // positions whose softmax is computed at once
constexpr int kPart = 1024;        // positions that are joined first: the least work of a task
constexpr float kLowest = -1e30f;  // below every score; finite, so that no difference of two is NaN

// Rows whose sums are in registers at once.
#ifdef __AVX512F__
constexpr int kRows = 8;
#else
constexpr int kRows = 6;
#endif
// `Lanes` of sums of each row: two where the registers hold them beside two of numbers and one factor. A sum
// waits for the one before it, so few rows with one each would leave the processor idle.
constexpr int columns_for(int rows) { return 2 * (rows + 1) * kRegistersOfLanes + 1 <= kRegisters ? 2 : 1; }

// Products of `Rows` queries [size] with the keys [size, 32] of a block, to `scores` [Rows, kSegment]. The
// coordinates are added in order.
template <int Rows, class Number>
void score(const float* queries, int size, const Number* keys, float* scores) {
    constexpr int columns = columns_for(Rows);
    for (int first = 0; first < kBlock; first += columns * kLanes) {
        Lanes sums[Rows][columns];
        for (int row = 0; row < Rows; ++row)
            for (int column = 0; column < columns; ++column) sums[row][column] = every(0);
        for (int i = 0; i < size; ++i) {
            Lanes key[columns];
            for (int column = 0; column < columns; ++column)
                key[column] = load(keys + i * kBlock + first + column * kLanes);
            for (int row = 0; row < Rows; ++row) {
                const Lanes coordinate = every(queries[row * size + i]);
                for (int column = 0; column < columns; ++column)
                    sums[row][column] = multiply_add(coordinate, key[column], sums[row][column]);
            }
        }
        for (int row = 0; row < Rows; ++row)
            for (int column = 0; column < columns; ++column)
                store(scores + row * kSegment + first + column * kLanes, sums[row][column]);
    }
}

// Add the values [32, size] of the positions from `begin` to `end`, times `weights` [Rows, kSegment], to
// `Columns` Lanes of `sums` [Rows, size]. The positions are added in order.
template <int Rows, int Columns, class Number>
void add_weighted(const float* weights, int begin, int end, const Number* values, int size, float* sums) {
    Lanes added[Rows][Columns];
    for (int row = 0; row < Rows; ++row)
        for (int column = 0; column < Columns; ++column)
            added[row][column] = load(sums + row * size + column * kLanes);
    for (int position = begin; position < end; ++position) {
        Lanes value[Columns];
        for (int column = 0; column < Columns; ++column)
            value[column] = load(values + position * size + column * kLanes);
        for (int row = 0; row < Rows; ++row) {
            const Lanes weight = every(weights[row * kSegment + position]);
            for (int column = 0; column < Columns; ++column)
                added[row][column] = multiply_add(weight, value[column], added[row][column]);
        }
    }
    for (int row = 0; row < Rows; ++row)
        for (int column = 0; column < Columns; ++column)
            store(sums + row * size + column * kLanes, added[row][column]);
}

// Replace the scores from `first` to `last`, which are multiples of 32, by softcap * tanh(score / softcap).
inline void cap(float* scores, float softcap, int first, int last) {
    const Lanes most = every(softcap);
    for (int at = first; at < last; at += kLanes)
        store(scores + at, multiply(most, hyperbolic_tangent(divide(load(scores + at), most))));
}

struct Softmax {
    float largest;  // score
    float total;    // of exp(score - largest)
};

// Replace the scores of the positions from `begin` to `end` by exp(score - largest), and the others from
// `first` to `last`, which are multiples of 32, by 0.
inline Softmax exponentials(float* scores, int begin, int end, int first, int last) {
    begin = std::max(begin, first), end = std::min(end, last);
    if (begin >= end) {
        std::fill(scores + first, scores + last, 0.0f);
        return {kLowest, 0};
    }
    std::fill(scores + first, scores + begin, -std::numeric_limits<float>::infinity());
    std::fill(scores + end, scores + last, -std::numeric_limits<float>::infinity());
    Lanes highest = every(kLowest), total = every(0);
    for (int at = first; at < last; at += kLanes) highest = larger(highest, load(scores + at));
    const float top = largest(highest);
    for (int at = first; at < last; at += kLanes) {
        const Lanes weights = exponential(subtract(load(scores + at), every(top)));
        store(scores + at, weights);
        total = add(total, weights);
    }
    return {top, sum(total)};
}

// Scales and lowest values of the integers at the positions of a segment; 0 outside `begin` to `end`, because
// there the cache may hold anything. Without integers it does nothing.
template <class Number>
class Levels {
public:
    template <class BlockAt>
    Levels(const BlockAt& block_at, int begin, int end) {
        if constexpr (is_integer<Number>)
            for (int at = begin, next; at < end; at = next) {
                next = std::min(end, (at / kBlock + 1) * kBlock);
                const auto block = block_at(at / kBlock);
                std::copy(block.scales + at % kBlock, block.scales + at % kBlock + next - at, scales_ + at);
                std::copy(block.lowest + at % kBlock, block.lowest + at % kBlock + next - at, lowest_ + at);
            }
    }

    // Turn the products of a query with integers into those with the keys that they stand for.
    void to_scores(float* products, float query_sum, int first, int last) const {
        if constexpr (is_integer<Number>)
            for (int at = first; at < last; at += kLanes) {
                const Lanes offset = multiply(load(lowest_ + at), every(query_sum));
                store(products + at, multiply_add(load(products + at), load(scales_ + at), offset));
            }
    }

    // Turn weights of values into those of integers; return what all columns get in addition, the sum of the
    // weights times the lowest values. A position of weight 0 counts for nothing, whatever it holds.
    float to_weights(float* weights, int first, int last) const {
        if constexpr (!is_integer<Number>) return 0;
        Lanes offset = every(0);
        for (int at = first; at < last; at += kLanes) {
            const Lanes weight = load(weights + at);
            offset = multiply_add(weight, where_weighted(weight, load(lowest_ + at)), offset);
            store(weights + at, multiply(weight, where_weighted(weight, load(scales_ + at))));
        }
        return sum(offset);
    }

private:
    // The least weight that is not 0 is larger than the least normal number.
    static Lanes where_weighted(Lanes weight, Lanes numbers) {
        return where_less(weight, every(std::numeric_limits<float>::min()), every(0), numbers);
    }

    float scales_[is_integer<Number> ? kSegment : 1] = {};
    float lowest_[is_integer<Number> ? kSegment : 1] = {};
};

}  // namespace LANES
