// Attention as an operation of OpenVINO.

#pragma once

#include <openvino/op/op.hpp>

#include "attention/kernel.h"

namespace {

class Attention : public ov::op::Op {
public:
    OPENVINO_OP("Attention", "draftproof");

    Attention() = default;

    void validate_and_infer_types() override {
        const size_t count = get_input_size();  // the last one, of sinks, may be missing
        NODE_VALIDATION_CHECK(this, count == 9 || count == 10, "9 or 10 inputs are needed, not ", count);
        set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        auto copy = std::make_shared<Attention>(*this);
        copy->set_arguments(inputs);
        copy->constructor_validate_and_infer_types();
        return copy;
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("num_heads", num_heads_);
        visitor.on_attribute("num_kv_heads", num_kv_heads_);
        visitor.on_attribute("head_size", head_size_);
        visitor.on_attribute("scale", scale_);
        visitor.on_attribute("softcap", softcap_);
        visitor.on_attribute("window", window_);
        visitor.on_attribute("kv_cache_dtype", kv_cache_dtype_);
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        Layer layer = this->layer();
        if (inputs.size() == 10) layer.sinks = inputs[9].data<const float>();
        const size_t bytes = layer.num_kv_heads * head_bytes(layer.head_size, layer.precision);
        for (int cache : {3, 4})
            OPENVINO_ASSERT(inputs[cache].get_shape().at(1) == bytes, "a block of the cache has ",
                            inputs[cache].get_shape().at(1), " bytes, not ", bytes);
        outputs[0].set_shape(inputs[0].get_shape());
        // The caches are inputs that the operation changes: the plugin passes the tensors of the request
        // without a copy, as a test checks.
        auto cache = [&](int index) { return const_cast<uint8_t*>(inputs[index].data<const uint8_t>()); };
        Step step{};
        step.query = inputs[0].data<const float>();
        step.key = inputs[1].data<const float>();
        step.value = inputs[2].data<const float>();
        step.key_cache = cache(3);
        step.value_cache = cache(4);
        step.past_lens = inputs[5].data<const int32_t>();
        step.sequence_begins = inputs[6].data<const int32_t>();
        step.blocks = inputs[7].data<const int32_t>();
        step.block_begins = inputs[8].data<const int32_t>();
        step.num_sequences = static_cast<int>(inputs[5].get_size());
        step.output = outputs[0].data<float>();
        static const bool is_wide = __builtin_cpu_supports("avx512f");
        (is_wide ? avx512::attend : avx2::attend)(layer, step);
        return true;
    }

private:
    Layer layer() const {
        const Precision precision = kv_cache_dtype_ == "int8"      ? Precision::int8
                                    : kv_cache_dtype_ == "float16" ? Precision::float16
                                                                   : Precision::float32;
        return {static_cast<int>(num_heads_), static_cast<int>(num_kv_heads_),
                static_cast<int>(head_size_), scale_,
                softcap_,                     static_cast<int>(window_),
                precision,                    nullptr};
    }

    int64_t num_heads_ = 1;
    int64_t num_kv_heads_ = 1;
    int64_t head_size_ = 16;
    float scale_ = 1;
    float softcap_ = 0;
    int64_t window_ = 0;
    std::string kv_cache_dtype_ = "float32";
};

}  // namespace
