/* Row normalizers in float32 vectors, forward and backward: part of `variant.h`. */
#include "half.h"

#define NARROW 64   /* rows up to this long may go LANES at a time, see `is_narrow` */
#define GROUP 32    /* longer rows go through their passes in groups of up to so many ... */
#define GROUPED 512 /* ... and up to so many elements: small, so that reads overlap with writes */

/* The least float32 that is not below `t`: comparing a float32 with it is comparing with `t`. */
INLINE float round_up(double t) {
    const float f = (float)t;
    const uint32_t bits = bits_of_float(f);
    const uint32_t next = bits & 0x80000000u ? bits - 1 : bits + 1;
    return float_of_bits((double)f < t ? next : bits);
}

#include "rows_read.h"
#include "rows_evsoftmax.h"
#include "rows_narrow.h"
#include "rows_wide.h"

/* --------------------------------------------------------------------------------- forward */

/* `rows` <= LANES rows from row `first` on; `scratch` holds 2 LANES (n + 2 LANES) floats. */
INLINE void narrow_rows(const RowsForward *task, Cursor *at, int64_t first, int rows,
                        float *scratch) {
    const int64_t n = task->columns, room = n + 2 * LANES;
    const float *row[LANES];
    const uint8_t *mask[LANES];
    for (int i = 0; i < LANES; i++) {
        /* Lanes without a row repeat the first one, so that a row's result is the same in any
         * company. */
        row[i] = i < rows ? (const float *)task->scores + at->scores : row[0];
        if (task->dtype != FLOAT32 && i < rows) {
            widen(scratch + i * room, task->scores, at->scores, n, task->dtype);
            row[i] = scratch + i * room;
        }
        mask[i] = !task->mask ? NULL : i < rows ? task->mask + at->mask : mask[0];
        if (i < rows) cursor_next(at);
    }
    Tile t;
    t.n = n;
    if (task->mask)
        read_tile(&t, row, mask);
    else
        read_tile(&t, row, (const uint8_t *[LANES]){NULL});

    uint32_t kept[NARROW];
    Finding found = {{0}, task->support ? kept : NULL};
    if (task->normalizer == EVSOFTMAX) {
        const float eps = (float)task->eps;
        const int done = !task->mask && (eps > 0 ? narrow_evsoftmax(&t, 1, eps, &found)
                                                 : narrow_evsoftmax(&t, 1, 0.0f, &found));
        if (!done && eps > 0)
            narrow_evsoftmax(&t, 0, eps, &found);
        else if (!done)
            narrow_evsoftmax(&t, 0, 0.0f, &found);
    } else if (task->normalizer == SPARSEMAX) {
        narrow_center(&t, 1.0f, &found);
        narrow_projection(&t, narrow_sparsemax(&t), 0, &found);
    } else {
        narrow_center(&t, 0.5f, &found);
        narrow_projection(&t, narrow_entmax15(&t), 1, &found);
    }

    float *p = (float *)task->probabilities + first * n;
    const int64_t stride = task->dtype == FLOAT32 ? n : room;
    if (task->dtype != FLOAT32) p = scratch + LANES * room;
    write_tile(&t, p, stride, rows);
    const uint32_t poisoned = bits_of(found.poisoned);
    for (int i = 0; poisoned && i < rows; i++)
        for (int64_t j = 0; poisoned >> i & 1 && j < n; j++)
            p[i * stride + j] = (mask[i] && !mask[i][j]) || row[i][j] == -INFINITY ? 0.0f : NAN;
    for (int i = 0; task->dtype != FLOAT32 && i < rows; i++)
        narrow(task->probabilities, p + i * stride, (first + i) * n, n, task->dtype);
    for (int i = 0; task->support && i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            task->support[(first + i) * n + j] = (kept[j] & ~poisoned) >> i & 1;
}

INLINE void wide_row(const RowsForward *task, const Cursor *at, int64_t r, float *scratch) {
    const int64_t n = task->columns, room = n + 2 * LANES;
    float *copy = scratch, *work = scratch + room;
    float *p = task->dtype == FLOAT32 ? (float *)task->probabilities + r * n : scratch + 2 * room;
    uint8_t *support = task->support ? task->support + r * n : NULL;
    Row row;
    Partial part;
    read_row(task, at, copy, &row, &part);
    finish_row(task, copy, &row, &part);
    if (row.state != FINITE) {
        fill_unsound(p, &row);
        if (support) memset(support, 0, (size_t)n);
    } else if (task->normalizer == SPARSEMAX) {
        sparsemax_row(&row, p, support, work);
    } else {
        entmax15_row(&row, p, support, work);
    }
    if (task->dtype != FLOAT32) narrow(task->probabilities, p, r * n, n, task->dtype);
}

/* One row per lane spares the horizontal steps, of which entmax-1.5 has the most, but reads and
 * writes less regularly, which tells in longer rows. */
static int is_narrow(const RowsForward *task) {
    return task->columns <= (task->normalizer == ENTMAX15 ? NARROW : NARROW / 2);
}

static int group_size(int64_t columns) {
    return columns * GROUP <= GROUPED ? GROUP : columns < GROUPED ? (int)(GROUPED / columns) : 1;
}

static int rows_forward(const void *argument, int64_t begin, int64_t end) {
    const RowsForward *task = argument;
    const int64_t n = task->columns, room = n + 2 * LANES;
    const int together = group_size(n);
    const int64_t rooms = together > 2 * LANES ? together : 2 * LANES;
    float *scratch = malloc((size_t)(room * rooms) * sizeof(float));
    if (!scratch) return NO_MEMORY;
    Cursor at;
    cursor_start(&at, task, begin);
    for (int64_t r = begin; r < end;) {
        const int rows = end - r < together ? (int)(end - r) : together;
        const int lanes = end - r < LANES ? (int)(end - r) : LANES;
        if (is_narrow(task)) {
            narrow_rows(task, &at, r, lanes, scratch);
            r += lanes;
        } else if (task->normalizer == EVSOFTMAX) {
            evsoftmax_group(task, &at, r, rows, scratch, room);
            r += rows;
        } else {
            wide_row(task, &at, r++, scratch);
            cursor_next(&at);
        }
    }
    free(scratch);
    return OK;
}

/* -------------------------------------------------------------------------------- backward */

/* Every normalizer here has the Jacobian diag(s) - s s' / sum(s): s is p itself for ev-softmax
 * (whose p sums to 1), its support for sparsemax and its square root for entmax-1.5. */
INLINE vf slope(int normalizer, vf p) {
    if (normalizer == EVSOFTMAX) return p;
    if (normalizer == SPARSEMAX) return both(p > splat(0.0f), splat(1.0f));
    return square_root(p);
}

/* Sums of s g and of s, spread over lanes. */
INLINE void backward_sums(int normalizer, const float *p, const float *g,
                          int64_t n, vd *weighted, vd *total) {
    const vf zero = splat(0.0f);
    Sum dots = {{0}, {0}}, sums = dots;
    for (int64_t j = 0; j < n;) {
        const int64_t flush = n - j < FLUSH * LANES ? n : j + FLUSH * LANES;
        vf dot = zero, sum = zero;
        for (; j + LANES <= flush; j += LANES) {
            const vf s = slope(normalizer, load(p + j));
            dot += s * load(g + j);
            sum += s;
        }
        if (j < flush) {
            const int rest = (int)(flush - j);
            const vf s = slope(normalizer, load_first(p + j, rest, 0.0f));
            dot += s * load_first(g + j, rest, 0.0f);
            sum += s;
            j = flush;
        }
        sum_vector(&dots, dot);
        if (normalizer != EVSOFTMAX) sum_vector(&sums, sum);
    }
    *weighted = dots.low + dots.high;
    *total = sums.low + sums.high;
}

INLINE void backward_result(int normalizer, const float *p, const float *g,
                            int64_t n, float mean, float *out) {
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        store(out + j, slope(normalizer, load(p + j)) * (load(g + j) - mean));
    }
    if (j < n) {
        const int rest = (int)(n - j);
        const vf s = slope(normalizer, load_first(p + j, rest, 0.0f));
        store_first(out + j, s * (load_first(g + j, rest, 0.0f) - mean), rest);
    }
}

