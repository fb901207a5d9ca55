/* ev-softmax: (1{x >= mean} + eps) exp(x), divided by its sum. See `normalizers.h`. */

enum {
    evsoftmax_needs_sum = 1, evsoftmax_needs_room = 0, evsoftmax_unit_slopes = 1,
    evsoftmax_keeps_equal = 1,
};

/* eps is multiplied with in float32, and a long row added up: neither denormal nor infinite. */
#define evsoftmax_range {FLT_MIN, 1e30}

#if defined(LANES)

/* (1{x >= bar} + eps) exp(x - max), where neither is lost to underflow. With eps = 0 the caller
 * has raised the bar to `floor` where it was below. */
INLINE vf evidential_weight(vf x, vf max, vf bar, vf floor, float eps) {
    const vf w = exp_nonpositive(x - max);
    if (eps > 0) return both(x >= floor, w * choose(x >= bar, splat(1.0f + eps), splat(eps)));
    return both(x >= bar, w);
}

/* Writes the weights of n entries to e, which may be x; returns their sum, spread over lanes. */
INLINE vf evidential_weights(const float *x, float *e, int64_t n, vf max, vf bar, vf floor,
                             float eps) {
    vf sum = {0}, last = sum;
    if (n % LANES) last = evidential_weight(load_tail(x, n, -INFINITY), max, bar, floor, eps);
    for (int64_t j = 0; j + LANES <= n; j += LANES) {
        const vf w = evidential_weight(load(x + j), max, bar, floor, eps);
        store(e + j, w);
        sum += w;
    }
    if (n % LANES) {
        store_tail(e, n, last);
        sum += tail_in_place(last, n);
    }
    return sum;
}

INLINE void scale(float *e, int64_t n, float factor) {
    vf last = {0};
    if (n % LANES) last = load_tail(e, n, 0.0f) * factor;
    for (int64_t j = 0; j + LANES <= n; j += LANES) store(e + j, load(e + j) * factor);
    if (n % LANES) store_tail(e, n, last);
}

/* The least float32 that is not below each mean; see `round_up`. What rounding took away is scaled,
 * so that its sign survives in float32. */
INLINE vf round_each_up(Sum mean) {
    const vf near = in_float(mean);
    const Sum rounded = in_double(near);
    const vd low = (mean.low - rounded.low) * 0x1p60, high = (mean.high - rounded.high) * 0x1p60;
    return choose(in_float((Sum){low, high}) > splat(0.0f), next_up(near), near);
}

/* `support` is NULL or of the first row. */
INLINE void evsoftmax_weigh(const Group *g, float eps, uint8_t *support) {
    const int64_t n = g->n;
    const vf mean = round_each_up((Sum){g->sum.low / g->count.low, g->sum.high / g->count.high});
    /* A rounded mean can exceed every entry of a constant row. */
    const vf least = choose(mean < g->max, mean, g->max);
    const vf under = least_above_underflow(g->max);
    float max[LANES], threshold[LANES], floor[LANES], bar[LANES], factor[LANES];
    store(max, g->max);
    store(threshold, least);
    store(floor, under);
    store(bar, eps > 0 ? least : larger(least, under));
    /* The support first: weights may overwrite the scores. With eps, all that takes part is in. */
    for (int i = 0; support && i < g->rows; i++)
        for (int64_t j = 0; j < n; j++)
            support[i * n + j] = g->x[i][j] >= (eps > 0 ? -FLT_MAX : threshold[i]);
    Sum total = {{0}, {0}};
    for (int64_t j = 0; j < n; j += FLUSH) {
        vf sum[LANES];
        for (int i = 0; i < LANES; i++) {
            sum[i] = splat(1.0f);
            if (i >= g->rows || g->unsound >> i & 1) continue;
            if (j == 0) fetch_next(g, i);
            sum[i] = evidential_weights(g->x[i] + j, g->p[i] + j, n - j < FLUSH ? n - j : FLUSH,
                                        splat(max[i]), splat(bar[i]), splat(floor[i]), eps);
        }
        sum_vector(&total, sum_rows(sum));
    }
    store(factor, in_float((Sum){1.0 / total.low, 1.0 / total.high}));
    for (int i = 0; i < g->rows; i++)
        if (!is_unsound(g, i, support ? support + i * n : NULL)) scale(g->p[i], n, factor[i]);
}

INLINE void evsoftmax_group(const Group *g, uint8_t *support, float *candidates, int64_t room) {
    (void)candidates, (void)room;
    if (g->parameter > 0)
        evsoftmax_weigh(g, (float)g->parameter, support);
    else
        evsoftmax_weigh(g, 0.0f, support);
}

INLINE vf evsoftmax_slope(vf p) { return p; }

#else /* float64 */

static inline double evsoftmax_row(const double *x, const uint8_t *mask, int64_t n, double max,
                                   double eps, double *p) {
    /* Of x - max: an offset costs no precision, and equal scores have a mean of exactly 0. */
    double sum = 0, total = 0;
    int64_t count = 0;
    for (int64_t j = 0; j < n; j++) {
        if (!takes_part(x, mask, j)) continue;
        sum += x[j] - max;
        count++;
    }
    const double mean = sum / (double)count;
    for (int64_t j = 0; j < n; j++) {
        p[j] = takes_part(x, mask, j) ? ((x[j] - max >= mean) + eps) * exp(x[j] - max) : 0;
        total += p[j];
    }
    for (int64_t j = 0; j < n; j++) p[j] /= total;
    return eps > 0 ? -DBL_MAX : mean; /* every entry that takes part has weight eps at least */
}

static inline double evsoftmax_slope(double p, double parameter) {
    (void)parameter;
    return p;
}

#endif
