/* Transpose LANES vectors in registers: part of `variant.h`.
 *
 * Every 128-bit quarter is transposed as 4 x 4 by two rounds of interleaving, which all instruction
 * sets do in one instruction each; then the quarters themselves change places. */

#if LANES == 4
#define SINGLES_LOW 0, 4, 1, 5
#define SINGLES_HIGH 2, 6, 3, 7
#define PAIRS_LOW 0, 1, 4, 5
#define PAIRS_HIGH 2, 3, 6, 7
#elif LANES == 8
#define SINGLES_LOW 0, 8, 1, 9, 4, 12, 5, 13
#define SINGLES_HIGH 2, 10, 3, 11, 6, 14, 7, 15
#define PAIRS_LOW 0, 1, 8, 9, 4, 5, 12, 13
#define PAIRS_HIGH 2, 3, 10, 11, 6, 7, 14, 15
#define HALF_LOW 0, 1, 2, 3, 8, 9, 10, 11
#define HALF_HIGH 4, 5, 6, 7, 12, 13, 14, 15
#else
#define SINGLES_LOW 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define SINGLES_HIGH 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define PAIRS_LOW 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define PAIRS_HIGH 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define QUARTER_EVEN 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define QUARTER_ODD 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define HALF_LOW 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HALF_HIGH 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#endif

/* v[i][j] becomes v[j][i]. */
INLINE void transpose(vf v[LANES]) {
    vf w[LANES];
    for (int i = 0; i < LANES; i += 4) {
        const vf a = SHUFFLE(v[i], v[i + 1], SINGLES_LOW);
        const vf b = SHUFFLE(v[i], v[i + 1], SINGLES_HIGH);
        const vf c = SHUFFLE(v[i + 2], v[i + 3], SINGLES_LOW);
        const vf d = SHUFFLE(v[i + 2], v[i + 3], SINGLES_HIGH);
        w[i] = SHUFFLE(a, c, PAIRS_LOW);
        w[i + 1] = SHUFFLE(a, c, PAIRS_HIGH);
        w[i + 2] = SHUFFLE(b, d, PAIRS_LOW);
        w[i + 3] = SHUFFLE(b, d, PAIRS_HIGH);
    }
#if LANES == 4
    for (int i = 0; i < 4; i++) v[i] = w[i];
#elif LANES == 8
    for (int i = 0; i < 4; i++) {
        v[i] = SHUFFLE(w[i], w[i + 4], HALF_LOW);
        v[i + 4] = SHUFFLE(w[i], w[i + 4], HALF_HIGH);
    }
#else
    for (int i = 0; i < 4; i++) {
        const vf a = SHUFFLE(w[i], w[i + 4], QUARTER_EVEN);
        const vf b = SHUFFLE(w[i], w[i + 4], QUARTER_ODD);
        const vf c = SHUFFLE(w[i + 8], w[i + 12], QUARTER_EVEN);
        const vf d = SHUFFLE(w[i + 8], w[i + 12], QUARTER_ODD);
        v[i] = SHUFFLE(a, c, HALF_LOW);
        v[i + 4] = SHUFFLE(b, d, HALF_LOW);
        v[i + 8] = SHUFFLE(a, c, HALF_HIGH);
        v[i + 12] = SHUFFLE(b, d, HALF_HIGH);
    }
#endif
}

/* Reduce each of LANES vectors to one number, all at once: half the steps of one after another.
 *
 * NAME_quarters does the first two rounds for four vectors: every quarter of its result has, in its
 * lanes 0 .. 3, what the same quarters of a, b, c and d come to. NAME_each does the rest: lane
 * 4 i + k of its result is what the k-th vector of part[i] comes to. NAME_rows does both. */
#if LANES == 4
#define REDUCE_REST(part, OP) return part[0];
#elif LANES == 8
#define REDUCE_REST(part, OP) \
    return OP(SHUFFLE(part[0], part[1], HALF_LOW), SHUFFLE(part[0], part[1], HALF_HIGH));
#else
#define REDUCE_REST(part, OP) \
    const vf a = part[0], b = part[1], c = part[2], d = part[3]; \
    const vf low = OP(SHUFFLE(a, b, QUARTER_EVEN), SHUFFLE(a, b, QUARTER_ODD)); \
    const vf high = OP(SHUFFLE(c, d, QUARTER_EVEN), SHUFFLE(c, d, QUARTER_ODD)); \
    return OP(SHUFFLE(low, high, HALF_LOW), SHUFFLE(low, high, HALF_HIGH));
#endif
#define REDUCTION(NAME, OP) \
    INLINE vf NAME##_quarters(vf a, vf b, vf c, vf d) { \
        const vf ab = OP(SHUFFLE(a, b, SINGLES_LOW), SHUFFLE(a, b, SINGLES_HIGH)); \
        const vf cd = OP(SHUFFLE(c, d, SINGLES_LOW), SHUFFLE(c, d, SINGLES_HIGH)); \
        return OP(SHUFFLE(ab, cd, PAIRS_LOW), SHUFFLE(ab, cd, PAIRS_HIGH)); \
    } \
    INLINE vf NAME##_each(const vf part[LANES / 4]) { REDUCE_REST(part, OP) } \
    INLINE vf NAME##_rows(const vf v[LANES]) { \
        vf part[LANES / 4]; \
        for (int i = 0; i < LANES / 4; i++) \
            part[i] = NAME##_quarters(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]); \
        return NAME##_each(part); \
    }

INLINE vf plus(vf a, vf b) { return a + b; }
REDUCTION(sum, plus)
REDUCTION(largest, larger)

/* The same for sums in double. */
INLINE Sum sum_rows_double(const vd v[LANES]) {
#if defined(USE_AVX2)
    vd half[2];
    for (int i = 0; i < 2; i++) {
        const __m256d ab = _mm256_hadd_pd((__m256d)v[4 * i], (__m256d)v[4 * i + 1]);
        const __m256d cd = _mm256_hadd_pd((__m256d)v[4 * i + 2], (__m256d)v[4 * i + 3]);
        half[i] = (vd)_mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x20),
                                    _mm256_permute2f128_pd(ab, cd, 0x31));
    }
    return (Sum){half[0], half[1]};
#else
    double each[LANES];
    for (int i = 0; i < LANES; i++) each[i] = sum_double(v[i]);
    return load_double(each);
#endif
}
