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

/* The first two rounds of adding up each of four vectors: every quarter of the result has, in its
 * lanes 0 .. 3, what the same quarters of a, b, c and d sum up to. */
INLINE vf sum_quarters(vf a, vf b, vf c, vf d) {
    const vf ab = SHUFFLE(a, b, SINGLES_LOW) + SHUFFLE(a, b, SINGLES_HIGH);
    const vf cd = SHUFFLE(c, d, SINGLES_LOW) + SHUFFLE(c, d, SINGLES_HIGH);
    return SHUFFLE(ab, cd, PAIRS_LOW) + SHUFFLE(ab, cd, PAIRS_HIGH);
}

/* The rest: lane 4 i + k of the result is the sum of the vector that was k-th in part[i]. */
INLINE vf sum_each(const vf part[LANES / 4]) {
#if LANES == 4
    return part[0];
#elif LANES == 8
    return SHUFFLE(part[0], part[1], HALF_LOW) + SHUFFLE(part[0], part[1], HALF_HIGH);
#else
    const vf a = part[0], b = part[1], c = part[2], d = part[3];
    const vf low = SHUFFLE(a, b, QUARTER_EVEN) + SHUFFLE(a, b, QUARTER_ODD);
    const vf high = SHUFFLE(c, d, QUARTER_EVEN) + SHUFFLE(c, d, QUARTER_ODD);
    return SHUFFLE(low, high, HALF_LOW) + SHUFFLE(low, high, HALF_HIGH);
#endif
}
