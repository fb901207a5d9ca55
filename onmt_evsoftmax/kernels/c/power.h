/* Logarithms and powers in float32 vectors, and alpha-entmax's equation with them: part of
 * `variant.h`.
 *
 * alpha-entmax of a row with largest score m is p_j = w_j / W, w_j = v_j^b, W = sum_j w_j, with
 * gap = alpha - 1, b = 1 / gap and v_j = 1 + gap (x_j - m) / c, nothing where v_j <= 0. The number c
 * in (0, 1] is the root of c = W^-gap. Written so, nothing cancels as alpha comes near 1, where v^b
 * turns into exp(x - m).
 */

/* log(2^k (1 + f)) for 1/sqrt 2 <= 1 + f < sqrt 2; log(1 + f) by a degree-9 minimax polynomial of
 * relative error 4e-8. */
INLINE vf log_of_parts(vi k, vf f) {
    const vf f2 = f * f;
    const vf c01 = f * splat(-0x1.000494p-2f) + splat(0x1.5556b6p-2f);
    const vf c23 = f * splat(-0x1.5343b0p-3f) + splat(0x1.98e422p-3f);
    const vf c45 = f * splat(-0x1.25e3fap-3f) + splat(0x1.30aec8p-3f);
    const vf c456 = f2 * splat(0x1.6d413ap-4f) + c45;
    const vf poly = (c456 * f2 + c23) * f2 + c01;
    const vf log_f = f - f2 * (splat(0.5f) - f * poly);
    return __builtin_convertvector(k, vf) * splat(0x1.62e43p-1f) + log_f;
}

/* The exponent k of 2 that leaves a number of these bits near 1, and those bits without it; unsigned,
 * since the bits of a number that means nothing may overflow. */
INLINE vi exponent_of(vi bits) { return (vi)((vu)bits - 0x3f3504f3u) >> 23; }
INLINE vf near_one(vi bits, vi k) { return as_float((vi)((vu)bits - ((vu)k << 23))); }

/* log(x) for normal positive x. */
INLINE vf log_positive(vf x) {
    const vi k = exponent_of(as_int(x));
    return log_of_parts(k, near_one(as_int(x), k) - 1.0f);
}

/* log(1 + z) for -1 < z <= 0 to float32's precision relative to the result; elsewhere anything.
 * Near 0, where 1 + z is rounded, f is z itself. */
INLINE vf log_one_plus(vf z) {
    const vi bits = as_int(z + 1.0f), k = exponent_of(bits);
    return log_of_parts(k, choose(k == 0, z, near_one(bits, k) - 1.0f));
}

/* (1 + z)^b and, to `quotient`, (1 + z)^(b - 1), for b >= 1; both 0 where 1 + z <= 0 or they
 * underflow. */
INLINE vf power(vf z, vf b_less_1, vf *quotient) {
    const vf exponent = log_one_plus(z) * b_less_1;
    const vi live = (z > splat(-1.0f)) & (exponent >= splat(UNDERFLOW));
    *quotient = both(live, exp_nonpositive(exponent));
    return both(live, *quotient * (z + 1.0f));
}

/* ------------------------------------------------------------------------------------ the root c */

/* Newton on the norm (sum u^b)^(1/b), u = c v, which is convex in c, close to linear and at least as
 * steep as c itself: it comes down to the root from above, and from below jumps no farther than to
 * 1. It ends when a step is so small that the next would change nothing; near alpha = 2 only an
 * unchanged support ends it.
 *
 * A row has the same c, to the last bit, alone and among others: sums are taken in LANES parts,
 * entry j in part j % LANES, and these added up in the order of `sum_everywhere`; a row that is done
 * stays as it is while others go on. */
#define ALPHA_PASSES 48

/* Where c lies for usual scores, which saves a pass. */
INLINE vf alpha_start(vf gap) { return 1.0f - 0.45f * gap / (gap + 0.2f); }

