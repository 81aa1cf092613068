// Scores, softmax and weighted sums of a few rows over the positions of a block or segment.

#pragma once

#include <algorithm>
#include <limits>

#include "attention/block.h"
#include "lanes.h"

namespace LANES {

constexpr int kSegment = 256;      // positions whose softmax is computed at once
constexpr float kLowest = -1e30f;  // below every score; finite, so that no difference of two is NaN

// Scores of `Rows` queries [size] over a block, to `scores` [Rows, kSegment]. The coordinates are added in
// order. `query_sums` [Rows] is read for integers only.
template <int Rows, class Number>
void score(const float* queries, const float* query_sums, int size, const Block<Number>& keys,
           float* scores) {
    Lanes sums[Rows][2];
    for (auto& row : sums) row[0] = row[1] = every(0);
    for (int i = 0; i < size; ++i) {
        const Lanes low = load(keys.numbers + i * kBlock), high = load(keys.numbers + i * kBlock + kLanes);
        for (int row = 0; row < Rows; ++row) {
            const Lanes coordinate = every(queries[row * size + i]);
            sums[row][0] = multiply_add(coordinate, low, sums[row][0]);
            sums[row][1] = multiply_add(coordinate, high, sums[row][1]);
        }
    }
    for (int row = 0; row < Rows; ++row)
        for (int half = 0; half < 2; ++half) {
            Lanes found = sums[row][half];
            if constexpr (is_integer<Number>) {
                const Lanes offset = multiply(load(keys.lowest + half * kLanes), every(query_sums[row]));
                found = multiply_add(found, load(keys.scales + half * kLanes), offset);
            }
            store(scores + row * kSegment + half * kLanes, found);
        }
}

// Add the values [32, size] of the positions from `begin` to `end`, times `weights` [Rows, kSegment], to
// columns of `sums` [Rows, size]. The positions are added in order.
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

// Scales and lowest values of the positions of a segment whose values are integers; 0 outside `begin` to
// `end`, because there the cache may hold anything.
template <class Number>
class Levels {
public:
    template <class BlockAt>
    Levels(const BlockAt& block_at, int begin, int end) {
        if constexpr (is_integer<Number>)
            for (int at = begin; at < end; ++at) {
                scales_[at] = block_at(at / kBlock).scales[at % kBlock];
                lowest_[at] = block_at(at / kBlock).lowest[at % kBlock];
            }
    }

    // Multiply weights with the scales; return their sum with the lowest values, which all columns get.
    float apply(float* weights, int first, int last) const {
        if constexpr (!is_integer<Number>) return 0;
        Lanes offset = every(0);
        for (int at = first; at < last; at += kLanes) {
            offset = multiply_add(load(weights + at), load(lowest_ + at), offset);
            store(weights + at, multiply(load(weights + at), load(scales_ + at)));
        }
        return sum(offset);
    }

private:
    float scales_[is_integer<Number> ? kSegment : 1] = {};
    float lowest_[is_integer<Number> ? kSegment : 1] = {};
};

}  // namespace LANES
