// Products of rows with a weight, or with those of their experts: rows of an expert are multiplied together, and
// share a read. A row has the same bits whatever rows are beside it, so here it has those of its expert alone.

#include <algorithm>
#include <numeric>
#include <vector>

#include "linear/kernel.h"
#include "linear/panel.h"
#include "tasks.h"

namespace LANES {
namespace {

// The rows of all experts, in their order, those of expert i from `begins[i]` on.
struct RowsByExpert {
    std::vector<size_t> begins, rows;

    RowsByExpert(const int32_t* experts, size_t num_rows, size_t num_experts)
        : begins(num_experts + 1), rows(num_rows) {
        for (size_t row = 0; row < num_rows; ++row) ++begins[experts[row] + 1];
        std::partial_sum(begins.begin(), begins.end(), begins.begin());
        std::vector<size_t> next(begins);
        for (size_t row = 0; row < num_rows; ++row) rows[next[experts[row]]++] = row;
    }
};

}  // namespace

void multiply(const Projection& projection, const float* input, size_t num_rows, float* output) {
    (projection.num_bits == 32  ? multiply_floats
     : projection.num_bits == 8 ? multiply_bytes
                                : multiply_blocks)(projection, input, num_rows, output);
}

void multiply_experts(const Projection& weight, size_t num_experts, const int32_t* experts, const float* input,
                      size_t num_rows, size_t repeats, float* output) {
    static thread_local Scratch inputs, outputs;
    const size_t num_inputs = weight.num_inputs, num_outputs = weight.num_outputs / num_experts;
    const RowsByExpert sorted(experts, num_rows, num_experts);
    for (size_t expert = 0; expert < num_experts; ++expert) {
        const size_t* rows = sorted.rows.data() + sorted.begins[expert];
        const size_t count = sorted.begins[expert + 1] - sorted.begins[expert];
        if (!count) continue;
        float *from = inputs.of(count * num_inputs), *to = outputs.of(count * num_outputs);
        for (size_t index = 0; index < count; ++index)
            std::copy_n(input + rows[index] / repeats * num_inputs, num_inputs, from + index * num_inputs);
        multiply(weight.part(expert * num_outputs / kPanel, num_outputs), from, count, to);
        for (size_t index = 0; index < count; ++index)
            std::copy_n(to + index * num_outputs, num_outputs, output + rows[index] * num_outputs);
    }
}

}  // namespace LANES
