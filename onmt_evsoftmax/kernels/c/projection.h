/* What sparsemax and entmax-1.5 share, forward: part of `rows.h`.
 *
 * Both are max(d - tau, 0), entmax-1.5 squared, of d = x - max or its half, with the tau that makes
 * the sum 1. Entries of d up to -1 cannot be in the support. The others, as a rule few, are taken
 * together to find tau, for all rows of a group at once: d[j] of every row in its lane.
 */

/* factor (x - max), as every pass has it; halving is exact. */
INLINE vf centered(vf x, vf max, float factor) { return x * factor - max * factor; }

/* Write the candidates of a row, those above `bar` once centered, to `d`, closing the gaps, then -inf
 * up to a whole vector; return how many. */
INLINE int64_t gather(const float *x, int64_t n, vf max, float factor, float bar, float *d) {
    int64_t j = 0, found = 0;
    for (; j + LANES <= n; j += LANES) {
        const vf c = centered(load(x + j), max, factor);
        found += compress(d + found, NULL, c, c > splat(bar), 0);
    }
    if (j < n) {
        const vf c = centered(load_tail(x, n, -INFINITY), max, factor);
        found += compress(d + found, NULL, c, (c > splat(bar)) & tail_lanes(n), 0);
    }
    store(d + found, splat(-INFINITY));
    return found;
}

/* ------------------------------------------------------------------------------ rows together */

typedef struct {
    int64_t n; /* a multiple of LANES */
    vf d[FORWARD_TOGETHER + LANES];
} Tile;

INLINE void read_tile(Tile *t, const float *d, int64_t room, const int64_t found[LANES]) {
    for (int64_t j = 0; j < t->n; j += LANES) {
        vf v[LANES];
        for (int i = 0; i < LANES; i++) {
            const vi real = first_lanes((int)(found[i] - j));
            v[i] = choose(real, load(d + i * room + j), splat(-INFINITY));
        }
        transpose(v);
        for (int i = 0; i < LANES; i++) t->d[j + i] = v[i];
    }
}

/* -------------------------------------------------------------------------------------- result */

/* max(factor (x - max) - tau, 0). tau is subtracted in two float32 parts, so that a probability is
 * good to its own last bits, not to those of the scores. */
INLINE vf above(vf x, vf max, float factor, float head, float tail) {
    return larger((centered(x, max, factor) - head) - tail, splat(0.0f));
}

/* The probabilities of a row, to p, which may be x. */
INLINE void project(const float *x, float *p, int64_t n, vf max, float factor, float head,
                    float tail) {
    const int square = factor != 1.0f;
    vf last = {0};
    if (n % LANES) last = above(load_tail(x, n, -INFINITY), max, factor, head, tail);
    for (int64_t j = 0; j + LANES <= n; j += LANES) {
        const vf u = above(load(x + j), max, factor, head, tail);
        store(p + j, square ? u * u : u);
    }
    if (n % LANES) store_tail(p, n, square ? last * last : last);
}

/* `support` is NULL or of the first row; `candidates` holds `room` floats for each row, or for
 * LANES if they may go together. `tile_tau` and `row_tau` find tau, for rows together and for one
 * row alone of `vectors` vectors. */
INLINE void projection_group(const Group *g, float factor, Sum tile_tau(const Tile *),
                             double row_tau(const float *, int64_t), uint8_t *support,
                             float *candidates, int64_t room) {
    const int64_t n = g->n;
    float max[LANES], head[LANES], tail[LANES];
    store(max, g->max);
    int64_t found[LANES] = {0}, most = 0;
    for (int i = 0; i < g->rows; i++) {
        if (g->unsound >> i & 1) continue;
        found[i] = gather(g->x[i], n, splat(max[i]), factor, -1.0f, candidates + i * room);
        most = found[i] > most ? found[i] : most;
    }
    if (n <= FORWARD_TOGETHER) {
        Tile t;
        t.n = (most + LANES - 1) / LANES * LANES;
        read_tile(&t, candidates, room, found);
        const Sum tau = tile_tau(&t);
        const vf near = in_float(tau);
        const Sum rounded = in_double(near);
        store(head, near);
        store(tail, in_float((Sum){tau.low - rounded.low, tau.high - rounded.high}));
    } else {
        for (int i = 0; i < g->rows; i++) {
            if (g->unsound >> i & 1) continue;
            const int64_t vectors = (found[i] + LANES - 1) / LANES;
            const double tau = row_tau(candidates + i * room, vectors);
            head[i] = (float)tau;
            tail[i] = (float)(tau - head[i]);
        }
    }
    for (int i = 0; i < g->rows; i++) {
        uint8_t *const kept = support ? support + i * n : NULL;
        if (is_unsound(g, i, kept)) continue;
        /* Before the probabilities, which may overwrite the scores, and whose squares may be 0. */
        for (int64_t j = 0; kept && j < n; j++)
            kept[j] = ((g->x[i][j] * factor - max[i] * factor) - head[i]) - tail[i] > 0;
        fetch_next(g, i);
        project(g->x[i], g->p[i], n, splat(max[i]), factor, head[i], tail[i]);
    }
}
