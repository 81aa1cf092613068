// Paged attention for one layer, with a cache whose layout only the kernel knows.

#pragma once

#include <cstddef>
#include <cstdint>

enum class Precision { float32, float16, int8 };

constexpr int kBlock = 32;  // positions in a block of the cache

struct Layer {
    int num_heads;
    int num_kv_heads;
    int head_size;  // a multiple of 16
    float scale;    // factor of the scores
    float softcap;  // c in c * tanh(score / c), of the scaled scores; 0 to leave them as they are
    int window;     // latest positions that a token attends to, its own included; 0 for all
    Precision precision;
    const float* sinks;  // [heads], scores that join each softmax of a head, without values; null for none
};

// Bytes of the keys, or of the values, of one head in one block: numbers, and for int8 before them the scale
// and the lowest value of each token in float32.
constexpr size_t head_bytes(int head_size, Precision precision) {
    const size_t numbers = static_cast<size_t>(kBlock) * head_size;
    if (precision == Precision::int8) return numbers + 2 * kBlock * sizeof(float);
    return numbers * (precision == Precision::float16 ? 2 : 4);
}

// One step: the tokens of several sequences, one after the other. Those of a sequence follow `past_lens`
// positions that are cached. Consecutive sequences with the same blocks belong to one request.
struct Step {
    const float* query;  // [tokens, heads * size]
    const float* key;    // [tokens, kv_heads * size]
    const float* value;  // [tokens, kv_heads * size]
    uint8_t* key_cache;  // [blocks, kv_heads * head_bytes]
    uint8_t* value_cache;
    const int32_t* past_lens;        // [sequences]
    const int32_t* sequence_begins;  // [sequences + 1], in tokens
    const int32_t* blocks;           // of all sequences
    const int32_t* block_begins;     // [sequences + 1], in `blocks`
    int num_sequences;
    float* output;  // [tokens, heads * size]
};

// Write the keys and values of all tokens to the cache, then attend: for processors with AVX2 and AVX-512.
namespace avx2 {
void attend(const Layer& layer, const Step& step);
}
namespace avx512 {
void attend(const Layer& layer, const Step& step);
}
