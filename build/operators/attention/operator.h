// Attention as an operation of OpenVINO.

#pragma once

#include <algorithm>

#include <openvino/op/op.hpp>

#include "attention/kernel.h"
#include "sequences.h"

namespace {

class Attention : public ov::op::Op {
public:
    OPENVINO_OP("Attention", "draftproof");

    Attention() = default;

    void validate_and_infer_types() override {
        const size_t count = get_input_size();  // the last one, of sinks, may be missing
        NODE_VALIDATION_CHECK(this, count == 9 || count == 10, "9 or 10 inputs are needed, not ", count);
        NODE_VALIDATION_CHECK(this,
                              num_heads_ > 0 && num_kv_heads_ > 0 && num_heads_ % num_kv_heads_ == 0 &&
                                  head_size_ > 0 && head_size_ % 16 == 0,
                              num_heads_, " heads of ", head_size_, " and ", num_kv_heads_,
                              " of keys cannot be computed");
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
        check(layer, inputs);
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
    // Check that the kernel reads and writes only what the inputs hold.
    static void check(const Layer& layer, const ov::TensorVector& inputs) {
        const size_t query_size = size_t(layer.num_heads) * layer.head_size;
        const size_t key_size = size_t(layer.num_kv_heads) * layer.head_size;
        OPENVINO_ASSERT(inputs.size() < 10 || inputs[9].get_size() == size_t(layer.num_heads), layer.num_heads,
                        " heads have ", inputs.back().get_size(), " sinks");
        const size_t num_tokens = inputs[0].get_size() / query_size, num_sequences = inputs[5].get_size();
        OPENVINO_ASSERT(inputs[0].get_size() == num_tokens * query_size &&
                            inputs[1].get_size() == num_tokens * key_size &&
                            inputs[2].get_size() == num_tokens * key_size,
                        "queries, keys and values have the shapes ", inputs[0].get_shape(), ", ",
                        inputs[1].get_shape(), " and ", inputs[2].get_shape());
        check_begins(inputs[6], num_sequences, num_tokens);
        check_begins(inputs[8], num_sequences, inputs[7].get_size());
        const int32_t *past_lens = inputs[5].data<const int32_t>(), *begins = inputs[6].data<const int32_t>();
        const int32_t *blocks = inputs[7].data<const int32_t>(), *block_begins = inputs[8].data<const int32_t>();
        for (size_t sequence = 0; sequence < num_sequences; ++sequence) {
            const int64_t num_new = begins[sequence + 1] - begins[sequence];
            const int64_t room = int64_t(kBlock) * (block_begins[sequence + 1] - block_begins[sequence]);
            OPENVINO_ASSERT(past_lens[sequence] >= 0 && (!num_new || past_lens[sequence] + num_new <= room),
                            num_new, " tokens after ", past_lens[sequence], " do not fit blocks for ", room);
        }
        const size_t num_blocks = std::min(inputs[3].get_shape()[0], inputs[4].get_shape()[0]);
        const bool are_known = std::all_of(blocks, blocks + inputs[7].get_size(), [&](int32_t block) {
            return 0 <= block && size_t(block) < num_blocks;
        });
        OPENVINO_ASSERT(are_known, "a sequence has a block that is not one of ", num_blocks);
    }

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
