// A projection as an operation of OpenVINO.

#pragma once

#include <openvino/op/op.hpp>

#include "linear/kernel.h"

namespace {

// Inputs: a tensor of floats whose last axis is multiplied; the weight and its scales, see `Projection`. The
// scales have the shape [panels, groups, 16].
class Linear : public ov::op::Op {
public:
    OPENVINO_OP("Linear", "draftproof");

    Linear() = default;

    void validate_and_infer_types() override {
        NODE_VALIDATION_CHECK(this, get_input_size() == 3, "3 inputs are needed, not ", get_input_size());
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
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        ov::Shape shape = inputs[0].get_shape();
        const size_t num_inputs = shape.back(), num_rows = ov::shape_size(shape) / num_inputs;
        shape.back() = num_outputs_;
        outputs[0].set_shape(shape);
        const ov::Shape scales = inputs[2].get_shape();
        const Projection projection{num_inputs,
                                    static_cast<size_t>(num_outputs_),
                                    static_cast<size_t>(num_bits_),
                                    scales.at(1),
                                    inputs[1].data<const uint8_t>(),
                                    inputs[2].data<const float>()};
        const size_t num_panels = projection.num_panels();
        OPENVINO_ASSERT(inputs[1].get_byte_size() == num_panels * projection.panel_bytes() &&
                            scales == ov::Shape({num_panels, scales[1], kPanel}) &&
                            (scales[1] == 1 || num_inputs % (2 * scales[1]) == 0),
                        "the weight has ", inputs[1].get_byte_size(), " bytes and scales of ", scales,
                        ", which do not fit ", num_inputs, " inputs and ", num_outputs_, " outputs");
        avx2::multiply(projection, inputs[0].data<const float>(), num_rows, outputs[0].data<float>());
        return true;
    }

private:
    int64_t num_outputs_ = 0;
    int64_t num_bits_ = 8;
};

}  // namespace
