/* Sixteen lanes: server processors. With WIDE_WITHOUT_AVX512 the same sixteen lanes are compiled to
 * plain instructions, so that the tests can run this width on any machine. */
#if defined(__x86_64__)
#define LANES 16
#define VARIANT variant_avx512
#define VARIANT_NAME "avx512"
#if !defined(WIDE_WITHOUT_AVX512)
#define USE_AVX512
#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma,popcnt")
#endif
#endif
#include "variant.h"
#if defined(__clang__) && !defined(WIDE_WITHOUT_AVX512)
#pragma clang attribute pop
#endif
#endif