INLINE vf alpha_step(vf c, vf total, vf quotients, vf gap) {
    const vf shrunk = exp_nonpositive(log_positive(total) * -gap); /* W^-gap */
    return (c - shrunk) * total / quotients;
}

INLINE vi alpha_goes_on(vf step, vf c, vf gap) {
    const vf tolerance = choose(gap > splat(0.7f), splat(1e-6f), splat(3e-4f));
    return choose(step < splat(0.0f), -step, step) > tolerance * c;
}

/* Of one row, in every lane: `d` has x - m of its candidates in whole vectors, -inf behind them. */
static vf row_alpha(const float *d, int64_t vectors, vf gap) {
    const vf b = 1.0f / gap - 1.0f;
    vf c = alpha_start(gap);
    for (int pass = 0; pass < ALPHA_PASSES; pass++) {
        const vf rate = gap / c;
        vf total = {0}, quotients = {0};
        for (int64_t v = 0; v < vectors; v += 64) { /* a long row in two stages: float32 rounds */
            vf part[2] = {{0}, {0}};
            for (int64_t w = v; w < vectors && w < v + 64; w++) {
                vf q;
                part[0] += power(load(d + w * LANES) * rate, b, &q);
                part[1] += q;
            }
            total += part[0];
            quotients += part[1];
        }
        const vf step = alpha_step(c, sum_everywhere(total), sum_everywhere(quotients), gap);
        c -= step;
        if (!bits_of(alpha_goes_on(step, c, gap))) break;
    }
    return c;
}

/* The sum of LANES parts, in the order of `sum_everywhere`. */
INLINE vf sum_parts(vf part[LANES]) {
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++) part[k] += part[k + half];
    return part[0];
}

/* Of LANES rows, each in its lane; whole vectors of candidates, -inf behind the last of a row. */
static vf tile_alpha(const Tile *t, vf gap) {
    const vf b = 1.0f / gap - 1.0f;
    vf c = alpha_start(gap);
    vi going = (vi){0} - 1;
    for (int pass = 0; pass < ALPHA_PASSES; pass++) {
        const vf rate = gap / c;
        vf total[LANES] = {{0}}, quotients[LANES] = {{0}};
        for (int64_t j = 0; j < t->n; j += LANES)
            for (int k = 0; k < LANES; k++) {
                vf q;
                total[k] += power(t->d[j + k] * rate, b, &q);
                quotients[k] += q;
            }
        const vf step = alpha_step(c, sum_parts(total), sum_parts(quotients), gap);
        c = choose(going, c - step, c);
        going &= alpha_goes_on(step, c, gap);
        if (!bits_of(going)) break;
    }
    return c;
}

/* Weights w of `count` candidates x - m, in place; returns W. */
INLINE double alpha_weights(float *d, int64_t count, vf gap, vf c) {
    const vf rate = gap / c, b = 1.0f / gap - 1.0f;
    Sum total = {{0}, {0}};
    for (int64_t k = 0; k < count; k += LANES) {
        vf quotient;
        const vf w = power(load(d + k) * rate, b, &quotient);
        store(d + k, w);
        sum_vector(&total, w);
    }
    return sum_total(&total);
}

/* --------------------------------------------------------------------------- derivative to alpha */

/* -p d(log w)/d(alpha) beside a change of c, from p, log p and the slope p^(2 - alpha):
 * p log(p)^2 (e^t - 1 - t) / t^2 with t = -gap log p, and p e^t is the slope. */
INLINE vf alpha_change(vf p, vf log_p, vf slope, vf gap) {
    const vf t = -gap * log_p;
    vf series = splat(1.0f / 40320);
    static const float term[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f};
    for (int n = 0; n < 6; n++) series = series * t + term[n];
    return choose(t < splat(0.5f), p * log_p * log_p * series,
                  (slope - p - p * t) / (gap * gap));
}
