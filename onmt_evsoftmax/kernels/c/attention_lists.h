/* Lists of the scores that matter, and of the places of their keys: part of `variant.h`.
 *
 * Of each tile, a row keeps the scores that may still matter: for sparsemax and entmax those within
 * reach of the largest score so far, which are few; for ev-softmax all of them or, if the threshold
 * is known, what reaches it.
 */

/* The scores of CHUNK rows that matter, and in backward what follows from them. */
typedef struct {
    int64_t room;           /* entries of a row; no power of two, which would share cache lines */
    float *score;           /* [CHUNK][room]: scores; forward then weights, backward P M */
    int32_t *at;            /* [CHUNK][room]: their packed keys */
    float *grad, *slope;    /* [CHUNK][room], backward only: dS; dP/dS up to the row's mean */
    int64_t count[CHUNK];
    float most[CHUNK];      /* the largest score so far */
    float threshold[CHUNK]; /* ev-softmax: known beforehand, or found at the end */
    double sum[CHUNK];      /* ev-softmax: of the scores so far, unless the threshold is known */
    float gap;              /* entmax: alpha - 1 of the head */
    double grad_alpha;      /* entmax, backward: of the item of work */
    uint8_t poisoned[CHUNK];/* a NaN or +inf was seen */
} Lists;

INLINE void lay_out_lists(const Attention *task, Lists *l, Arena *arena, int backward) {
    const int64_t keys = ROUNDED(task->keys, TILE);
    l->room = keys + 3 * 16; /* whole vectors are written behind the last */
    l->score = take(arena, CHUNK * l->room, sizeof(float));
    l->at = take(arena, CHUNK * l->room, sizeof(int32_t));
    l->grad = backward ? take(arena, CHUNK * l->room, sizeof(float)) : NULL;
    l->slope = backward ? take(arena, CHUNK * l->room, sizeof(float)) : NULL;
}

#define PLACE int32_t
#define NAMED(name) list_##name
#include "attention_rows.h"

/* Like `compress`, with places of 32 bits. */
INLINE int compress_at(float *p, int32_t *at, vf x, vi place, vi keep) {
    const uint32_t bits = bits_of(keep);
#if defined(USE_AVX512)
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps((__mmask16)bits, (__m512)x));
    _mm512_storeu_si512(at, _mm512_maskz_compress_epi32((__mmask16)bits, (__m512i)place));
#elif defined(USE_AVX2)
    const __m128i packed = _mm_loadl_epi64((const __m128i *)compress_order[bits]);
    const __m256i order = _mm256_cvtepu8_epi32(packed);
    store(p, (vf)_mm256_permutevar8x32_ps((__m256)x, order));
    _mm256_storeu_si256((__m256i *)at, _mm256_permutevar8x32_epi32((__m256i)place, order));
#else
    for (int i = 0, k = 0; i < LANES; i++) {
        p[k] = x[i];
        at[k] = place[i];
        k += bits >> i & 1;
    }
#endif
    return __builtin_popcount(bits);
}

INLINE vi counting(int64_t from) {
    vi place;
    for (int i = 0; i < LANES; i++) place[i] = i;
    return place + (int32_t)from;
}

/* Row i of a tile goes into its list: what is above `most - reach` or, of ev-softmax with a known
 * threshold, what reaches that. */
INLINE void collect(Lists *l, int normalizer, int known, int i, const float *scores, int64_t limit,
                    float reach, int64_t tile) {
    const vf nothing = splat(-INFINITY);
    vf most = nothing;
    vi poison = {0};
    Sum sum = {{0}, {0}};
    if (limit <= 0) return;
    for (int64_t j = 0; j < limit; j += LANES) {
        vf s = load(scores + j);
        if (limit - j < LANES) s = choose(first_lanes((int)(limit - j)), s, nothing);
        most = larger(s, most);
        poison |= ~(s < splat(INFINITY));
        if (needs_sum(normalizer) && !known) sum_vector(&sum, both(s > nothing, s));
    }
    const float top = largest_lane(most)[0];
    if (top > l->most[i]) l->most[i] = top;
    if (bits_of(poison)) l->poisoned[i] = 1;
    if (needs_sum(normalizer) && !known) l->sum[i] += sum_total(&sum);
    /* A little lower than the reach: which entries count is decided by the row kernel. */
    const float most_so_far = l->most[i];
    const vf bar = splat(known ? l->threshold[i]
                               : most_so_far - reach * 1.0001f - fabsf(most_so_far) * 1e-6f);
    float *score = l->score + i * l->room;
    int32_t *at = l->at + i * l->room;
    int64_t found = l->count[i];
    for (int64_t j = 0; j < limit; j += LANES) {
        vf s = load(scores + j);
        if (limit - j < LANES) s = choose(first_lanes((int)(limit - j)), s, nothing);
        found += compress_at(score + found, at + found, s, counting(tile + j),
                             known ? s >= bar : s > bar);
    }
    l->count[i] = found;
}

/* Dropout's factors for LANES listed keys. */
INLINE vf listed_factor(const Attention *task, const Packed *pack, uint64_t row_key,
                        const int32_t *at) {
    vu position;
    for (int i = 0; i < LANES; i++) position[i] = (uint32_t)pack->position[at[i]];
    return dropout_factor(task, row_key, position);
}
