/* Vectors of LANES floats in GCC/Clang vector extensions; intrinsics only where those fall short.
 *
 * The file that includes this says LANES and, by USE_AVX2 or USE_AVX512, which intrinsics it may
 * use. Without either, everything is plain C that compiles for any processor and any LANES.
 */
#include <float.h>
#include <math.h>
#include <string.h>
#if defined(USE_AVX2) || defined(USE_AVX512)
#include <immintrin.h>
#endif

#if defined(USE_AVX2)
/* For every set of lanes, their numbers in order: AVX2 has no instruction that closes gaps. */
static uint8_t compress_order[256][8];
/* And the way back: for every lane, how many lanes of the set come before it. */
static uint8_t expand_order[256][8];

static __attribute__((constructor)) void fill_orders(void) {
    for (int bits = 0; bits < 256; bits++)
        for (int i = 0, k = 0; i < 8; i++) {
            expand_order[bits][i] = (uint8_t)k;
            if (bits >> i & 1) compress_order[bits][k++] = (uint8_t)i;
        }
}
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef float vf_anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
/* Half a vector of floats, and the same number of doubles: a full vector wide. */
typedef float vh __attribute__((vector_size(2 * LANES)));
typedef double vd __attribute__((vector_size(4 * LANES)));
typedef double vd_anywhere __attribute__((vector_size(4 * LANES), aligned(8), may_alias));

#define INLINE static inline __attribute__((always_inline, unused))

INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vf load(const float *p) { return *(const vf_anywhere *)p; }
INLINE void store(float *p, vf x) { *(vf_anywhere *)p = x; }
INLINE vf as_float(vi x) { return (vf)x; }
INLINE vi as_int(vf x) { return (vi)x; }
INLINE vf both(vi mask, vf x) { return as_float(mask & as_int(x)); }

INLINE vf choose(vi mask, vf yes, vf no) {
#if defined(USE_AVX2)
    return (vf)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return as_float((mask & as_int(yes)) | (~mask & as_int(no)));
#endif
}

/* The larger of each pair; `b` where either is NaN. */
INLINE vf larger(vf a, vf b) {
#if defined(USE_AVX2)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(USE_AVX512)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return choose(a > b, a, b);
#endif
}

/* Bit i set where lane i of a comparison holds. */
INLINE uint32_t bits_of(vi mask) {
#if defined(USE_AVX2)
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(USE_AVX512)
    return (uint32_t)_mm512_movepi32_mask((__m512i)mask);
#else
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (uint32_t)(mask[i] & 1) << i;
    return bits;
#endif
}

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

#if LANES == 4
#define SWAP_HALVES 2, 3, 0, 1
#define SWAP_PAIRS 2, 3, 0, 1
#define SWAP_QUARTERS 2, 3, 0, 1
#define SWAP_NEIGHBOURS 1, 0, 3, 2
#elif LANES == 8
#define SWAP_HALVES 4, 5, 6, 7, 0, 1, 2, 3
#define SWAP_QUARTERS 4, 5, 6, 7, 0, 1, 2, 3
#define SWAP_PAIRS 2, 3, 0, 1, 6, 7, 4, 5
#define SWAP_NEIGHBOURS 1, 0, 3, 2, 5, 4, 7, 6
#else
#define SWAP_HALVES 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#define SWAP_QUARTERS 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#define SWAP_PAIRS 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
#define SWAP_NEIGHBOURS 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#endif

/* The largest lane, in every lane. */
INLINE vf largest_lane(vf x) {
    if (LANES > 8) x = larger(x, SHUFFLE(x, x, SWAP_HALVES));
    if (LANES > 4) x = larger(x, SHUFFLE(x, x, SWAP_QUARTERS));
    x = larger(x, SHUFFLE(x, x, SWAP_PAIRS));
    return larger(x, SHUFFLE(x, x, SWAP_NEIGHBOURS));
}

/* The sum of all lanes, in every lane. */
INLINE vf sum_everywhere(vf x) {
    if (LANES > 8) x += SHUFFLE(x, x, SWAP_HALVES);
    if (LANES > 4) x += SHUFFLE(x, x, SWAP_QUARTERS);
    x += SHUFFLE(x, x, SWAP_PAIRS);
    return x + SHUFFLE(x, x, SWAP_NEIGHBOURS);
}

/* Lanes 0 .. count-1 are true. */
INLINE vi first_lanes(int count) {
    vi lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    return lane < ((vi){0} + count);
}

/* The first `count` < LANES floats at p, the rest `fill`; nothing beyond them is read. */
INLINE vf load_first(const float *p, int count, float fill) {
#if defined(USE_AVX2)
    const vi first = first_lanes(count);
    return choose(first, (vf)_mm256_maskload_ps(p, (__m256i)first), splat(fill));
#elif defined(USE_AVX512)
    return (vf)_mm512_mask_loadu_ps((__m512)splat(fill), (__mmask16)((1u << count) - 1), p);
#else
    vf x = splat(fill);
    for (int i = 0; i < LANES; i++)
        if (i < count) x[i] = p[i];
    return x;
#endif
}

