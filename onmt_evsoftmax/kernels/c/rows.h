/* Row normalizers in float32 vectors, forward and backward: part of `variant.h`. */
#include "half.h"

/* Rows up to this length are processed LANES at a time; longer ones, and what is left, alone. A
 * group must stay in the first cache with its results; backward, which hardly computes, groups are
 * small, so that reads overlap with writes. */
#define FORWARD_TOGETHER 256
#define BACKWARD_TOGETHER 64

/* Entries of a row that are added up in float32 before their sum moves on to double. */
#define FLUSH (64 * LANES)

/* The least float32 that is not below `t`: comparing a float32 with it is comparing with `t`. */
INLINE float round_up(double t) {
    const float f = (float)t;
    const uint32_t bits = bits_of_float(f);
    const uint32_t next = bits & 0x80000000u ? bits - 1 : bits + 1;
    return float_of_bits((double)f < t ? next : bits);
}

#include "rows_read.h"
#include "projection.h"
#define WITH_ROW_CODE
#include "normalizers.h"

/* --------------------------------------------------------------------------------- forward */

/* `rows` rows, 1 or LANES, from row `first` on. For each row, `copies` and `candidates` hold `room`
 * floats, where they are needed. */
INLINE void forward_group(int normalizer, const RowsForward *task, Cursor *at, int64_t first,
                          int rows, float *copies, float *candidates, int64_t room) {
    const int64_t n = task->columns;
    uint8_t *support = task->support ? task->support + first * n : NULL;
    Group g;
    read_group(&g, needs_sum(normalizer), task, at, first, rows, copies, room);
#define GROUP(name) \
    case id_##name: name##_group(&g, support, candidates, room); break;
    switch (normalizer) { NORMALIZERS(GROUP) }
    for (int i = 0; task->dtype != FLOAT32 && i < rows; i++)
        narrow(task->probabilities, g.p[i], (first + i) * n, n, task->dtype);
}

INLINE int forward_rows(int normalizer, const RowsForward *task, int64_t r, int64_t end) {
    const int64_t room = task->columns + 2 * LANES;
    const int together = task->columns <= FORWARD_TOGETHER ? LANES : 1;
    float *copies = NULL;
    if (needs_room(normalizer) || task->dtype != FLOAT32) {
        copies = malloc((size_t)(2 * room * together) * sizeof(float));
        if (!copies) return NO_MEMORY;
    }
    float *const candidates = needs_room(normalizer) ? copies + together * room : NULL;
    Cursor at;
    cursor_start(&at, task, r);
    for (; together == LANES && r + LANES <= end; r += LANES)
        forward_group(normalizer, task, &at, r, LANES, copies, candidates, room);
    for (; r < end; r++)
        forward_group(normalizer, task, &at, r, 1, copies, candidates, room);
    free(copies);
    return OK;
}

static int rows_forward(const void *argument, int64_t begin, int64_t end) {
    const RowsForward *task = argument;
#define FORWARD(name) case id_##name: return forward_rows(id_##name, task, begin, end);
    switch (task->normalizer) { NORMALIZERS(FORWARD) }
    return BAD_ARGUMENT;
}

/* -------------------------------------------------------------------------------- backward */

/* Every normalizer has the Jacobian diag(s) - s s' / sum(s), s its slopes. */
INLINE vf slope(int normalizer, vf p) {
#define SLOPE(name) case id_##name: return name##_slope(p);
    switch (normalizer) { SLOPED(SLOPE) }
    return p;
}

/* Sums of s g and of s over n entries, spread over lanes. */
INLINE void backward_sums(int normalizer, const float *p, const float *g, int64_t n, vf *weighted,
                          vf *total) {
    vf dot = {0}, sum = {0};
    for (int64_t j = 0; j + LANES <= n; j += LANES) {
        const vf s = slope(normalizer, load(p + j));
        dot += s * load(g + j);
        sum += s;
    }
    if (n % LANES) {
        const vf s = tail_in_place(slope(normalizer, load_tail(p, n, 0.0f)), n);
        dot += s * tail_in_place(load_tail(g, n, 0.0f), n);
        sum += s;
    }
    *weighted = dot;
    *total = sum;
}

/* s (g - mean), to `out`, which may be g. */
INLINE void backward_result(int normalizer, const float *p, const float *g,
                            int64_t n, float mean, float *out) {
    vf last = {0};
    if (n % LANES)
        last = slope(normalizer, load_tail(p, n, 0.0f)) * (load_tail(g, n, 0.0f) - mean);
    for (int64_t j = 0; j + LANES <= n; j += LANES)
        store(out + j, slope(normalizer, load(p + j)) * (load(g + j) - mean));
    if (n % LANES) store_tail(out, n, last);
}

