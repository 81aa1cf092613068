// How a weight of 4 to 6 bits is divided.

#pragma once

#include "linear/panel.h"

namespace LANES {

constexpr size_t kQuad = 4;      // inputs whose products an instruction adds
constexpr size_t kAhead = 1024;  // bytes of the weight that are fetched before they are needed

// Some quads of inputs, of which the weight has `Bits` bits for each of 16 outputs.
template <size_t Bits>
struct Chunk {
    static constexpr size_t kQuads = Bits == 6 ? 4 : 8;
    static constexpr size_t kHighBytes = Bits == 4 ? 0 : 64;
    static constexpr size_t kBytes = kHighBytes + kQuads * 32;
    static constexpr int32_t kMiddle = 1 << (Bits - 1);
};

}  // namespace LANES
