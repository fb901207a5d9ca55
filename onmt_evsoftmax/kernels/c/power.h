/* log and powers in float32 vectors, and alpha-entmax's equation with them: part of `variant.h`.
 *
 * alpha-entmax of a row with largest score m is p_j = w_j / W, w_j = v_j^b, W = sum_j w_j, with
 * b = 1 / (alpha - 1) and v_j = 1 + (alpha - 1) (x_j - m) / c, nothing where v_j <= 0. The number c
 * in (0, 1] is the root of c = W^-(alpha - 1). Written so, nothing cancels as alpha comes near 1,
 * where v^b turns into exp(x - m).
 */

/* log(1 + z) for -1 < z <= 0 to float32's precision relative to the result; elsewhere anything.
 * 1 + z = 2^k (1 + f) with 1/sqrt 2 <= 1 + f < sqrt 2; log(1 + f) by a degree-9 minimax polynomial
 * of relative error 4e-8. Near 0, where 1 + z is rounded, f is z itself. */
INLINE vf log_one_plus(vf z) {
    const vi bits = as_int(z + 1.0f);
    const vi k = (bits - 0x3f3504f3) >> 23;
    const vf f = choose(k == 0, z, as_float(bits - (k << 23)) - 1.0f);
    const vf f2 = f * f;
    const vf c01 = f * splat(-0x1.000494p-2f) + splat(0x1.5556b6p-2f);
    const vf c23 = f * splat(-0x1.5343b0p-3f) + splat(0x1.98e422p-3f);
    const vf c45 = f * splat(-0x1.25e3fap-3f) + splat(0x1.30aec8p-3f);
    const vf c456 = f2 * splat(0x1.6d413ap-4f) + c45;
    const vf poly = (c456 * f2 + c23) * f2 + c01;
    const vf log_f = f - f2 * (splat(0.5f) - f * poly);
    return __builtin_convertvector(k, vf) * splat(0x1.62e43p-1f) + log_f;
}

/* (1 + z)^b and, to `quotient`, (1 + z)^(b - 1), for b >= 1; both 0 where 1 + z <= 0 or they
 * underflow. */
INLINE vf power(vf z, vf b_less_1, vf *quotient) {
    const vf exponent = log_one_plus(z) * b_less_1;
    const vi live = (z > splat(-1.0f)) & (exponent >= splat(UNDERFLOW));
    *quotient = both(live, exp_nonpositive(exponent));
    return both(live, *quotient * (z + 1.0f));
}

/* W^-gap for W >= 1. */
INLINE vf shrunk(vf total, vf gap) {
    /* log W = -log(1 + (1/W - 1)); 1/W lies in (0, 1]. */
    return exp_nonpositive(log_one_plus(1.0f / total - 1.0f) * gap);
}

/* The c of one row, in every lane of the result: `d` has x - m of its candidates in whole vectors,
 * -inf behind the last. Newton on the norm (sum u^b)^(1/b), u = c v, which is convex in c and close
 * to linear, comes down to the root from 1. */
#define ALPHA_PASSES 48
INLINE vf alpha_step(vf c, vf total, vf quotients, vf gap) {
    return (c - shrunk(total, gap)) * total / quotients;
}

/* How small a step must be to be the last: near alpha = 2 only an unchanged support ends it. */
INLINE vf alpha_tolerance(vf gap) { return choose(gap > splat(0.7f), splat(1e-6f), splat(1e-4f)); }

static float row_alpha(const float *d, int64_t vectors, float gap) {
    const vf b = splat(1.0f / gap - 1.0f), tolerance = alpha_tolerance(splat(gap));
    vf c = splat(1.0f);
    for (int pass = 0; pass < ALPHA_PASSES; pass++) {
        const vf rate = splat(gap) / c;
        vf total = {0}, quotients = {0};
        for (int64_t v = 0; v < vectors; v++) {
            vf q;
            total += power(load(d + v * LANES) * rate, b, &q);
            quotients += q;
        }
        const vf step = alpha_step(c, sum_everywhere(total), sum_everywhere(quotients), splat(gap));
        c -= step;
        if (!(fabsf(step[0]) > tolerance[0] * c[0])) break;
    }
    return c[0];
}

/* The same for LANES rows, each in its lane. */
INLINE vf tile_alpha(const Tile *t, vf gap) {
    const vf b = 1.0f / gap - 1.0f, tolerance = alpha_tolerance(gap);
    vf c = splat(1.0f);
    for (int pass = 0; pass < ALPHA_PASSES; pass++) {
        const vf rate = gap / c;
        vf total[2] = {{0}, {0}}, quotients[2] = {{0}, {0}};
        for (int64_t j = 0; j < t->n; j += 2)
            for (int k = 0; k < 2; k++) {
                vf q;
                total[k] += power(t->d[j + k] * rate, b, &q);
                quotients[k] += q;
            }
        const vf step = alpha_step(c, total[0] + total[1], quotients[0] + quotients[1], gap);
        c -= step;
        const vf size = choose(step < splat(0.0f), -step, step);
        if (bits_of(size > tolerance * c) == 0) break;
    }
    return c;
}
