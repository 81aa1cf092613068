// Sixteen floats in the registers of AVX-512 or AVX2.
//
// Each operation rounds once, in each lane alone. So both forms give the same bits, which a test compares.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <initializer_list>

namespace LANES {

constexpr int kLanes = 16;

struct Half {
    uint16_t bits;
};

#ifdef __AVX512F__

constexpr int kRegisters = 32, kRegistersOfLanes = 1;  // of the processor; that `Lanes` takes

struct Lanes {
    __m512 all;
};

inline __m256 low_half(Lanes x) { return _mm512_castps512_ps256(x.all); }
inline __m256 high_half(Lanes x) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x.all), 1));
}
inline Lanes every(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Lanes load(const Half* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline Lanes load(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}
inline void store(float* to, Lanes x) { _mm512_storeu_ps(to, x.all); }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.all, b.all)}; }
inline Lanes subtract(Lanes a, Lanes b) { return {_mm512_sub_ps(a.all, b.all)}; }
inline Lanes multiply(Lanes a, Lanes b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline Lanes divide(Lanes a, Lanes b) { return {_mm512_div_ps(a.all, b.all)}; }
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
inline Lanes larger(Lanes a, Lanes b) { return {_mm512_max_ps(a.all, b.all)}; }
inline Lanes nearest_integer(Lanes x) {
    return {_mm512_roundscale_ps(x.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Lanes times_power_of_two(Lanes x, Lanes integer) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(integer.all), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.all), exponent))};
}
inline Lanes absolute(Lanes x) { return {_mm512_abs_ps(x.all)}; }
inline Lanes with_sign_of(Lanes sign, Lanes x) {
    const __m512i bit = _mm512_and_si512(_mm512_castps_si512(sign.all), _mm512_set1_epi32(1u << 31));
    return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(x.all), bit))};
}
// `yes` where x is less than `limit`, else `no`; NaN is not less.
inline Lanes where_less(Lanes x, Lanes limit, Lanes yes, Lanes no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.all, limit.all, _CMP_LT_OQ), no.all, yes.all)};
}

#else

constexpr int kRegisters = 16, kRegistersOfLanes = 2;  // of the processor; that `Lanes` takes

struct Lanes {
    __m256 low, high;
};

inline __m256 low_half(Lanes x) { return x.low; }
inline __m256 high_half(Lanes x) { return x.high; }
inline Lanes every(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Lanes load(const Half* from) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline __m256 load_eight(const uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
inline Lanes load(const uint8_t* from) { return {load_eight(from), load_eight(from + 8)}; }
inline void store(float* to, Lanes x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes subtract(Lanes a, Lanes b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Lanes multiply(Lanes a, Lanes b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Lanes divide(Lanes a, Lanes b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes larger(Lanes a, Lanes b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Lanes nearest_integer(Lanes x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.low, mode), _mm256_round_ps(x.high, mode)};
}
inline __m256 times_power_of_two(__m256 x, __m256 integer) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(integer), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}
inline Lanes times_power_of_two(Lanes x, Lanes integer) {
    return {times_power_of_two(x.low, integer.low), times_power_of_two(x.high, integer.high)};
}
inline Lanes absolute(Lanes x) {
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(bit, x.low), _mm256_andnot_ps(bit, x.high)};
}
inline Lanes with_sign_of(Lanes sign, Lanes x) {
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(x.low, _mm256_and_ps(sign.low, bit)),
            _mm256_or_ps(x.high, _mm256_and_ps(sign.high, bit))};
}
// `yes` where x is less than `limit`, else `no`; NaN is not less.
inline Lanes where_less(Lanes x, Lanes limit, Lanes yes, Lanes no) {
    return {_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(x.low, limit.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(x.high, limit.high, _CMP_LT_OQ))};
}

#endif

// Combine lane i with lane i + 8, then i + 4, i + 2 and i + 1.
inline float sum(Lanes x) {
    const __m256 eight = _mm256_add_ps(low_half(x), high_half(x));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline float largest(Lanes x) {
    const __m256 eight = _mm256_max_ps(low_half(x), high_half(x));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// e^x for x <= 0 with a relative error below 2e-7; 0 below -87, exactly 1 at 0, NaN of NaN.
inline Lanes exponential(Lanes x) {
    const Lanes limit = every(-87.0f);
    const Lanes power = nearest_integer(multiply(larger(limit, x), every(1.44269504f)));
    Lanes rest = multiply_add(power, every(-0.693359375f), x);  // ln 2 in two parts
    rest = multiply_add(power, every(2.12194440e-4f), rest);
    Lanes value = every(1.0f / 720);
    for (float coefficient : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        value = multiply_add(value, rest, every(coefficient));
    return where_less(x, limit, every(0), times_power_of_two(value, power));
}

inline float exponential(float x) {
    return _mm_cvtss_f32(_mm256_castps256_ps128(low_half(exponential(every(x)))));
}

// tanh x with a relative error below 2e-7; NaN of NaN.
inline Lanes hyperbolic_tangent(Lanes x) {
    const Lanes size = absolute(x), square = multiply(x, x);
    const Lanes power = exponential(multiply(size, every(-2.0f)));
    const Lanes below_one = divide(add(power, power), add(every(1.0f), power));
    const Lanes far = with_sign_of(x, subtract(every(1.0f), below_one));
    // Near 0 that difference cancels: there (tanh x - x) / x^3, a polynomial of x^2 with the least error.
    Lanes near = every(-5.70498693e-3f);
    for (float coefficient : {2.06390872e-2f, -5.37397150e-2f, 1.33314422e-1f, -3.33332819e-1f})
        near = multiply_add(near, square, every(coefficient));
    near = multiply_add(multiply(x, square), near, x);
    return where_less(size, every(0.625f), near, far);
}

}  // namespace LANES
