/* sparsemax: the Euclidean projection onto the simplex, max(x - tau, 0). See `normalizers.h` and `projection.h`. */

enum {
    sparsemax_needs_sum = 0, sparsemax_needs_room = 1, sparsemax_unit_slopes = 0, sparsemax_keeps_equal = 0,
};

#define sparsemax_range {0, 0}

#if defined(LANES)

/* Supports shrink from pass to pass (Michelot), so an unchanged count means an unchanged support,
 * whose tau has a closed form. A row that is done keeps its support while others go on; one without
 * candidates gets a tau that no entry exceeds. */
INLINE Sum sparsemax_tile_tau(const Tile *t) {
    Sum tau;
    vf bar = splat(-1.0f);
    for (vi before = {0};;) {
        vi count = {0};
        Sum sum = {{0}, {0}};
        for (int64_t j = 0; j < t->n; j++) {
            const vi above = t->d[j] > bar;
            sum_vector(&sum, both(above, t->d[j]));
            count -= above;
        }
        const Sum k = in_double(__builtin_convertvector(count, vf));
        tau.low = (sum.low - 1) / k.low;
        tau.high = (sum.high - 1) / k.high;
        if (bits_of(count != before) == 0) return tau;
        before = count;
        /* Never lower: an entry at tau, rounded, would leave the support and come back for ever. */
        bar = larger(in_float(tau), bar);
    }
}

/* See `sparsemax_tile_tau`. */
static double sparsemax_row_tau(const float *d, int64_t vectors) {
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

INLINE void sparsemax_group(const Group *g, uint8_t *support, float *candidates, int64_t room) {
    projection_group(g, 1.0f, sparsemax_tile_tau, sparsemax_row_tau, support, candidates, room);
}

/* 1 where p > 0, else 0; of NaN, NaN. */
INLINE vf sparsemax_slope(vf p) { return both(p > splat(0.0f), splat(1.0f)) + p * 0.0f; }

#define sparsemax_reach 1.0f
INLINE vf sparsemax_projected(vf u) { return u; }
INLINE vf sparsemax_projected_slope(vf u) { return u * 0.0f + 1.0f; }

#else /* float64 */

/* Supports shrink from pass to pass, so an unchanged count means an unchanged support. */
static inline double sparsemax_row(const double *x, const uint8_t *mask, int64_t n, double max,
                                   double parameter, double *p) {
    (void)parameter;
    double tau = -1;
    for (int64_t before = INT64_MAX;;) {
        double sum = 0;
        int64_t count = 0;
        for (int64_t j = 0; j < n; j++) {
            if (!takes_part(x, mask, j) || !(x[j] - max > tau)) continue;
            sum += x[j] - max;
            count++;
        }
        if (count >= before) break;
        before = count;
        tau = (sum - 1) / (double)count;
    }
    for (int64_t j = 0; j < n; j++) p[j] = takes_part(x, mask, j) ? fmax(x[j] - max - tau, 0) : 0;
    return tau;
}

static inline double sparsemax_slope(double p, double parameter) {
    (void)parameter;
    return p > 0 ? 1 : p;
}

#endif
