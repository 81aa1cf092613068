// Gated delta networks as an operation of OpenVINO.

#pragma once

#include <openvino/op/op.hpp>

#include "recurrence/kernel.h"
#include "sequences.h"

namespace {

// Inputs: `projected` [..., width], of which a token has a row: queries, keys and values of all heads, output
// gates, b, a; the weights of the convolution [4, channels]; rates and biases of the decay [2, value heads];
// the weight of the norm [value_size]; states [slots, bytes] and logs [slots, rows, bytes], which the
// operation changes; and of each sequence, as attention has them, the tokens before it, its begin among the
// rows (one more: the end), and its slot.
//
// A sequence of several tokens is known: its state is kept. Sequences of one token with the same slot that
// follow each other are rows of a request that may be rejected: they are logged. The next call for the slot
// says with the tokens before it how many of them were accepted, and these are added to the state first. A
// request with no token before it begins from zeros. Rows with a negative slot are padding: their outputs are 0.
class Recurrence : public ov::op::Op {
public:
    OPENVINO_OP("Recurrence", "draftproof");

    Recurrence() = default;

    void validate_and_infer_types() override {
        NODE_VALIDATION_CHECK(this, get_input_size() == 9, "9 inputs are needed, not ", get_input_size());
        const DeltaLayer layer = this->layer();
        NODE_VALIDATION_CHECK(this,
                              num_key_heads_ > 0 && num_value_heads_ > 0 && key_size_ > 0 && value_size_ > 0 &&
                                  num_value_heads_ % num_key_heads_ == 0 && key_size_ % 16 == 0 &&
                                  value_size_ % kColumns == 0,
                              num_key_heads_, " heads of ", key_size_, " and ", num_value_heads_, " of ",
                              value_size_, " cannot be computed");
        const auto size = [](size_t number) { return ov::Dimension(static_cast<int64_t>(number)); };
        const ov::Dimension any;
        ov::PartialShape shape = get_input_partial_shape(0);
        NODE_VALIDATION_CHECK(this, shape.rank().is_static() && shape.size() > 0, "projected rows have a rank");
        NODE_VALIDATION_CHECK(this, shape[shape.size() - 1].compatible(size(layer.width())), "a row has ",
                              shape[shape.size() - 1], " numbers, not ", layer.width());
        const ov::PartialShape shapes[] = {{kTaps, size(layer.channels())},
                                           {2, num_value_heads_},
                                           {value_size_},
                                           {any, size(sizeof(float) * layer.state_floats())},
                                           {any, any, size(sizeof(float) * layer.log_floats())},
                                           {any},
                                           {any},
                                           {any}};
        for (int input = 1; input < 9; ++input)
            NODE_VALIDATION_CHECK(this, get_input_partial_shape(input).compatible(shapes[input - 1]), "input ",
                                  input, " has the shape ", get_input_partial_shape(input), ", not ",
                                  shapes[input - 1]);
        shape[shape.size() - 1] = size(layer.value_channels());
        set_output_type(0, ov::element::f32, shape);
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<Recurrence>(*this);
        copy->set_arguments(inputs);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("num_key_heads", num_key_heads_);
        visitor.on_attribute("num_value_heads", num_value_heads_);
        visitor.on_attribute("key_size", key_size_);
        visitor.on_attribute("value_size", value_size_);
        visitor.on_attribute("norm_epsilon", norm_epsilon_);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        DeltaLayer layer = this->layer();
        layer.convolution = inputs[1].data<const float>();
        layer.rates = inputs[2].data<const float>();
        layer.biases = layer.rates + num_value_heads_;
        layer.norm = inputs[3].data<const float>();
        ov::Shape shape = inputs[0].get_shape();
        shape.back() = layer.value_channels();
        outputs[0].set_shape(shape);
        // The plugin passes the tables of the request without a copy, as it does with caches of attention.
        auto table = [&](int index) {
            return reinterpret_cast<float*>(const_cast<uint8_t*>(inputs[index].data<const uint8_t>()));
        };
        const ov::Shape logs = inputs[5].get_shape();
        const size_t num_sequences = inputs[6].get_size();
        OPENVINO_ASSERT(logs[0] == inputs[4].get_shape()[0], logs[0], " logs, but ", inputs[4].get_shape()[0],
                        " states");
        OPENVINO_ASSERT(inputs[8].get_size() == num_sequences, num_sequences, " sequences have ",
                        inputs[8].get_size(), " slots");
        check_begins(inputs[7], num_sequences, inputs[0].get_size() / layer.width());
        DeltaStep step{};
        step.projected = inputs[0].data<const float>();
        step.states = table(4);
        step.logs = table(5);
        step.num_slots = static_cast<int>(logs[0]);
        step.num_log_rows = static_cast<int>(logs[1]);
        step.past_lens = inputs[6].data<const int32_t>();
        step.sequence_begins = inputs[7].data<const int32_t>();
        step.slots = inputs[8].data<const int32_t>();
        step.num_sequences = static_cast<int>(num_sequences);
        step.output = outputs[0].data<float>();
        static const bool is_wide = __builtin_cpu_supports("avx512f");
        (is_wide ? avx512::recur : avx2::recur)(layer, step);
        return true;
    }

private:
    DeltaLayer layer() const {
        DeltaLayer layer{};
        layer.num_key_heads = static_cast<int>(num_key_heads_);
        layer.num_value_heads = static_cast<int>(num_value_heads_);
        layer.key_size = static_cast<int>(key_size_);
        layer.value_size = static_cast<int>(value_size_);
        layer.norm_epsilon = norm_epsilon_;
        return layer;
    }

    int64_t num_key_heads_ = 0;
    int64_t num_value_heads_ = 0;
    int64_t key_size_ = 0;
    int64_t value_size_ = 0;
    float norm_epsilon_ = 0;
};

}  // namespace
