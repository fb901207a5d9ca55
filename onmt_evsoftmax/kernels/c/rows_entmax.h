/* alpha-entmax for 1 < alpha <= 2, which every row may have of its own: (1 + gap (x - m) / c)^(1/gap)
 * over its sum. See `normalizers.h` and `power.h`. */

enum {
    entmax_needs_sum = 0, entmax_needs_room = 1, entmax_unit_slopes = 0, entmax_keeps_equal = 0,
};

#define entmax_range {1 + 0x1p-20, 2}

static inline double entmax_gap(double alpha) { return alpha == 0 ? 0.5 : alpha - 1; }

#if defined(LANES)
#include "power.h"

/* What was computed for the candidates of a row back in their places, and 0 elsewhere; see `gather`.
 * `p` may be x. */
INLINE void spread(const float *x, int64_t n, vf max, float bar, const float *list, float *p) {
    for (int64_t j = 0; j < n; j += LANES) {
        const vf v = load_up_to(x + j, n - j, -INFINITY);
        const vi kept = v - max > splat(bar);
        const vf result = expand(list, kept);
        list += __builtin_popcount(bits_of(kept));
        store_up_to(p + j, result, n - j);
    }
}

INLINE void entmax_group(const Group *g, uint8_t *support, float *candidates, int64_t room) {
    const int64_t n = g->n;
    float max[LANES], gap[LANES], root[LANES];
    int64_t found[LANES] = {0}, most = 0;
    store(max, g->max);
    for (int i = 0; i < LANES; i++) {
        gap[i] = 1.0f;
        if (i >= g->rows || g->unsound >> i & 1) continue;
        gap[i] = (float)entmax_gap(g->parameters ? g->parameters[i] : g->parameter);
        found[i] = gather(g->x[i], n, splat(max[i]), 1.0f, -1.0f / gap[i], candidates + i * room);
        most = found[i] > most ? found[i] : most;
    }
    if (n <= FORWARD_TOGETHER) {
        Tile t;
        t.n = (most + LANES - 1) / LANES * LANES;
        read_tile(&t, candidates, room, found);
        store(root, tile_alpha(&t, load(gap)));
    } else {
        for (int i = 0; i < g->rows; i++)
            root[i] = row_alpha(candidates + i * room, (found[i] + LANES - 1) / LANES,
                                splat(gap[i]))[0];
    }
    for (int i = 0; i < g->rows; i++) {
        uint8_t *const kept = support ? support + i * n : NULL;
        if (is_unsound(g, i, kept)) continue;
        const float rate = gap[i] / root[i];
        for (int64_t j = 0; kept && j < n; j++) kept[j] = (g->x[i][j] - max[i]) * rate > -1.0f;
        fetch_next(g, i);
        float *d = candidates + i * room;
        const float factor = (float)(1 / alpha_weights(d, found[i], splat(gap[i]), splat(root[i])));
        for (int64_t k = 0; k < found[i]; k += LANES) store(d + k, load(d + k) * factor);
        spread(g->x[i], n, splat(max[i]), -1.0f / gap[i], d, g->p[i]);
    }
}

/* Gradient of a row's scores to `out`, which may be `grad`, and of its alpha to `grad_alpha` unless
 * that is NULL, over the support alone. `lists` has three times `room` floats. */
INLINE void entmax_backward_row(const float *p, const float *grad, int64_t n, float gap, float *out,
                                double *grad_alpha, float *lists, int64_t room) {
    float *const listed = lists, *const g = lists + room, *const slope = lists + 2 * room;
    const vf zero = splat(0.0f), least = splat(0x1p-125f); /* denormals have no usual logarithm */
    int64_t found = 0;
    for (int64_t j = 0; j < n; j += LANES) {
        const vf v = load_up_to(p + j, n - j, 0.0f), w = load_up_to(grad + j, n - j, 0.0f);
        const vi kept = ~(v <= zero); /* a NaN is kept, and spreads */
        compress(listed + found, NULL, v, kept, 0);
        found += compress(g + found, NULL, w, kept, 0);
    }
    store(listed + found, zero);
    store(g + found, zero);
    Sum total = {{0}, {0}}, weighted = total;
    for (int64_t k = 0; k < found; k += LANES) {
        const vf q = load(listed + k), log_q = log_positive(larger(q, least));
        const vf s = both(~(q <= zero), exp_nonpositive(log_q * (1.0f - gap)) + q * 0.0f);
        store(slope + k, s);
        sum_vector(&total, s);
        sum_vector(&weighted, s * load(g + k));
    }
    const float mean = (float)(sum_total(&weighted) / (sum_total(&total) + DBL_MIN));
    Sum change = {{0}, {0}};
    for (int64_t k = 0; k < found; k += LANES) {
        const vf s = load(slope + k), away = load(g + k) - mean;
        if (grad_alpha) {
            const vf q = load(listed + k), log_q = log_positive(larger(q, least));
            sum_vector(&change, both(~(q <= zero), alpha_change(q, log_q, s, splat(gap)) * away));
        }
        store(slope + k, s * away);
    }
    if (grad_alpha) *grad_alpha = -sum_total(&change);
    for (int64_t j = 0, k = 0; j < n; j += LANES) {
        const vf v = load_up_to(p + j, n - j, 0.0f);
        const vi kept = ~(v <= zero);
        const vf result = expand(slope + k, kept);
        k += __builtin_popcount(bits_of(kept));
        store_up_to(out + j, result, n - j);
    }
}

#else /* float64 */

/* Newton comes down to c from 1; see `power.h`. */
static inline double entmax_row(const double *x, const uint8_t *mask, int64_t n, double max,
                                double alpha, double *p) {
    const double gap = entmax_gap(alpha), b = 1 / gap;
    double c = 1, total = 0;
    for (int pass = 0; pass < 100; pass++) {
        double quotients = 0;
        total = 0;
        for (int64_t j = 0; j < n; j++) {
            const double z = takes_part(x, mask, j) ? gap * (x[j] - max) / c : -1;
            const double q = z > -1 ? exp(log1p(z) * (b - 1)) : 0;
            p[j] = q * (1 + z);
            total += p[j];
            quotients += q;
        }
        const double step = (c - exp(-gap * log(total))) * total / quotients;
        if (!(fabs(step) > 1e-16 * c)) break;
        c -= step;
    }
    for (int64_t j = 0; j < n; j++) p[j] /= total;
    return -c / gap;
}

static inline double entmax_slope(double p, double alpha) {
    return p > 0 ? pow(p, 1 - entmax_gap(alpha)) : p;
}

/* See `alpha_change` in `power.h`. */
static inline double entmax_change(double p, double alpha) {
    const double gap = entmax_gap(alpha), log_p = log(p), t = -gap * log_p;
    if (!(p > 0)) return p;
    double series = 0, term = 1;
    if (t > 0.5) return p * (expm1(t) - t) / (gap * gap);
    for (int n = 2; n < 18; n++) {
        term /= n;
        series += term;
        term *= t;
    }
    return p * log_p * log_p * series;
}

#endif
