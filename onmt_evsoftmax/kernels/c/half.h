/* bfloat16 and float16 to float32 and back, rounding to nearest even; branch-free, so that the
 * compiler turns the loops that call these into vector code. */
#ifndef ONMT_EVSOFTMAX_HALF_H
#define ONMT_EVSOFTMAX_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float from_bfloat16(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

static inline uint16_t to_bfloat16(float x) {
    const uint32_t bits = bits_of_float(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

static inline float from_float16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = (uint32_t)(h & 0x7fffu) << 13;
    /* The exponents differ by 112; multiplying also turns float16's denormals into normals. */
    const uint32_t scaled = bits_of_float(float_of_bits(magnitude) * 0x1p112f);
    const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    return float_of_bits(scaled | special | sign);
}

static inline uint16_t to_float16(float x) {
    const uint32_t bits = bits_of_float(x), sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    /* In [0.5, 1) float32 counts in units of 2^-24, as float16's denormals do. */
    const uint32_t tiny = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t h = magnitude < 0x38800000u ? tiny : normal;
    h = magnitude >= 0x477ff000u ? 0x7c00u : h;
    h = magnitude > 0x7f800000u ? 0x7e00u : h;
    return (uint16_t)(sign | h);
}

#endif
