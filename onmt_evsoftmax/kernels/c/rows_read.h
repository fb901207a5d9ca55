/* Reading rows in float32 with their statistics: part of `rows.h`.
 *
 * Rows are read LANES at a time. A pass over a row leaves its maximum or sum spread over the lanes
 * of a vector; those of all rows are then reduced together, and from there on the numbers of a row
 * sit in its lane. So the horizontal steps and divisions, which in short rows would cost more than
 * all the rest, are shared by the group.
 */

typedef struct {
    int64_t n, bytes;        /* entries of a row, bytes of an entry */
    int rows;                /* <= LANES; what is in the lanes of others means nothing */
    const float *x[LANES];   /* the scores, -inf where an entry takes no part */
    float *p[LANES];         /* where probabilities go; a row that needs a copy is copied there */
    const char *next[LANES]; /* about where the same row of the next group is */
    uint32_t unsound;        /* rows that cannot be normalized, as bits */
    double parameter;        /* of all rows, unless `parameters`, which may be NULL, has each row's */
    const double *parameters;
    /* Of the entries of each row that take part; the sum only if it was asked for. */
    vf max;
    Sum sum, count;
} Group;

/* Statistics of one row, still spread over lanes. */
typedef struct {
    vf max, trace; /* trace is finite if all entries are (and if not, may be so) */
    Sum sum;
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

/* `x` is -inf where an entry takes no part, `zeroed` 0. */
INLINE void enter(Partial *part, int with_sum, vf x, vf zeroed) {
    part->max = larger(x, part->max);
    if (with_sum)
        sum_vector(&part->sum, zeroed);
    else
        part->trace += zeroed;
}

INLINE Partial read_plain(int with_sum, const float *x, int64_t n) {
    Partial part = {.max = splat(-INFINITY)};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) enter(&part, with_sum, load(x + j), load(x + j));
    if (j < n) {
        const vf last = load_tail(x, n, -INFINITY);
        enter(&part, with_sum, last, tail_in_place(last, n));
    }
    return part;
}

INLINE Partial read_masked(int with_sum, const float *x, const uint8_t *mask, int64_t n,
                           float *copy) {
    const vf nothing = splat(-INFINITY);
    Partial part = {.max = nothing};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        const vi valid = load_mask(mask + j);
        const vf v = load(x + j), kept = choose(valid, v, nothing);
        store(copy + j, kept);
        enter(&part, with_sum, kept, both(valid, v));
        part.count -= valid;
    }
    if (j < n) {
        const vi valid = load_mask_tail(mask, n), left = valid & tail_lanes(n);
        const vf v = load_tail(x, n, 0.0f), kept = choose(valid, v, nothing);
        store_tail(copy, n, kept);
        enter(&part, with_sum, kept, tail_in_place(both(valid, v), n));
        part.count -= left;
    }
    return part;
}

/* A row whose sum is not finite, or that is empty: leave its -inf out, and see whether a NaN or +inf
 * remains. */
static __attribute__((noinline)) void untangle(Group *g, int i) {
    const float *const x = g->x[i];
    Partial part = {.max = splat(-INFINITY)};
    vi poisoned = {0};
    for (int64_t j = 0; j < g->n; j += LANES) {
        const vf v = load_up_to(x + j, g->n - j, -INFINITY);
        const vi valid = v != splat(-INFINITY);
        enter(&part, 1, v, both(valid, v));
        part.count -= valid;
        poisoned |= ~(v < splat(INFINITY));
    }
    const Sum counts = in_double(__builtin_convertvector(part.count, vf));
    const double count = sum_total(&counts);
    g->max[i] = largest_lane(part.max)[0];
    set_lane(&g->sum, i, sum_total(&part.sum));
    set_lane(&g->count, i, count);
    if (bits_of(poisoned) || count == 0) g->unsound |= 1u << i;
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" /* counts are set and read with a mask only */
#endif

/* The next `rows` rows at the cursor, of which `first` is the first; `copies` holds `room` floats
 * for each row that is not float32. */
INLINE void read_group(Group *g, int with_sum, const RowsForward *task, Cursor *at, int64_t first,
                       int rows, float *copies, int64_t room) {
    const int64_t n = task->columns;
    vf max[LANES], trace[LANES];
    vd sum[LANES], count[LANES];
    for (int i = rows; i < LANES; i++) {
        max[i] = trace[i] = (vf){0};
        sum[i] = count[i] = (vd){0};
    }
    g->n = n;
    g->rows = rows;
    g->unsound = 0;
    g->bytes = task->dtype == FLOAT32 ? 4 : 2;
    g->parameter = task->parameter;
    g->parameters = task->parameters ? task->parameters + first : NULL;
    for (int i = 0; i < rows; i++, cursor_next(at)) {
        const float *x = (const float *)task->scores + at->scores;
        g->p[i] = (float *)task->probabilities + (first + i) * n;
        g->next[i] = (const char *)task->scores + (at->scores + rows * n) * g->bytes;
        if (task->dtype != FLOAT32) {
            x = g->p[i] = copies + i * room;
            widen(g->p[i], task->scores, at->scores, n, task->dtype);
        }
        Partial part;
        if (task->mask) {
            part = read_masked(with_sum, x, task->mask + at->mask, n, g->p[i]);
            const Sum counts = in_double(__builtin_convertvector(part.count, vf));
            count[i] = counts.low + counts.high;
        } else {
            part = read_plain(with_sum, x, n);
        }
        g->x[i] = task->mask ? g->p[i] : x;
        max[i] = part.max;
        trace[i] = part.trace;
        sum[i] = part.sum.low + part.sum.high;
    }
    const vd all = (double)n - (vd){0};
    g->max = largest_rows(max);
    g->sum = with_sum ? sum_rows_double(sum) : in_double(sum_rows(trace));
    g->count = task->mask ? sum_rows_double(count) : (Sum){all, all};
    /* Floats that are finite have a finite sum in double, and what is not times 0 is NaN. */
    const vf sound = in_float((Sum){g->sum.low * 0, g->sum.high * 0});
    const vi nothing = in_float(g->count) == splat(0.0f);
    const uint32_t suspects = bits_of(~(sound == splat(0.0f)) | nothing);
    for (int i = 0; suspects && i < rows; i++)
        if (suspects >> i & 1) untangle(g, i);
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

/* Whether row i cannot be normalized; if so its result is written: NaN where an entry takes part, 0
 * elsewhere, and so everywhere in an empty row. `support` is NULL or of this row. */
INLINE int is_unsound(const Group *g, int i, uint8_t *support) {
    if (!(g->unsound >> i & 1)) return 0;
    for (int64_t j = 0; j < g->n; j++) g->p[i][j] = g->x[i][j] == -INFINITY ? 0.0f : NAN;
    if (support) memset(support, 0, (size_t)g->n);
    return 1;
}

/* While a row is written, that of the next group can come: the processor would not look so far
 * ahead by itself. An address beyond the tensor, or between strided rows, does nothing. */
INLINE void fetch_next(const Group *g, int i) {
    for (int64_t k = 0; g->rows > 1 && k < g->n * g->bytes; k += 64)
        __builtin_prefetch(g->next[i] + k);
}
