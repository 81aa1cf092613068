// Calls of the kernel with a number of threads, for ctypes.

#include <tbb/task_arena.h>

#include "linear/kernel.h"

extern "C" void multiply(size_t num_inputs, size_t num_outputs, size_t num_bits, size_t num_groups,
                         size_t num_kinds, size_t num_units, bool are_halves, const uint8_t* weight,
                         const void* units, const int8_t* levels, const float* input, size_t num_rows,
                         float* output, int num_threads, bool is_wide) {
    const Scales scales{num_kinds, num_units, are_halves, units, levels};
    const Projection projection{num_inputs, num_outputs, num_bits, num_groups, weight, scales};
    tbb::task_arena arena(num_threads);
    const auto multiply = is_wide ? avx512::multiply : avx2::multiply;
    arena.execute([&] { multiply(projection, input, num_rows, output); });
}
