/* Eight lanes with fused multiply-add: x86-64 processors since 2013. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,popcnt")
#endif
#define LANES 8
#define USE_AVX2
#define VARIANT variant_avx2
#define VARIANT_NAME "avx2"
#include "variant.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
