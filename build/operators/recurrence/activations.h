// Functions of gates, as products and sums that round alike on all processors.

#pragma once

#include "lanes.h"

namespace LANES {

// 1 / (1 + e^-x) with a relative error below 4e-7; 0 below -87, NaN of NaN.
inline Lanes sigmoid(Lanes x) {
    const Lanes one = every(1.0f), power = exponential(multiply(absolute(x), every(-1.0f)));
    return divide(where_less(x, every(0), power, one), add(one, power));
}

inline Lanes silu(Lanes x) { return multiply(x, sigmoid(x)); }

// log(1 + e^x) with a relative error below 4e-7; 0 below -87, NaN of NaN.
inline Lanes softplus(Lanes x) {
    const Lanes power = exponential(multiply(absolute(x), every(-1.0f)));
    // log(1 + p) = 2 artanh(p / (2 + p)), whose series in the square, at most 1/9, ends soon.
    const Lanes part = divide(power, add(power, every(2.0f))), square = multiply(part, part);
    Lanes series = every(1.0f / 15);
    for (float coefficient : {1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f})
        series = multiply_add(series, square, every(coefficient));
    return multiply_add(add(part, part), series, larger(every(0), x));
}

}  // namespace LANES