INLINE void store_first(float *p, vf x, int count) {
#if defined(USE_AVX512)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1), (__m512)x);
#else
    /* A masked store is microcoded on many AVX2 processors; a short loop is faster. */
    for (int i = 0; i < count; i++) p[i] = x[i];
#endif
}

/* The next floats at p, of which `rest` are left; in their place behind the last `fill`. */
INLINE vf load_up_to(const float *p, int64_t rest, float fill) {
    return rest < LANES ? load_first(p, (int)rest, fill) : load(p);
}

INLINE void store_up_to(float *p, vf x, int64_t rest) {
    if (rest < LANES) store_first(p, x, (int)rest);
    else store(p, x);
}

INLINE vf square_root(vf x) {
#if defined(USE_AVX2)
    return (vf)_mm256_sqrt_ps((__m256)x);
#elif defined(USE_AVX512)
    return (vf)_mm512_sqrt_ps((__m512)x);
#else
    for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* Write the lanes where `keep` holds side by side to p, and, unless it is NULL, their numbers plus
 * `base` to `lanes`; return how many. Writes whole vectors. */
INLINE int compress(float *p, uint8_t *lanes, vf x, vi keep, int base) {
    const uint32_t bits = bits_of(keep);
#if defined(USE_AVX512)
    const __m512i number = _mm512_add_epi32(_mm512_set1_epi32(base), _mm512_set_epi32(
        15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps((__mmask16)bits, (__m512)x));
    if (lanes)
        _mm_storeu_si128((__m128i *)lanes, _mm512_cvtepi32_epi8(
            _mm512_maskz_compress_epi32((__mmask16)bits, number)));
#elif defined(USE_AVX2)
    const __m128i order = _mm_loadl_epi64((const __m128i *)compress_order[bits]);
    store(p, (vf)_mm256_permutevar8x32_ps((__m256)x, _mm256_cvtepu8_epi32(order)));
    if (lanes) _mm_storel_epi64((__m128i *)lanes, _mm_add_epi8(order, _mm_set1_epi8((char)base)));
#else
    for (int i = 0, k = 0; i < LANES; i++) {
        p[k] = x[i];
        if (lanes) lanes[k] = (uint8_t)(base + i);
        k += bits >> i & 1;
    }
#endif
    return __builtin_popcount(bits);
}

/* The way back: where `keep` holds, the next of the numbers at p; 0 elsewhere. Reads whole vectors. */
INLINE vf expand(const float *p, vi keep) {
    const uint32_t bits = bits_of(keep);
#if defined(USE_AVX512)
    return (vf)_mm512_maskz_expand_ps((__mmask16)bits, (__m512)load(p));
#elif defined(USE_AVX2)
    const __m128i order = _mm_loadl_epi64((const __m128i *)expand_order[bits]);
    return both(keep, (vf)_mm256_permutevar8x32_ps((__m256)load(p), _mm256_cvtepu8_epi32(order)));
#else
    vf x = {0};
    for (int i = 0, k = 0; i < LANES; i++)
        if (bits >> i & 1) x[i] = p[k++];
    return x;
#endif
}

/* One mask byte (0 or 1) per lane, widened to a comparison's result. */
INLINE vi load_mask(const uint8_t *p) {
#if defined(USE_AVX2)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)) > 0;
#elif defined(USE_AVX512)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)) > 0;
#else
    vi mask;
    for (int i = 0; i < LANES; i++) mask[i] = -(p[i] > 0);
    return mask;
#endif
}

INLINE vi load_mask_first(const uint8_t *p, int count) {
    uint8_t bytes[LANES] = {0};
    for (int i = 0; i < count; i++) bytes[i] = p[i];
    return load_mask(bytes);
}

/* What whole vectors leave over of n entries, read as one more vector: the last LANES entries, some
 * for a second time, or, of fewer than LANES, all. `tail_lanes` are those left over. Where a result
 * replaces its source, the tail must be read before the vectors that it overlaps. */
INLINE vi tail_lanes(int64_t n) {
    const vi first = first_lanes((int)(n < LANES ? n : LANES - n % LANES));
    return n < LANES ? first : ~first;
}

INLINE vf load_tail(const float *p, int64_t n, float fill) {
    return n < LANES ? load_first(p, (int)n, fill) : load(p + n - LANES);
}

INLINE void store_tail(float *p, int64_t n, vf x) {
    if (n < LANES)
        store_first(p, x, (int)n);
    else
        store(p + n - LANES, x);
}

INLINE vi load_mask_tail(const uint8_t *p, int64_t n) {
    return n < LANES ? load_mask_first(p, (int)n) : load_mask(p + n - LANES);
}

/* What is left over, in the lanes where a longer row has it, and 0 in the others: added up from
 * there, a row has the same sum however far it is padded. */
INLINE vf tail_in_place(vf x, int64_t n) {
    const int left = (int)(n % LANES), skip = n < LANES ? 0 : LANES - left;
#if defined(USE_AVX2)
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    x = (vf)_mm256_permutevar8x32_ps((__m256)x, _mm256_add_epi32(lane, _mm256_set1_epi32(skip)));
#else
    float lanes[2 * LANES] = {0};
    store(lanes, x);
    x = load(lanes + skip);
#endif
    return both(first_lanes(left), x);
}

/* The floats of each half of a vector as doubles. */
typedef struct { vd low, high; } Sum;

INLINE Sum in_double(vf x) {
#if defined(USE_AVX2)
    return (Sum){(vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)),
                 (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1))};
#elif defined(USE_AVX512)
    return (Sum){(vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)),
                 (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1))};
