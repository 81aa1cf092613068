// Products with a weight of 8-bit or 4-bit integers, for processors without an instruction for them.

#pragma once

#include <cstddef>
#include <cstdint>

constexpr int kPanel = 16;  // outputs that are computed together

// Scales of groups of inputs, and offsets if `num_kinds` is 2: a weight is its integer * scale + offset.
//
// A scale is a level times a unit, and so is an offset. Groups beside each other may share a unit.
struct Scales {
    size_t num_kinds;      // 1 or 2
    size_t num_units;      // as many as groups, or a divisor of their number
    bool are_halves;       // units are float16, not float32
    const void* units;     // [panels, kinds, units, 16]
    const int8_t* levels;  // [panels, kinds, groups, 16]; null if all are 1
};

// A projection from `num_inputs` to `num_outputs` features.
//
// The weight consists of panels of 16 outputs, the last one filled up with zeros. A panel holds the inputs in
// pairs, [pairs, 16 outputs, 2]; the second input of the last pair may be missing and is 0 then. A pair of
// 4-bit integers has 16 bytes: number i in the low half of byte i, and number i + 16 in the high half. They
// are 0..15 if there are offsets, else -8..7, of which 8 more is stored.
struct Projection {
    size_t num_inputs;
    size_t num_outputs;
    size_t num_bits;    // 8 or 4
    size_t num_groups;  // of inputs, each with scales of its own; more than one divide the pairs evenly
    const uint8_t* weight;
    Scales scales;

    size_t num_pairs() const { return (num_inputs + 1) / 2; }
    size_t group_pairs() const { return num_pairs() / num_groups; }
    size_t groups_of_a_unit() const { return num_groups / scales.num_units; }
    size_t num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
    size_t panel_bytes() const { return num_pairs() * 2 * kPanel * num_bits / 8; }
    int32_t stored_zero() const { return num_bits == 4 && scales.num_kinds == 1 ? 8 : 0; }
};

// Multiply rows [rows, inputs] with the weight, to `output` [rows, outputs].
namespace avx2 {
void multiply(const Projection& projection, const float* input, size_t num_rows, float* output);
}
