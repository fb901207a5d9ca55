/* What the C files share: the tasks, and the table of functions that every instruction set fills.
 *
 * The library knows nothing of Python or torch: it takes addresses, sizes and strides (in
 * elements). One source, `variant.h`, is compiled once per instruction set; `dispatch.c` picks
 * the widest the processor has and shares the work among threads.
 */
#ifndef ONMT_EVSOFTMAX_KERNELS_H
#define ONMT_EVSOFTMAX_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "normalizers.h"

enum { FLOAT32 = 0, FLOAT64 = 1, BFLOAT16 = 2, FLOAT16 = 3 };
enum { OK = 0, NO_MEMORY = 1, BAD_ARGUMENT = 2 };

#define MAX_RANK 16
#define CHUNK 64  /* queries of attention that are worked on together */

/* Rows of `columns` adjacent elements. Row r of a contiguous tensor starts at r * columns;
 * otherwise `rank` outer sizes and strides say where it and its mask start. */
typedef struct {
    int normalizer, dtype;
    int64_t columns;
    int rank;              /* 0: the scores are contiguous and the mask, if any, has stride 0 */
    const int64_t *sizes, *stride, *mask_stride;
    const void *scores;
    const uint8_t *mask;   /* NULL, or one byte per entry: 1 = takes part */
    void *probabilities;   /* contiguous, in the type of the scores */
    uint8_t *support;      /* NULL, or contiguous, one byte per entry: 1 = in the support */
    double parameter;      /* of the normalizer: ev-softmax's eps, entmax's alpha; 0: its default */
    const double *parameters; /* NULL, or one for every row instead (entmax only) */
} RowsForward;

/* All tensors contiguous. */
typedef struct {
    int normalizer, dtype;
    int64_t columns;
    const void *probabilities, *grad;
    void *grad_scores;
    double parameter;         /* as forward */
    const double *parameters;
    double *grad_parameters;  /* NULL, or the gradient of the parameter from every row (entmax only) */
} RowsBackward;

/* A (batch, heads, length, size) tensor whose last stride is 1. */
typedef struct {
    float *data;
    int64_t batch, head, length; /* strides */
} Tensor4;

/* Attention. The items of the work are, forward, the chunks of CHUNK queries of every head of every
 * batch; backward, the heads, or `splits` parts of the queries of each. */
typedef struct {
    int normalizer;
    int64_t batches, heads, queries, keys, size, value_size;
    Tensor4 query, key, value, out;     /* backward: `out` is only read */
    const uint8_t *mask;                /* NULL, or 1 = this key takes part */
    int64_t mask_batch, mask_head, mask_query; /* strides; that of the keys is 1 */
    const float *bias;                  /* NULL, or what is added to the scores */
    int64_t bias_batch, bias_head, bias_query;
    int causal;                         /* query i attends to keys 0 .. i only */
    /* Per (batch, head), contiguous: */
    const float *slopes;                /* NULL, or what a step of distance takes away (ALiBi) */
    const double *alphas;               /* entmax only */
    double *grad_alphas;                /* NULL, or per item of work, to be added up */
    int64_t window, offset;             /* relative positions up to so far; place of query 0 */
    const float *relative_keys, *relative_values; /* [2 window + 1][size], the latter may be NULL */
    float *grad_relative_keys, *grad_relative_values; /* per item of work, to be added up; zeros */
    float scale;
    double dropout;                     /* probability to drop a weight */
    uint64_t seed;
    /* What backward must know of every row, (batches, heads, queries), contiguous: of ev-softmax
     * the logarithm of the sum of exponentials and the least score that is kept; of projections
     * tau and the largest score. */
    double *level;
    float *bar;
    /* Backward only. Every part of a head has its own gradients of keys and values, these strides
     * apart, for the caller to add up. */
    Tensor4 grad_out, grad_query, grad_key, grad_value;
    int64_t splits, grad_key_split, grad_value_split;
} Attention;

/* Attention of one query for each head, forward: its rows are normalized where they are. */
typedef struct {
    Attention attention;
    RowsForward rows;                   /* scores and probabilities: (batches, heads, keys) */
} Single;

/* Does the items (rows or blocks) [begin, end) of a task alone; returns OK or NO_MEMORY. */
typedef int Range(const void *task, int64_t begin, int64_t end);

typedef struct {
    const char *name;
    Range *rows_forward, *rows_backward;
    Range *attention_forward, *attention_backward;
    Range *blocks_forward, *blocks_backward;
    Range *single_forward;
} Variant;

extern const Variant variant_portable;
#if defined(__x86_64__)
extern const Variant variant_avx2, variant_avx512;
#endif

Range rows_forward_f64, rows_backward_f64;

/* The least and the largest parameter of each normalizer; 0 is always taken. */
extern const double parameter_ranges[NORMALIZER_COUNT][2];

/* Where the rows of a strided tensor start, stepped through in order without a division. */
typedef struct {
    const RowsForward *task;
    int64_t index[MAX_RANK], scores, mask;
} Cursor;

static inline void cursor_start(Cursor *c, const RowsForward *task, int64_t row) {
    c->task = task;
    c->scores = c->mask = 0;
    if (task->rank == 0) c->scores = row * task->columns;
    for (int d = task->rank - 1; d >= 0; d--) {
        c->index[d] = row % task->sizes[d];
        row /= task->sizes[d];
        c->scores += c->index[d] * task->stride[d];
        c->mask += c->index[d] * task->mask_stride[d];
    }
}

static inline void cursor_next(Cursor *c) {
    const RowsForward *task = c->task;
    if (task->rank == 0) c->scores += task->columns;
    for (int d = task->rank - 1; d >= 0; d--) {
        c->scores += task->stride[d];
        c->mask += task->mask_stride[d];
        if (++c->index[d] < task->sizes[d]) return;
        c->scores -= task->sizes[d] * task->stride[d];
        c->mask -= task->sizes[d] * task->mask_stride[d];
        c->index[d] = 0;
    }
}

#endif
