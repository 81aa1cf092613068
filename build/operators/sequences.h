// Checks how a step divides its tokens into sequences, before a kernel follows these numbers.

#pragma once

#include <algorithm>

#include <openvino/core/except.hpp>
#include <openvino/runtime/tensor.hpp>

namespace {

// Check `begins` [sequences + 1]: the sequences follow each other, and the last one ends at `end`.
inline void check_begins(const ov::Tensor& begins, size_t num_sequences, size_t end) {
    OPENVINO_ASSERT(begins.get_size() == num_sequences + 1, num_sequences, " sequences have ", begins.get_size(),
                    " begins");
    const int32_t* numbers = begins.data<const int32_t>();
    OPENVINO_ASSERT(numbers[0] == 0 && std::is_sorted(numbers, numbers + num_sequences + 1) &&
                        size_t(numbers[num_sequences]) == end,
                    "the sequences do not divide ", end);
}

}  // namespace
