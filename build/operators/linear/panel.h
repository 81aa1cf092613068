// What the products share.

#pragma once

#include <algorithm>

#include "lanes.h"
#include "linear/kernel.h"

namespace LANES {

inline void fetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

// Products by the type of the weight's numbers, see `multiply`.
void multiply_bytes(const Projection& projection, const float* input, size_t num_rows, float* output);
void multiply_blocks(const Projection& projection, const float* input, size_t num_rows, float* output);
void multiply_floats(const Projection& projection, const float* input, size_t num_rows, float* output);

// Units of a panel's scales, or of its offsets.
class Units {
public:
    Units(const Projection& projection, size_t panel, size_t kind)
        : are_halves_(projection.scales.are_halves),
          bytes_(kPanel * (are_halves_ ? sizeof(Half) : sizeof(float))) {
        const Scales& scales = projection.scales;
        first_ = static_cast<const uint8_t*>(scales.units) +
                 (panel * scales.num_kinds + kind) * scales.num_units * bytes_;
    }

    Lanes get(size_t index) const {
        const uint8_t* at = first_ + index * bytes_;
        return are_halves_ ? load(reinterpret_cast<const Half*>(at))
                           : load(reinterpret_cast<const float*>(at));
    }

private:
    bool are_halves_;
    size_t bytes_;
    const uint8_t* first_;
};

// Store the first `width` numbers of a panel.
inline void store_some(float* to, Lanes values, size_t width) {
    if (width == kPanel) return store(to, values);
    float all[kPanel];
    store(all, values);
    std::copy(all, all + width, to);
}

}  // namespace LANES
