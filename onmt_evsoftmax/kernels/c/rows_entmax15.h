/* entmax-1.5: max(x / 2 - tau, 0) squared. See `normalizers.h` and `projection.h`. */

enum {
    entmax15_needs_sum = 0, entmax15_needs_room = 1, entmax15_unit_slopes = 0, entmax15_keeps_equal = 0,
};

#define entmax15_range {0, 0}

#if defined(LANES)

/* The tau of a support of k entries with this sum and sum of squares. */
INLINE vd entmax15_closed(vd sum, vd squares, vd k) {
    const vd mean = sum / k, room = (1 - (squares - mean * sum)) / k;
    vd tau;
    for (int i = 0; i < LANES / 2; i++) tau[i] = mean[i] - (room[i] > 0 ? sqrt(room[i]) : 0);
    return tau;
}

/* Newton on the root of the sum, a norm and so convex and decreasing, climbs to tau from below
 * without overshooting; the last support then gives tau in closed form, in double. */
INLINE Sum entmax15_tile_tau(const Tile *t) {
    const vf zero = splat(0.0f);
    vf bar = splat(-1.0f);
    for (int pass = 0; pass < 64; pass++) {
        vf square[2] = {zero, zero}, linear[2] = {zero, zero};
        for (int64_t j = 0; j < t->n; j += 2)
            for (int k = 0; k < 2; k++) {
                const vf above = larger(t->d[j + k] - bar, zero);
                square[k] += above * above;
                linear[k] += above;
            }
        const vf norm = square_root(square[0] + square[1]);
        const vf step = (norm - 1.0f) * norm / (linear[0] + linear[1]);
        bar += step;
        if (bits_of(step > splat(1e-5f)) == 0) break;
    }
    Sum sum = {{0}, {0}}, squares = {{0}, {0}};
    vi count = {0};
    for (int64_t j = 0; j < t->n; j++) {
        const vi above = t->d[j] > bar;
        sum_square(&sum, &squares, both(above, t->d[j]));
        count -= above;
    }
    const Sum k = in_double(__builtin_convertvector(count, vf));
    return (Sum){entmax15_closed(sum.low, squares.low, k.low),
                 entmax15_closed(sum.high, squares.high, k.high)};
}

/* See `entmax15_tile_tau`. */
static double entmax15_row_tau(const float *d, int64_t vectors) {
    vf bar = splat(-1.0f);
    for (int pass = 0; pass < 64; pass++) {
        vf square = {0}, linear = {0};
        for (int64_t v = 0; v < vectors; v++) {
            const vf above = larger(load(d + v * LANES) - bar, splat(0.0f));
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
        const vf x = load(d + v * LANES);
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

INLINE void entmax15_group(const Group *g, uint8_t *support, float *candidates, int64_t room) {
    projection_group(g, 0.5f, entmax15_tile_tau, entmax15_row_tau, support, candidates, room);
}

INLINE vf entmax15_slope(vf p) { return square_root(p); }

#define entmax15_reach 2.0f
INLINE vf entmax15_projected(vf u) { return u * u; }
INLINE vf entmax15_projected_slope(vf u) { return u; }

#else /* float64 */

/* Newton on the norm of max(z - tau, 0), z = (x - max) / 2, climbs to tau from below. */
static inline double entmax15_row(const double *x, const uint8_t *mask, int64_t n, double max,
                                  double parameter, double *p) {
    (void)parameter;
    double tau = -1;
    for (int pass = 0; pass < 100; pass++) {
        double square = 0, linear = 0;
        for (int64_t j = 0; j < n; j++) {
            const double u = takes_part(x, mask, j) ? fmax((x[j] - max) / 2 - tau, 0) : 0;
            square += u * u;
            linear += u;
        }
        const double norm = sqrt(square), step = (norm - 1) * norm / linear;
        tau += step;
        if (!(step > 1e-16)) break;
    }
    for (int64_t j = 0; j < n; j++) {
        const double u = takes_part(x, mask, j) ? fmax((x[j] - max) / 2 - tau, 0) : 0;
        p[j] = u * u;
    }
    return 2 * tau;
}

static inline double entmax15_slope(double p, double parameter) {
    (void)parameter;
    return sqrt(p);
}

#endif
