// Projections as operations of OpenVINO.

#pragma once

#include <algorithm>

#include <openvino/op/op.hpp>

#include "linear/kernel.h"

namespace {

// Return the projection that inputs from `first` on describe: the weight, see `Projection`, then, unless it
// consists of floats, units of its scales, as bytes if they are float16, and their levels as bytes, if they have
// any, see `Scales`.
Projection projection_of(const ov::TensorVector& inputs, size_t first, size_t num_inputs, size_t num_outputs,
                         size_t num_bits, size_t num_groups) {
    const bool has_units = inputs.size() > first + 1, has_levels = inputs.size() > first + 2;
    const ov::Shape units = has_units ? inputs[first + 1].get_shape() : ov::Shape{0, 0, 0, 0};
    const bool are_halves = has_units && inputs[first + 1].get_element_type() == ov::element::u8;
    const Scales scales{units.at(1), units.at(2), are_halves, has_units ? inputs[first + 1].data() : nullptr,
                        has_levels ? static_cast<const int8_t*>(inputs[first + 2].data()) : nullptr};
    const auto* weight = static_cast<const uint8_t*>(inputs[first].data());
    const Projection projection{num_inputs, num_outputs, num_bits, num_groups, weight, scales};
    const size_t num_panels = projection.num_panels(), width = are_halves ? 2 * kPanel : kPanel;
    OPENVINO_ASSERT(projection.is_possible() &&
                        inputs[first].get_byte_size() == num_panels * projection.panel_bytes() &&
                        has_units == (num_bits < 32) &&
                        (!has_units || units == ov::Shape({num_panels, units[1], units[2], width})) &&
                        (!has_levels || inputs[first + 2].get_shape() ==
                                            ov::Shape({num_panels, units[1], units[2],
                                                       projection.pairs_of_a_unit(), kPanel, 2})),
                    num_groups, " groups of ", num_bits, " bits do not fit ", num_inputs, " inputs and ",
                    num_outputs, " outputs with units of ", units);
    return projection;
}

inline bool has_vnni() {
    static const bool found = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
    return found;
}

// Inputs: a tensor of floats whose last axis is multiplied, and the projection.
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
        OPENVINO_ASSERT(!shape.empty() && shape.back() > 0, "rows of the shape ", shape, " have no numbers");
        const size_t num_inputs = shape.back(), num_rows = ov::shape_size(shape) / num_inputs;
        shape.back() = num_outputs_;
        outputs[0].set_shape(shape);
        const Projection projection = projection_of(inputs, 1, num_inputs, num_outputs_, num_bits_, num_groups_);
        const auto multiply = has_vnni() ? avx512::multiply : avx2::multiply;
        multiply(projection, inputs[0].data<const float>(), num_rows, outputs[0].data<float>());
        return true;
    }

private:
    int64_t num_outputs_ = 0;
    int64_t num_bits_ = 8;
    int64_t num_groups_ = 1;
};

// Inputs: floats [tokens, 1, inputs], or [tokens, chosen, inputs] of each of a token's experts; these experts,
// int32 [tokens, chosen]; and the projection of all experts, one behind the other. Output: [tokens, chosen,
// outputs of an expert].
class ExpertLinear : public ov::op::Op {
public:
    OPENVINO_OP("ExpertLinear", "draftproof");

    ExpertLinear() = default;

    void validate_and_infer_types() override {
        const size_t count = get_input_size();
        NODE_VALIDATION_CHECK(this, 3 <= count && count <= 5, "3 to 5 inputs are needed, not ", count);
        const ov::PartialShape chosen = get_input_partial_shape(1);
        set_output_type(0, ov::element::f32, {chosen[0], chosen[1], num_outputs_});
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<ExpertLinear>(*this);
        copy->set_arguments(inputs);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("num_experts", num_experts_);
        visitor.on_attribute("num_outputs", num_outputs_);
        visitor.on_attribute("num_bits", num_bits_);
        visitor.on_attribute("num_groups", num_groups_);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        const ov::Shape shape = inputs[0].get_shape(), chosen = inputs[1].get_shape();
        OPENVINO_ASSERT(shape.size() == 3 && chosen.size() == 2 && shape[1] > 0 && shape[2] > 0, "rows of ", shape,
                        " cannot be multiplied with a choice of ", chosen);
        const size_t num_inputs = shape.back(), num_rows = ov::shape_size(chosen);
        outputs[0].set_shape({chosen[0], chosen[1], static_cast<size_t>(num_outputs_)});
        const auto* experts = inputs[1].data<const int32_t>();
        const bool are_known = std::all_of(experts, experts + num_rows,
                                           [&](int32_t expert) { return 0 <= expert && expert < num_experts_; });
        OPENVINO_ASSERT(are_known && num_outputs_ % kPanel == 0 && shape[0] == chosen[0] &&
                            (shape[1] == 1 || shape[1] == chosen[1]),
                        num_experts_, " experts of ", num_outputs_, " outputs do not fit rows of ", shape,
                        " and a choice of ", chosen);
        const Projection projection =
            projection_of(inputs, 2, num_inputs, num_experts_ * num_outputs_, num_bits_, num_groups_);
        const auto multiply = has_vnni() ? avx512::multiply_experts : avx2::multiply_experts;
        multiply(projection, num_experts_, experts, inputs[0].data<const float>(), num_rows, chosen[1] / shape[1],
                 outputs[0].data<float>());
        return true;
    }

private:
    int64_t num_experts_ = 1;
    int64_t num_outputs_ = 0;
    int64_t num_bits_ = 8;
    int64_t num_groups_ = 1;
};

}  // namespace
