// Gated delta networks for one layer, with states whose layout only the kernel knows.

#pragma once

#include <cstddef>
#include <cstdint>

constexpr int kTaps = 4;      // rows that the convolution reads, the row itself included
constexpr int kColumns = 32;  // values of a head whose states stay in the first cache

struct DeltaLayer {
    int num_key_heads;    // and heads of queries
    int num_value_heads;  // a multiple: neighbours share a head of keys
    int key_size;         // a multiple of 16
    int value_size;       // a multiple of kColumns
    float norm_epsilon;
    const float* convolution;  // [kTaps, channels], the row itself last
    const float* rates;        // [value heads], exp(A_log)
    const float* biases;       // [value heads], dt_bias
    const float* norm;         // [value_size]

    size_t key_channels() const { return size_t(num_key_heads) * key_size; }
    size_t value_channels() const { return size_t(num_value_heads) * value_size; }
    size_t channels() const { return 2 * key_channels() + value_channels(); }
    size_t width() const { return channels() + value_channels() + 2 * size_t(num_value_heads); }
    size_t state_floats() const;
    size_t log_floats() const;
};

// What a slot keeps of a request: the tokens of its state, and how many rows of its log follow them.
struct Progress {
    int32_t num_tokens;
    int32_t num_logged;
};

// A slot of the states.
struct State {
    Progress* progress;
    float* history;  // [kTaps - 1, channels], the last inputs of the convolution
    float* heads;    // [value heads, value_size / kColumns, key_size, kColumns]

    static constexpr size_t kProgress = 16;  // floats, so that the rest is aligned
    State(float* slot, const DeltaLayer& layer)
        : progress(reinterpret_cast<Progress*>(slot)),
          history(slot + kProgress),
          heads(history + (kTaps - 1) * layer.channels()) {}
};

// What a row that may be rejected leaves in the log, so that it can be added to the state.
struct LogRow {
    float* inputs;       // [channels], of the convolution
    float* keys;         // [key heads, key_size]
    float* decays;       // [value heads]
    float* corrections;  // [value heads, value_size]

    LogRow(float* row, const DeltaLayer& layer)
        : inputs(row),
          keys(inputs + layer.channels()),
          decays(keys + layer.key_channels()),
          corrections(decays + layer.num_value_heads) {}
};

inline size_t DeltaLayer::state_floats() const {
    return State::kProgress + (kTaps - 1) * channels() + value_channels() * key_size;
}
inline size_t DeltaLayer::log_floats() const {
    return channels() + key_channels() + num_value_heads + value_channels();
}

// One step: the tokens of several sequences, one after the other; see `Recurrence` in operator.h.
struct DeltaStep {
    const float* projected;  // [tokens, width]: queries, keys, values, output gates, b, a
    float* states;           // [slots, state_floats]
    float* logs;             // [slots, rows of a log, log_floats]
    int num_slots;
    int num_log_rows;
    const int32_t* past_lens;        // [sequences]
    const int32_t* sequence_begins;  // [sequences + 1], in tokens
    const int32_t* slots;            // [sequences]
    int num_sequences;
    float* output;  // [tokens, value channels]
};

// Compute all rows, and change states and logs: for processors with AVX2 and AVX-512. Throws
// std::invalid_argument, before anything is changed, if a request does not follow what its slot keeps.
namespace avx2 {
void recur(const DeltaLayer& layer, const DeltaStep& step);
}
namespace avx512 {
void recur(const DeltaLayer& layer, const DeltaStep& step);
}
