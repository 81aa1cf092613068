// Products with a weight of integers.

#pragma once

#include <cstddef>
#include <cstdint>

constexpr size_t kPanel = 16;          // outputs that are computed together
constexpr size_t kLargestBlock = 256;  // inputs of a row that are rounded with one unit, at most

// Scales of groups of inputs, and offsets if `num_kinds` is 2: a weight is its integer * scale + offset.
//
// A scale is a level times a unit, and so is an offset. Groups beside each other may share a unit.
struct Scales {
    size_t num_kinds;      // 1 or 2
    size_t num_units;      // as many as groups, or a divisor of their number
    bool are_halves;       // units are float16, not float32
    const void* units;     // [panels, kinds, units, 16]
    const int8_t* levels;  // [panels, kinds, units, pairs of a unit's groups, 16, 2]; null if all are 1
};

// A projection from `num_inputs` to `num_outputs` features.
//
// The weight consists of panels of 16 outputs, the last one filled up with zeros.
//
// Integers of 8 bits: a panel holds the inputs in pairs, [pairs, 16 outputs, 2]; the second input of the last
// pair may be missing and is 0 then. There are neither offsets nor levels.
//
// Integers of 4, 5 or 6 bits: a panel holds the inputs in quads, [quads, 16 outputs, 4], of which half the
// numbers have a register: those of 8 outputs. The low four bits of a quad have 32 bytes: number i in the low
// half of byte i, and number i + 32 in the high half. Quads of a chunk of 32 inputs (16 if there are 6 bits)
// follow their remaining bits, 64 bytes: those of quad q, from the lowest on, are in the bytes i and i + 32.
// Integers are unsigned; without offsets, half their range is subtracted.
//
// Floats, which have 32 bits: a panel holds the inputs of one output after the other. There are no scales.
struct Projection {
    size_t num_inputs;
    size_t num_outputs;
    size_t num_bits;    // 32, 8, 6, 5 or 4
    size_t num_groups;  // of inputs, each with scales of its own
    const uint8_t* weight;
    Scales scales;

    size_t num_pairs() const { return (num_inputs + 1) / 2; }
    size_t num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
    size_t panel_bytes() const {
        return (num_bits == 8 ? 2 * num_pairs() : num_inputs) * kPanel * num_bits / 8;
    }
    size_t inputs_of_a_chunk() const { return num_bits == 6 ? 16 : 32; }
    size_t groups_of_a_unit() const { return num_groups / scales.num_units; }
    size_t pairs_of_a_unit() const { return (groups_of_a_unit() + 1) / 2; }

    // Return the projection to so many outputs from a panel on.
    Projection part(size_t panel, size_t outputs) const {
        Projection some = *this;
        const size_t units = panel * scales.num_kinds * scales.num_units;
        some.num_outputs = outputs;
        some.weight += panel * panel_bytes();
        some.scales.units = static_cast<const uint8_t*>(scales.units) + units * kPanel * (scales.are_halves ? 2 : 4);
        if (scales.levels) some.scales.levels += units * pairs_of_a_unit() * kPanel * 2;
        return some;
    }

    // Return whether its groups can be multiplied.
    bool is_possible() const {
        if (num_bits == 32) return num_groups == 1;
        if (!num_groups || !scales.num_units || num_groups % scales.num_units) return false;
        if (num_bits == 8)
            return scales.num_kinds == 1 && !scales.levels && num_groups == scales.num_units &&
                   (num_groups == 1 || num_inputs % (2 * num_groups) == 0);
        return 4 <= num_bits && num_bits <= 6 && 1 <= scales.num_kinds && scales.num_kinds <= 2 &&
               num_inputs % (num_groups * inputs_of_a_chunk()) == 0 &&
               (scales.levels ? num_inputs / scales.num_units <= kLargestBlock
                              : num_groups == scales.num_units);
    }
};

// `multiply` writes the products of rows [rows, inputs] with the weight to `output` [rows, outputs].
//
// `multiply_experts` multiplies each row with the weight of its expert, to `output` [rows, outputs of an expert].
// `weight` holds those of all experts, whose outputs fill whole panels; `experts` has that of each row. So many
// rows after each other have the same input: `input` is [rows / repeats, inputs].
#define DECLARE_PRODUCTS                                                                                        \
    void multiply(const Projection& projection, const float* input, size_t num_rows, float* output);            \
    void multiply_experts(const Projection& weight, size_t num_experts, const int32_t* experts,                 \
                          const float* input, size_t num_rows, size_t repeats, float* output);

namespace avx2 {
DECLARE_PRODUCTS
}
namespace avx512 {  // with VNNI; the bits are the same
DECLARE_PRODUCTS
}

#undef DECLARE_PRODUCTS