/* `rows` <= GROUP rows from row `first` on; each has 2 `room` floats of scratch. */
INLINE void backward_group(int normalizer, const RowsBackward *task, int64_t first, int rows,
                           float *scratch, int64_t room) {
    const int64_t n = task->columns;
    const float *p[GROUP], *g[GROUP];
    vd weighted[GROUP], total[GROUP];
    for (int i = 0; i < rows; i++) {
        const int64_t start = (first + i) * n;
        p[i] = (const float *)task->probabilities + start;
        g[i] = (const float *)task->grad + start;
        if (task->dtype != FLOAT32) {
            float *copy = scratch + 2 * i * room;
            widen(copy, task->probabilities, start, n, task->dtype);
            widen(copy + room, task->grad, start, n, task->dtype);
            p[i] = copy;
            g[i] = copy + room;
        }
        backward_sums(normalizer, p[i], g[i], n, &weighted[i], &total[i]);
    }
    for (int i = 0; i < rows; i++) {
        double mean = sum_double(weighted[i]);
        /* An empty row has no slope to divide by, nor needs any. */
        if (normalizer != EVSOFTMAX) mean /= fmax(sum_double(total[i]), DBL_MIN);
        float *out = task->dtype == FLOAT32 ? (float *)task->grad_scores + (first + i) * n
                                            : scratch + (2 * i + 1) * room;
        backward_result(normalizer, p[i], g[i], n, (float)mean, out);
        if (task->dtype != FLOAT32) narrow(task->grad_scores, out, (first + i) * n, n, task->dtype);
    }
}

static int rows_backward(const void *argument, int64_t begin, int64_t end) {
    const RowsBackward *task = argument;
    const int64_t n = task->columns, room = n + LANES;
    const int together = group_size(n);
    float *scratch = NULL;
    if (task->dtype != FLOAT32) {
        scratch = malloc((size_t)(2 * room * together) * sizeof(float));
        if (!scratch) return NO_MEMORY;
    }
    for (int64_t r = begin; r < end; r += together) {
        const int rows = end - r < together ? (int)(end - r) : together;
        if (task->normalizer == EVSOFTMAX)
            backward_group(EVSOFTMAX, task, r, rows, scratch, room);
        else if (task->normalizer == SPARSEMAX)
            backward_group(SPARSEMAX, task, r, rows, scratch, room);
        else
            backward_group(ENTMAX15, task, r, rows, scratch, room);
    }
    free(scratch);
    return OK;
}
