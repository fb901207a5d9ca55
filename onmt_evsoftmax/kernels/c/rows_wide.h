/* sparsemax and entmax-1.5 of wide rows, one at a time: part of `rows.h`. */

/* factor (x - max), as every pass has it; halving is exact. */
INLINE vf centered(vf x, float max, float factor) { return x * factor - splat(max * factor); }

/* Write factor (x - max) of every entry that is above -1 to `d`, closing the gaps, then -inf up to a
 * whole vector; return the number of vectors. Entries below cannot be in the support. */
INLINE int64_t candidates(const Row *row, float *d, float factor) {
    int64_t j = 0, found = 0;
    for (; j + LANES <= row->n; j += LANES) {
        const vf x = centered(load(row->x + j), row->max, factor);
        found += compress(d + found, NULL, x, x > splat(-1.0f), 0);
    }
    if (j < row->n) {
        const vf x = load_first(row->x + j, (int)(row->n - j), -INFINITY);
        store(d + found, centered(x, row->max, factor));
        found += row->n - j;
    }
    store(d + found, splat(-INFINITY));
    return (found + LANES - 1) / LANES;
}

/* The tau with sum(max(d - tau, 0)) = 1, to double precision. Supports shrink from pass to pass
 * (Michelot), so an unchanged count means an unchanged support, whose tau has a closed form. */
INLINE double sparsemax_tau(const float *d, int64_t vectors) {
    double tau = -1;
    for (int64_t before = INT64_MAX;;) {
        const vf bar = splat((float)tau);
        Sum sum = {{0}, {0}};
        vi count = {0};
        for (int64_t v = 0; v < vectors; v++) {
            const vf x = load(d + v * LANES);
            const vi above = x > bar;
            sum_vector(&sum, both(above, x));
            count -= above;
        }
        int64_t now = 0;
        for (int i = 0; i < LANES; i++) now += count[i];
        if (now >= before) return tau;
        before = now;
        tau = (sum_total(&sum) - 1) / (double)now;
    }
}

/* The tau with sum(max(z - tau, 0)^2) = 1. Newton on the root of that sum, a norm and so convex
 * and decreasing, climbs to tau from below without overshooting; the last support then gives tau in
 * closed form, in double. */
INLINE double entmax15_tau(const float *z, int64_t vectors) {
    vf bar = splat(-1.0f);
    for (int pass = 0; pass < 64; pass++) {
        vf square = {0}, linear = {0};
        for (int64_t v = 0; v < vectors; v++) {
            const vf above = larger(load(z + v * LANES) - bar, splat(0.0f));
            square += above * above;
            linear += above;
        }
        const vf norm = square_root(sum_everywhere(square));
        const vf step = (norm - 1.0f) * norm / sum_everywhere(linear);
        bar += step;
        if (!(step[0] > 1e-5f)) break;
    }
    Sum sum = {{0}, {0}}, squares = {{0}, {0}};
    vi count = {0};
    for (int64_t v = 0; v < vectors; v++) {
        const vf x = load(z + v * LANES);
        const vi above = x > bar;
        sum_square(&sum, &squares, both(above, x));
        count -= above;
    }
    double k = 0;
    for (int i = 0; i < LANES; i++) k += count[i];
    const double mean = sum_total(&sum) / k;
    const double room = (1 - (sum_total(&squares) - k * mean * mean)) / k;
    return mean - (room > 0 ? sqrt(room) : 0);
}

/* p = max(factor (x - max) - tau, 0), squared for entmax-1.5. tau is subtracted in two float32
 * parts, so that a probability is good to its own last bits, not to those of the scores. */
INLINE void projection(const Row *row, float *p, double tau, float factor, int square) {
    const float head = (float)tau, tail = (float)(tau - head);
    const vf zero = splat(0.0f);
    int64_t j = 0;
    for (; j + LANES <= row->n; j += LANES) {
        const vf x = centered(load(row->x + j), row->max, factor);
        const vf u = larger((x - head) - tail, zero);
        store(p + j, square ? u * u : u);
    }
    if (j < row->n) {
        const int rest = (int)(row->n - j);
        const vf x = centered(load_first(row->x + j, rest, -INFINITY), row->max, factor);
        const vf u = larger((x - head) - tail, zero);
        store_first(p + j, square ? u * u : u, rest);
    }
}

static void sparsemax_row(const Row *row, float *p, uint8_t *support, float *work) {
    const int64_t vectors = candidates(row, work, 1.0f);
    const double tau = sparsemax_tau(work, vectors);
    projection(row, p, tau, 1.0f, 0);
    if (support)
        for (int64_t j = 0; j < row->n; j++) support[j] = p[j] > 0;
}

static void entmax15_row(const Row *row, float *p, uint8_t *support, float *work) {
    const int64_t vectors = candidates(row, work, 0.5f);
    const double tau = entmax15_tau(work, vectors);
    projection(row, p, tau, 0.5f, 1);
    if (support)
        for (int64_t j = 0; j < row->n; j++)
            support[j] = (double)((row->x[j] - row->max) * 0.5f) > tau;
}
