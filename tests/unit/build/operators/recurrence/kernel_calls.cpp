// Calls of the kernel with a number of threads, for ctypes.

#include <tbb/task_arena.h>

#include "recurrence/kernel.h"

extern "C" void recur(const DeltaLayer* layer, const DeltaStep* step, bool is_wide, int num_threads) {
    tbb::task_arena arena(num_threads);
    arena.execute([&] { (is_wide ? avx512::recur : avx2::recur)(*layer, *step); });
}
