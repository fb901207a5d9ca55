/* Reading rows in float32 with their statistics: part of `rows.h`.
 *
 * Entries that take no part (masked, or -inf) become -inf in a scratch copy, so that every later
 * pass drops them by itself.
 */

typedef enum { FINITE, EMPTY, POISONED } State;

typedef struct {
    const float *x; /* the row, or its copy in float32 with -inf where an entry takes no part */
    int64_t n, count;
    float max;
    double sum;
    State state;
} Row;

/* Sums and maxima of a row, still spread over lanes: adding up the lanes is a chain of dependent
 * instructions, which the rows of a group go through side by side. */
typedef struct {
    vf max;
    vd sum;
    vi count;
} Partial;

static void widen(float *to, const void *from, int64_t offset, int64_t n, int dtype) {
    const uint16_t *h = (const uint16_t *)from + offset;
    if (dtype == BFLOAT16)
        for (int64_t j = 0; j < n; j++) to[j] = from_bfloat16(h[j]);
    else
        for (int64_t j = 0; j < n; j++) to[j] = from_float16(h[j]);
}

static void narrow(void *to, const float *from, int64_t offset, int64_t n, int dtype) {
    uint16_t *h = (uint16_t *)to + offset;
    if (dtype == BFLOAT16)
        for (int64_t j = 0; j < n; j++) h[j] = to_bfloat16(from[j]);
    else
        for (int64_t j = 0; j < n; j++) h[j] = to_float16(from[j]);
}

/* The result of a row that cannot be normalized: NaN where an entry takes part, 0 elsewhere; of an
 * empty row, nothing but 0. */
static void fill_unsound(float *p, const Row *row) {
    for (int64_t j = 0; j < row->n; j++) p[j] = row->x[j] == -INFINITY ? 0.0f : NAN;
}

INLINE void plain_statistics(Row *row, Partial *part) {
    const float *x = row->x;
    const int64_t n = row->n;
    vf max0 = splat(-INFINITY), max1 = max0;
    Sum sum0 = {{0}, {0}}, sum1 = sum0;
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        const vf a = load(x + j), b = load(x + j + LANES);
        max0 = larger(a, max0);
        max1 = larger(b, max1);
        sum_vector(&sum0, a);
        sum_vector(&sum1, b);
    }
    if (j + LANES <= n) {
        max0 = larger(load(x + j), max0);
        sum_vector(&sum0, load(x + j));
        j += LANES;
    }
    if (j < n) {
        max1 = larger(load_first(x + j, (int)(n - j), -INFINITY), max1);
        sum_vector(&sum1, load_first(x + j, (int)(n - j), 0.0f));
    }
    part->max = larger(max0, max1);
    part->sum = (sum0.low + sum1.low) + (sum0.high + sum1.high);
    part->count = (vi){0};
    row->count = n;
}

INLINE void masked_statistics(Row *row, Partial *part, const uint8_t *mask, float *copy) {
    const vf nothing = splat(-INFINITY);
    vf max = nothing;
    vi count = {0};
    Sum sum = {{0}, {0}};
    int64_t j = 0;
    for (; j + LANES <= row->n; j += LANES) {
        const vi valid = load_mask(mask + j);
        const vf x = load(row->x + j), kept = choose(valid, x, nothing);
        store(copy + j, kept);
        max = larger(kept, max);
        sum_vector(&sum, both(valid, x));
        count -= valid;
    }
    if (j < row->n) {
        const int rest = (int)(row->n - j);
        const vi valid = load_mask_first(mask + j, rest);
        const vf x = load_first(row->x + j, rest, 0.0f), kept = choose(valid, x, nothing);
        store_first(copy + j, kept, rest);
        max = larger(kept, max);
        sum_vector(&sum, both(valid, x));
        count -= valid;
    }
    row->x = copy;
    part->max = max;
    part->sum = sum.low + sum.high;
    part->count = count;
}

/* The rare row whose sum is not finite: drop its -inf, and see whether a NaN or +inf remains. */
static __attribute__((noinline)) void untangle(Row *row, float *copy) {
    int poisoned = 0;
    row->count = 0;
    row->sum = 0;
    row->max = -INFINITY;
    for (int64_t j = 0; j < row->n; j++) {
        const float x = row->x[j];
        copy[j] = x;
        if (x == -INFINITY) continue;
        poisoned |= !(x < INFINITY);
        row->max = x > row->max ? x : row->max;
        row->sum += x;
        row->count++;
    }
    row->x = copy;
    row->state = poisoned ? POISONED : FINITE;
}

/* Begin the row at the cursor. `copy` holds it where it is not float32, masked or not finite. */
INLINE void read_row(const RowsForward *task, const Cursor *at, float *copy, Row *row,
                     Partial *part) {
    row->n = task->columns;
    row->state = FINITE;
    row->x = (const float *)task->scores + at->scores;
    if (task->dtype != FLOAT32) {
        widen(copy, task->scores, at->scores, row->n, task->dtype);
        row->x = copy;
    }
    if (task->mask)
        masked_statistics(row, part, task->mask + at->mask, copy);
    else
        plain_statistics(row, part);
}

INLINE void finish_row(const RowsForward *task, float *copy, Row *row, const Partial *part) {
    row->max = largest_lane(part->max)[0];
    row->sum = sum_double(part->sum);
    if (task->mask) {
        row->count = 0;
        for (int i = 0; i < LANES; i++) row->count += part->count[i];
    }
    if (!(fabs(row->sum) <= DBL_MAX)) untangle(row, copy);
    if (row->count == 0) row->state = EMPTY;
}
