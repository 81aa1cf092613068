// A projection as an operation of OpenVINO.

#pragma once

#include <openvino/op/op.hpp>

#include "linear/kernel.h"

namespace {

// Inputs: a tensor of floats whose last axis is multiplied; the weight and its scales, see `Projection`.
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
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        ov::Shape shape = inputs[0].get_shape();
        const size_t num_inputs = shape.back(), num_rows = ov::shape_size(shape) / num_inputs;
        shape.back() = num_outputs_;
        outputs[0].set_shape(shape);
        const Projection projection{num_inputs, static_cast<size_t>(num_outputs_),
                                    inputs[1].data<const int8_t>(), inputs[2].data<const float>()};
        OPENVINO_ASSERT(inputs[1].get_byte_size() == projection.num_panels() * projection.panel_bytes() &&
                            inputs[2].get_size() == projection.num_panels() * kPanel,
                        "the weight has ", inputs[1].get_byte_size(), " bytes and ", inputs[2].get_size(),
                        " scales, which do not fit ", num_inputs, " inputs and ", num_outputs_, " outputs");
        avx2::multiply(projection, inputs[0].data<const float>(), num_rows, outputs[0].data<float>());
        return true;
    }

private:
    int64_t num_outputs_ = 0;
};

}  // namespace
