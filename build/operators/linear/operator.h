// A projection as an operation of OpenVINO.

#pragma once

#include <openvino/op/op.hpp>

#include "linear/kernel.h"

namespace {

// Inputs: a tensor of floats whose last axis is multiplied; the weight, see `Projection`; units of its scales,
// as bytes if they are float16; and their levels as bytes, if they have any, see `Scales`.
class Linear : public ov::op::Op {
public:
    OPENVINO_OP("Linear", "draftproof");

    Linear() = default;

    void validate_and_infer_types() override {
        const size_t count = get_input_size();
        NODE_VALIDATION_CHECK(this, count == 3 || count == 4, "3 or 4 inputs are needed, not ", count);
        ov::PartialShape shape = get_input_partial_shape(0);
        shape[shape.size() - 1] = num_outputs_;
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<Linear>(*this);
        copy->set_arguments(inputs);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("num_outputs", num_outputs_);
        visitor.on_attribute("num_bits", num_bits_);
        visitor.on_attribute("num_groups", num_groups_);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        ov::Shape shape = inputs[0].get_shape();
        const size_t num_inputs = shape.back(), num_rows = ov::shape_size(shape) / num_inputs;
        shape.back() = num_outputs_;
        outputs[0].set_shape(shape);
        const ov::Shape units = inputs[2].get_shape();
        const bool are_halves = inputs[2].get_element_type() == ov::element::u8, has_levels = inputs.size() == 4;
        const Scales scales{units.at(1), units.at(2), are_halves, inputs[2].data(),
                            has_levels ? static_cast<const int8_t*>(inputs[3].data()) : nullptr};
        const Projection projection{num_inputs,
                                    static_cast<size_t>(num_outputs_),
                                    static_cast<size_t>(num_bits_),
                                    static_cast<size_t>(num_groups_),
                                    inputs[1].data<const uint8_t>(),
                                    scales};
        const size_t num_panels = projection.num_panels(), width = are_halves ? 2 * kPanel : kPanel;
        const ov::Shape levels{num_panels, units[1], units[2], projection.pairs_of_a_unit(), kPanel, 2};
        OPENVINO_ASSERT(projection.is_possible() &&
                            inputs[1].get_byte_size() == num_panels * projection.panel_bytes() &&
                            units == ov::Shape({num_panels, units[1], units[2], width}) &&
                            (!has_levels || inputs[3].get_shape() == levels),
                        num_groups_, " groups of ", num_bits_, " bits do not fit ", num_inputs, " inputs and ",
                        num_outputs_, " outputs with units of ", units);
        avx2::multiply(projection, inputs[0].data<const float>(), num_rows, outputs[0].data<float>());
        return true;
    }

private:
    int64_t num_outputs_ = 0;
    int64_t num_bits_ = 8;
    int64_t num_groups_ = 1;
};

}  // namespace
