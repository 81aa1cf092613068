// Divides work among the threads of OpenVINO.

#pragma once

#include <immintrin.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

namespace LANES {

constexpr size_t kLeastWork = size_t(1) << 18;  // multiplications of a task: about 10 microseconds

// Treats subnormal numbers as 0, whatever the thread did before, because bits and speed depend on it.
class FlushSubnormals {
public:
    FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~FlushSubnormals() { _mm_setcsr(before_); }

private:
    unsigned before_;
};

// Call `work` with 0 to count - 1, which take so many multiplications together; little work on this thread.
template <class Work>
void in_parallel(size_t count, size_t multiplications, const Work& work) {
    const size_t of_a_task = std::max<size_t>(1, kLeastWork * count / std::max<size_t>(1, multiplications));
    tbb::parallel_for(
        tbb::blocked_range<size_t>(0, count, of_a_task),
        [&](const auto& task) {
            const FlushSubnormals flush;
            for (size_t index = task.begin(); index < task.end(); ++index) work(index);
        },
        tbb::simple_partitioner());
}

// Memory that a thread keeps for its next call, aligned for its processor's widest loads.
class Scratch {
public:
    float* of(size_t floats) {
        if (floats > size_) {
            memory_.reset(new (kAlignment) float[floats]);
            size_ = floats;
        }
        return memory_.get();
    }

private:
    static constexpr std::align_val_t kAlignment{64};
    struct Free {
        void operator()(float* memory) const { operator delete[](memory, kAlignment); }
    };

    std::unique_ptr<float[], Free> memory_;
    size_t size_ = 0;
};

}  // namespace LANES
