/* sparsemax and entmax-1.5 of a group of rows, forward: part of `rows.h`.
 *
 * Both are max(d - tau, 0), entmax-1.5 squared, of d = x - max or its half, with the tau that makes
 * the sum 1. Entries of d up to -1 cannot be in the support. The others, as a rule few, are taken
 * together to find tau, for all rows of a group at once: d[j] of every row in its lane.
 */

/* factor (x - max), as every pass has it; halving is exact. */
INLINE vf centered(vf x, vf max, float factor) { return x * factor - max * factor; }

/* Write the candidates of a row to `d`, closing the gaps, then -inf up to a whole vector; return
 * how many. */
INLINE int64_t gather(const float *x, int64_t n, vf max, float factor, float *d) {
    int64_t j = 0, found = 0;
    for (; j + LANES <= n; j += LANES) {
        const vf c = centered(load(x + j), max, factor);
        found += compress(d + found, NULL, c, c > splat(-1.0f), 0);
    }
    if (j < n) {
        const vf c = centered(load_tail(x, n, -INFINITY), max, factor);
        found += compress(d + found, NULL, c, (c > splat(-1.0f)) & tail_lanes(n), 0);
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

/* Supports shrink from pass to pass (Michelot), so an unchanged count means an unchanged support,
 * whose tau has a closed form. A row that is done keeps its support while others go on; one without
 * candidates gets a tau that no entry exceeds. */
INLINE Sum tile_sparsemax(const Tile *t) {
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

/* The tau of a support of k entries with this sum and sum of squares. */
INLINE vd entmax15_closed(vd sum, vd squares, vd k) {
    const vd mean = sum / k, room = (1 - (squares - mean * sum)) / k;
    vd tau;
    for (int i = 0; i < LANES / 2; i++) tau[i] = mean[i] - (room[i] > 0 ? sqrt(room[i]) : 0);
    return tau;
}

/* Newton on the root of the sum, a norm and so convex and decreasing, climbs to tau from below
 * without overshooting; the last support then gives tau in closed form, in double. */
INLINE Sum tile_entmax15(const Tile *t) {
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

/* --------------------------------------------------------------------------------- a row alone */

/* See `tile_sparsemax`. */
static double row_sparsemax(const float *d, int64_t vectors) {
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

/* See `tile_entmax15`. */
static double row_entmax15(const float *d, int64_t vectors) {
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
 * LANES if they may go together. */
INLINE void projection_group(const Group *g, int normalizer, uint8_t *support, float *candidates,
                             int64_t room) {
    const int64_t n = g->n;
    const float factor = normalizer == SPARSEMAX ? 1.0f : 0.5f;
    float max[LANES], head[LANES], tail[LANES];
    store(max, g->max);
    int64_t found[LANES] = {0}, most = 0;
    for (int i = 0; i < g->rows; i++) {
        if (g->unsound >> i & 1) continue;
        found[i] = gather(g->x[i], n, splat(max[i]), factor, candidates + i * room);
        most = found[i] > most ? found[i] : most;
    }
    if (n <= FORWARD_TOGETHER) {
        Tile t;
        t.n = (most + LANES - 1) / LANES * LANES;
        read_tile(&t, candidates, room, found);
        const Sum tau = normalizer == SPARSEMAX ? tile_sparsemax(&t) : tile_entmax15(&t);
        const vf near = in_float(tau);
        const Sum rounded = in_double(near);
        store(head, near);
        store(tail, in_float((Sum){tau.low - rounded.low, tau.high - rounded.high}));
    } else {
        for (int i = 0; i < g->rows; i++) {
            if (g->unsound >> i & 1) continue;
            const int64_t vectors = (found[i] + LANES - 1) / LANES;
            const float *const d = candidates + i * room;
            const double tau = normalizer == SPARSEMAX ? row_sparsemax(d, vectors)
                                                       : row_entmax15(d, vectors);
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
