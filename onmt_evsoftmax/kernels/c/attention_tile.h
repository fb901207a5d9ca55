/* What both passes of attention do with a tile, CHUNK queries by TILE keys: part of `variant.h`. */

/* ---------------------------------------------------------------------------------- scores */

/* Scores of ROWS queries with one panel of keys. Every score is one chain of additions along d,
 * whatever ROWS is: forward and backward see the same bits. */
INLINE void score_panel(const int rows, const float *queries, int64_t stride, int64_t size,
                        const float *panel, float *scores) {
    vf sum[6][2];
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = splat(0.0f);
    for (int64_t d = 0; d < size; d++) {
        const vf low = load(panel + d * PANEL), high = load(panel + d * PANEL + LANES);
        for (int r = 0; r < rows; r++) {
            const vf q = splat(queries[r * stride + d]);
            sum[r][0] += q * low;
            sum[r][1] += q * high;
        }
    }
    for (int r = 0; r < rows; r++) {
        store(scores + r * TILE, sum[r][0]);
        store(scores + r * TILE + LANES, sum[r][1]);
    }
}

/* The same for rows begin .. end-1 of a chunk. */
INLINE void score_rows(const float *queries, int64_t stride, int64_t size, const float *panel,
                       int begin, int end, float *scores) {
    for (int i = begin; i < end;) {
        const float *from = queries + i * stride;
        float *to = scores + i * TILE;
        switch (end - i) {
        case 1: score_panel(1, from, stride, size, panel, to); i += 1; break;
        case 2: score_panel(2, from, stride, size, panel, to); i += 2; break;
        case 3: score_panel(3, from, stride, size, panel, to); i += 3; break;
        case 4: score_panel(4, from, stride, size, panel, to); i += 4; break;
        case 5: score_panel(5, from, stride, size, panel, to); i += 5; break;
        default: score_panel(6, from, stride, size, panel, to); i += 6; break;
        }
    }
}

/* scores[i][j] of queries begin .. end-1 of the chunk with packed keys tile .. tile + count - 1. */
static void score_tile(const Attention *task, const Packed *pack, int64_t tile, int64_t count,
                       int begin, int end) {
    for (int j = 0; j < count; j += PANEL)
        score_rows(pack->queries, pack->size, task->size, pack->panels + (tile + j) * task->size,
                   begin, end, pack->scores + j);
}

/* ------------------------------------------------------------------------------ what is kept */

/* The keys of a tile that a row keeps. Lanes behind the last are -inf, at any place. */
typedef struct {
    int count;
    uint8_t at[TILE + LANES]; /* their places in the tile */
    float score[TILE + LANES] __attribute__((aligned(64)));
    float grad[TILE + LANES]; /* backward: dS */
} Kept;

/* What a row keeps of a tile of `count` keys: scores from its threshold up, among its first
 * `visible` keys. Returns the largest of its scores. */
INLINE float keep(const float *scores, int64_t count, int64_t visible, float threshold,
                  Kept *kept) {
    const int64_t limit = visible < count ? visible : count;
    const vf bar = splat(threshold), nothing = splat(-INFINITY);
    vf most = nothing;
    int found = 0;
    for (int j = 0; j < TILE && j < limit; j += LANES) {
        vf s = load(scores + j);
        if (limit - j < LANES) s = choose(first_lanes((int)(limit - j)), s, nothing);
        most = larger(s, most);
        found += compress(kept->score + found, kept->at + found, s, s >= bar, j);
    }
    store(kept->score + found, nothing);
    memset(kept->at + found, 0, LANES);
    kept->count = found;
    return largest_lane(most)[0];
}

/* Where LANES keys of a tile were before packing. */
INLINE vu positions(const Packed *pack, int64_t tile, const uint8_t *at) {
    vu position;
    for (int i = 0; i < LANES; i++) position[i] = (uint32_t)pack->position[tile + at[i]];
    return position;
}

#define PLACE uint8_t
#define NAMED(name) name
#include "attention_rows.h"

/* --------------------------------------------------------------------------------- dropout */

INLINE uint64_t scramble(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* 1 / (1 - dropout) or 0 for LANES keys of one query: a hash of seed, row and position, so that
 * backward finds the same again and no thread needs a generator. `dropout.py` says it in torch. */
INLINE vf dropout_factor(const Attention *task, uint64_t row_key, vu position) {
    vu h = (position ^ (uint32_t)row_key) * 0x7feb352du;
    h = (h ^ h >> 15 ^ (uint32_t)(row_key >> 32)) * 0x846ca68bu;
    h ^= h >> 16;
    const vi kept = (vi)(h >> 8) >= (vi){0} + (int32_t)(task->dropout * 16777216.0);
    return both(kept, splat((float)(1.0 / (1.0 - task->dropout))));
}

/* What tells query i of a head from other rows; 0 if nothing is to be dropped. */
INLINE uint64_t dropout_key(const Attention *task, int64_t head, int64_t i) {
    if (!(task->dropout > 0)) return 0;
    return scramble(task->seed + 0x9e3779b97f4a7c15u * (uint64_t)(head * task->queries + i + 1));
}
