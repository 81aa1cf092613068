// Keys or values of one head in one block of the cache: float, Half, or uint8_t with a scale for each token.
//
// Keys are stored by coordinate, [size, 32], so that the scores of neighbouring positions are neighbouring
// lanes; values by position, [32, size].

#pragma once

#include <algorithm>
#include <type_traits>

#include "attention/kernel.h"
#include "lanes.h"

namespace LANES {

template <class Number>
constexpr bool is_integer = std::is_same_v<Number, uint8_t>;

template <class Number>
struct Block {
    float* scales = nullptr;  // [32], of integers only
    float* lowest = nullptr;  // [32]
    Number* numbers;

    explicit Block(uint8_t* bytes) {
        if constexpr (is_integer<Number>) {
            scales = reinterpret_cast<float*>(bytes);
            lowest = scales + kBlock;
            bytes += 2 * kBlock * sizeof(float);
        }
        numbers = reinterpret_cast<Number*>(bytes);
    }

    void write_key(const float* key, int size, int slot) { write(key, size, slot, numbers + slot, kBlock); }
    void write_value(const float* value, int size, int slot) {
        write(value, size, slot, numbers + slot * size, 1);
    }

private:
    void write(const float* from, int size, int slot, Number* to, int stride) {
        if constexpr (is_integer<Number>) {
            const auto [low, high] = std::minmax_element(from, from + size);
            const float scale = (*high - *low) / 255;
            const float inverse = scale > 0 ? 1 / scale : 0;
            scales[slot] = scale;
            lowest[slot] = *low;
            for (int i = 0; i < size; ++i) {
                const int level = _mm_cvtss_si32(_mm_set_ss((from[i] - *low) * inverse));  // to the nearest
                to[i * stride] = static_cast<uint8_t>(std::clamp(level, 0, 255));
            }
        } else if constexpr (std::is_same_v<Number, Half>) {
            constexpr int mode = _MM_FROUND_TO_NEAREST_INT;
            constexpr float most = 65504;  // and not infinity, which times a weight of 0 is no number
            for (int i = 0; i < size; ++i)
                to[i * stride].bits = _cvtss_sh(std::clamp(from[i], -most, most), mode);
        } else {
            for (int i = 0; i < size; ++i) to[i * stride] = from[i];
        }
    }
};

}  // namespace LANES