#else
    union { vf whole; vh half[2]; } u = {x};
    return (Sum){__builtin_convertvector(u.half[0], vd), __builtin_convertvector(u.half[1], vd)};
#endif
}

INLINE Sum load_double(const double *p) {
    return (Sum){*(const vd_anywhere *)p, *(const vd_anywhere *)(p + LANES / 2)};
}

INLINE void store_double(double *p, Sum x) {
    *(vd_anywhere *)p = x.low;
    *(vd_anywhere *)(p + LANES / 2) = x.high;
}

INLINE void set_lane(Sum *s, int i, double x) {
    double lanes[LANES];
    store_double(lanes, *s);
    lanes[i] = x;
    *s = load_double(lanes);
}

/* Both halves rounded to floats again. */
INLINE vf in_float(Sum d) {
#if defined(USE_AVX2)
    return (vf)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)d.high), _mm256_cvtpd_ps((__m256d)d.low));
#elif defined(USE_AVX512)
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)d.low)),
                                  _mm512_cvtpd_ps((__m512d)d.high), 1);
#else
    union { vh half[2]; vf whole; } u = {{__builtin_convertvector(d.low, vh),
                                          __builtin_convertvector(d.high, vh)}};
    return u.whole;
#endif
}

/* Sums of floats in double. A float32 row of like magnitudes sums exactly, in any order. */
INLINE void sum_vector(Sum *s, vf x) {
    const Sum d = in_double(x);
    s->low += d.low;
    s->high += d.high;
}

/* The same for x and its squares, which are exact in double. */
INLINE void sum_square(Sum *s, Sum *squares, vf x) {
    const Sum d = in_double(x);
    s->low += d.low;
    s->high += d.high;
    squares->low += d.low * d.low;
    squares->high += d.high * d.high;
}

INLINE double sum_double(vd x) {
    double total = x[0];
    for (int i = 1; i < LANES / 2; i++) total += x[i];
    return total;
}

INLINE double sum_total(const Sum *s) { return sum_double(s->low + s->high); }

INLINE double sum_lanes(vf x) {
    const Sum s = in_double(x);
    return sum_total(&s);
}

/* The next float32 above each; not for -0. */
INLINE vf next_up(vf x) { return as_float(as_int(x) + (1 | as_int(x) >> 31)); }

/* exp(x) for UNDERFLOW <= x <= 0; elsewhere anything, for the caller to drop. Below UNDERFLOW,
 * float32 would leave its normal range, and denormal numbers are slow.
 *
 * x = k ln 2 + r, |r| <= ln 2 / 2; exp(r) by a degree-6 minimax polynomial whose relative error is
 * 4e-8 with coefficients rounded to float32, evaluated in pairs to shorten the chain of dependent
 * steps; 2^k by adding k to the exponent. */
#define UNDERFLOW -87.0f

INLINE vf exp_nonpositive(vf x) {
    const vf shift = splat(0x1.8p23f);
    const vf shifted = x * splat(0x1.715476p0f) + shift; /* log2 e */
    const vf k = shifted - shift;
#if defined(USE_AVX2) || defined(USE_AVX512)
    const vf r = x - k * splat(0x1.62e43p-1f); /* fused: off by 2e-9 k at most */
#else
    const vf r = (x - k * splat(0x1.62e4p-1f)) - k * splat(0x1.7f7d1cp-20f); /* ln 2 in two parts */
#endif
    const vf r2 = r * r;
    const vf c01 = r + splat(1.0f);
    const vf c23 = r * splat(0x1.55540ap-3f) + splat(0x1.fffffap-2f);
    const vf c45 = r * splat(0x1.126d64p-7f) + splat(0x1.55589cp-5f);
    const vf c456 = r2 * splat(0x1.6ab928p-10f) + c45;
    const vf poly = (c456 * r2 + c23) * r2 + c01;
    return (vf)((vu)poly + ((vu)shifted << 23));
}

/* The least x with x - max >= UNDERFLOW, subtracted in float32. Far from 0, where floats lie more
 * than 1 apart, the plain sum may have been rounded to one below it. */
INLINE vf least_above_underflow(vf max) {
    const vf near = max + UNDERFLOW;
    return choose(near - max < splat(UNDERFLOW), next_up(near), near);
}
