// Calls of the kernel with a number of threads, for ctypes.

#include <tbb/task_arena.h>

#include "attention/kernel.h"

extern "C" void attend(const Layer* layer, const Step* step, bool is_wide, int num_threads) {
    tbb::task_arena arena(num_threads);
    arena.execute([&] { (is_wide ? avx512::attend : avx2::attend)(*layer, *step); });
}
