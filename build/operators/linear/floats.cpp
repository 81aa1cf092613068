// Products of rows with a weight of floats.
//
// An output of a row is added up in one order, so a row's bits depend on itself alone. Networks in float32 are for
// comparisons: the weight is read for each row, from the cache.

#include <algorithm>

#include "lanes.h"
#include "linear/panel.h"
#include "tasks.h"

namespace LANES {
namespace {

float product(const float* a, const float* b, size_t size) {
    Lanes total = every(0);
    const size_t whole = size / kLanes * kLanes;
    for (size_t at = 0; at < whole; at += kLanes) total = multiply_add(load(a + at), load(b + at), total);
    float rests[2][kLanes] = {};
    std::copy(a + whole, a + size, rests[0]);
    std::copy(b + whole, b + size, rests[1]);
    return sum(multiply_add(load(rests[0]), load(rests[1]), total));
}

}  // namespace

void multiply_floats(const Projection& projection, const float* input, size_t num_rows, float* output) {
    const size_t size = projection.num_inputs, num_outputs = projection.num_outputs;
    const auto* weight = reinterpret_cast<const float*>(projection.weight);
    in_parallel(num_outputs, num_rows * size * num_outputs, [&](size_t index) {
        for (size_t row = 0; row < num_rows; ++row)
            output[row * num_outputs + index] = product(weight + index * size, input + row * size, size);
    });
}

}  // namespace LANES