/* In a row with NaN the mean is NaN, and so is all of the above: what takes no part gets its 0. */
static __attribute__((noinline)) void clear_hidden(const RowsBackward *task, int64_t first,
                                                   int rows, const float *const p[LANES]) {
    const int64_t n = task->columns;
    const size_t size = task->dtype == FLOAT32 ? 4 : 2;
    for (int i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            if (p[i][j] == 0)
                memset((char *)task->grad_scores + (size_t)((first + i) * n + j) * size, 0, size);
}

/* `rows` rows, 1 or LANES, from row `first` on; `copies` holds 2 `room` floats for each that is not
 * float32. */
INLINE void backward_group(int normalizer, const RowsBackward *task, int64_t first, int rows,
                           float *copies, int64_t room) {
    const int64_t n = task->columns;
    const float *p[LANES], *g[LANES];
    for (int i = 0; i < rows; i++) {
        const int64_t start = (first + i) * n;
        p[i] = (const float *)task->probabilities + start;
        g[i] = (const float *)task->grad + start;
        if (task->dtype != FLOAT32) {
            float *copy = copies + 2 * i * room;
            widen(copy, task->probabilities, start, n, task->dtype);
            widen(copy + room, task->grad, start, n, task->dtype);
            p[i] = copy;
            g[i] = copy + room;
        }
    }
    Sum means = {{0}, {0}}, slopes = means;
    for (int64_t j = 0; j < n; j += FLUSH) {
        vf weighted[LANES], total[LANES];
        for (int i = 0; i < LANES; i++) {
            weighted[i] = total[i] = (vf){0};
            if (i < rows)
                backward_sums(normalizer, p[i] + j, g[i] + j, n - j < FLUSH ? n - j : FLUSH,
                              &weighted[i], &total[i]);
        }
        sum_vector(&means, sum_rows(weighted));
        if (!unit_slopes(normalizer)) sum_vector(&slopes, sum_rows(total));
    }
    if (!unit_slopes(normalizer)) {
        /* An empty row has no slope to divide by, nor needs any. */
        means.low /= slopes.low + DBL_MIN;
        means.high /= slopes.high + DBL_MIN;
    }
    float mean[LANES];
    store(mean, in_float(means));
    for (int i = 0; i < rows; i++) {
        float *out = task->dtype == FLOAT32 ? (float *)task->grad_scores + (first + i) * n
                                            : copies + (2 * i + 1) * room;
        backward_result(normalizer, p[i], g[i], n, mean[i], out);
        if (task->dtype != FLOAT32) narrow(task->grad_scores, out, (first + i) * n, n, task->dtype);
    }
    const vi broken = ~(in_float(means) - in_float(means) == splat(0.0f));
    if (bits_of(broken)) clear_hidden(task, first, rows, p);
}

/* Of alpha-entmax, whose slopes take powers: row by row, over the support alone. */
static int entmax_backward_rows(const RowsBackward *task, int64_t begin, int64_t end) {
    const int64_t n = task->columns, room = n + 2 * LANES;
    float *const lists = malloc((size_t)(5 * room) * sizeof(float));
    if (!lists) return NO_MEMORY;
    for (int64_t r = begin; r < end; r++) {
        const float *p = (const float *)task->probabilities + r * n;
        const float *g = (const float *)task->grad + r * n;
        float *out = (float *)task->grad_scores + r * n;
        if (task->dtype != FLOAT32) {
            widen(lists + 3 * room, task->probabilities, r * n, n, task->dtype);
            widen(lists + 4 * room, task->grad, r * n, n, task->dtype);
            p = lists + 3 * room;
            out = lists + 4 * room;
            g = out;
        }
        const double alpha = task->parameters ? task->parameters[r] : task->parameter;
        double *change = task->grad_parameters ? task->grad_parameters + r : NULL;
        entmax_backward_row(p, g, n, (float)entmax_gap(alpha), out, change, lists, room);
        if (task->dtype != FLOAT32) narrow(task->grad_scores, out, r * n, n, task->dtype);
    }
    free(lists);
    return OK;
}

INLINE int backward_rows(int normalizer, const RowsBackward *task, int64_t r, int64_t end) {
    const int64_t room = task->columns + LANES;
    const int together = task->columns <= BACKWARD_TOGETHER ? LANES : 1;
    float *copies = NULL;
    if (task->dtype != FLOAT32) {
        copies = malloc((size_t)(2 * room * together) * sizeof(float));
        if (!copies) return NO_MEMORY;
    }
    for (; together == LANES && r + LANES <= end; r += LANES)
        backward_group(normalizer, task, r, LANES, copies, room);
    for (; r < end; r++) backward_group(normalizer, task, r, 1, copies, room);
    free(copies);
    return OK;
}

static int rows_backward(const void *argument, int64_t begin, int64_t end) {
    const RowsBackward *task = argument;
#define BACKWARD(name) case id_##name: return backward_rows(id_##name, task, begin, end);
    switch (task->normalizer) { SLOPED(BACKWARD) }
    return entmax_backward_rows(task, begin, end);
}
