/* Narrow rows LANES at a time, one row per lane, forward: part of `rows.h`.
 *
 * In short rows the horizontal steps of a reduction cost more than its vertical ones, and finding
 * a threshold takes several. A block of rows is therefore transposed first: x[j] holds entry j of
 * every row, and each row's sums, maxima and thresholds sit in its own lane. Entries that take no
 * part are -inf.
 */

typedef struct {
    vf x[NARROW + LANES];
    int64_t n;
} Tile;

/* Rows starting at `row[i]`, in float32; `mask[i]` is NULL or the row's mask. */
INLINE void read_tile(Tile *t, const float *const row[LANES], const uint8_t *const mask[LANES]) {
    for (int64_t j = 0; j < t->n; j += LANES) {
        const int rest = (int)(t->n - j);
        vf v[LANES];
        for (int i = 0; i < LANES; i++) {
            if (rest >= LANES) {
                v[i] = load(row[i] + j);
                if (mask[0]) v[i] = choose(load_mask(mask[i] + j), v[i], splat(-INFINITY));
            } else {
                const vi valid = mask[0] ? load_mask_first(mask[i] + j, rest) : first_lanes(rest);
                v[i] = choose(valid, load_first(row[i] + j, rest, 0.0f), splat(-INFINITY));
            }
        }
        transpose(v);
        for (int i = 0; i < LANES; i++) t->x[j + i] = v[i];
    }
}

INLINE void write_tile(const Tile *t, float *p, int64_t stride, int rows) {
    for (int64_t j = 0; j < t->n; j += LANES) {
        const int rest = (int)(t->n - j);
        vf v[LANES];
        for (int i = 0; i < LANES; i++) v[i] = t->x[j + i];
        transpose(v);
        for (int i = 0; i < rows; i++) {
            if (rest >= LANES)
                store(p + i * stride + j, v[i]);
            else
                store_first(p + i * stride + j, v[i], rest);
        }
    }
}

/* What a normalizer finds out about the rows of a tile besides their probabilities. */
typedef struct {
    vi poisoned;     /* rows in which a NaN or +inf takes part */
    uint32_t *kept;  /* NULL, or for every column the set of rows that keep it, as bits */
} Finding;

/* x -> factor (x - max); in a row of nothing but -inf, NaN, which no comparison keeps. */
INLINE void narrow_center(Tile *t, float factor, Finding *found) {
    vf max = splat(-INFINITY);
    vi poisoned = {0};
    for (int64_t j = 0; j < t->n; j++) {
        max = larger(t->x[j], max);
        poisoned |= ~(t->x[j] < splat(INFINITY));
    }
    for (int64_t j = 0; j < t->n; j++) t->x[j] = (t->x[j] - max) * factor;
    found->poisoned = poisoned;
}

/* x -> max(x - tau, 0), squared for entmax-1.5. tau is subtracted in two float32 parts, so that a
 * probability is good to its own last bits, not to those of the scores. */
INLINE void narrow_projection(Tile *t, Sum tau, int square, Finding *found) {
    const vf head = in_float(tau), zero = splat(0.0f);
    const Sum rounded = in_double(head);
    const vf tail = in_float((Sum){tau.low - rounded.low, tau.high - rounded.high});
    for (int64_t j = 0; j < t->n; j++) {
        const vf u = larger((t->x[j] - head) - tail, zero);
        t->x[j] = square ? u * u : u;
        if (found->kept) found->kept[j] = bits_of(u > zero);
    }
}

/* See `sparsemax_tau`; a row that is done keeps its support while others go on. A row without
 * entries gets a tau that no entry exceeds. */
INLINE Sum narrow_sparsemax(const Tile *t) {
    Sum tau;
    vf bar = splat(-1.0f);
    for (vi before = {0};;) {
        vi count = {0};
        Sum sum = {{0}, {0}};
        for (int64_t j = 0; j < t->n; j++) {
            const vi above = t->x[j] > bar;
            sum_vector(&sum, both(above, t->x[j]));
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

/* See `entmax15_tau`. */
INLINE Sum narrow_entmax15(const Tile *t) {
    const vf zero = splat(0.0f);
    vf bar = splat(-1.0f);
    for (int pass = 0; pass < 64; pass++) {
        vf square = zero, linear = zero;
        for (int64_t j = 0; j < t->n; j++) {
            const vf above = larger(t->x[j] - bar, zero);
            square += above * above;
            linear += above;
        }
        const vf norm = square_root(square), step = (norm - 1.0f) * norm / linear;
        bar += step;
        if (bits_of(step > splat(1e-5f)) == 0) break;
    }
    Sum sum = {{0}, {0}}, squares = {{0}, {0}};
    vi count = {0};
    for (int64_t j = 0; j < t->n; j++) {
        const vi above = t->x[j] > bar;
        sum_square(&sum, &squares, both(above, t->x[j]));
        count -= above;
    }
    const Sum k = in_double(__builtin_convertvector(count, vf));
    Sum tau;
    tau.low = entmax15_closed(sum.low, squares.low, k.low);
    tau.high = entmax15_closed(sum.high, squares.high, k.high);
    return tau;
}

/* The least float32 that is not below each mean; see `round_up`. What rounding took away is scaled,
 * so that its sign survives in float32. */
INLINE vf round_each_up(Sum mean) {
    const vf near = in_float(mean);
    const Sum rounded = in_double(near);
    const vd low = (mean.low - rounded.low) * 0x1p60, high = (mean.high - rounded.high) * 0x1p60;
    return choose(in_float((Sum){low, high}) > splat(0.0f), next_up(near), near);
}

/* ev-softmax, whose formula is in `evidential_weight`. `whole` is a promise that no row has a -inf;
 * returns 0, and changes nothing, if one breaks it or is poisoned. */
INLINE int narrow_evsoftmax(Tile *t, int whole, float eps, Finding *found) {
    const vf nothing = splat(-INFINITY), zero = splat(0.0f);
    vf max = nothing;
    vi count = {0};
    Sum sum = {{0}, {0}};
    for (int64_t j = 0; j < t->n; j++) {
        const vf x = t->x[j];
        const vi valid = x != nothing;
        max = larger(x, max);
        sum_vector(&sum, whole ? x : both(valid, x));
        count -= valid;
    }
    /* Floats that are finite have a finite sum in double, and what is not times 0 is NaN. */
    found->poisoned = in_float((Sum){sum.low * 0, sum.high * 0}) != zero;
    if (whole && bits_of(found->poisoned)) return 0;
    const Sum k = in_double(whole ? splat((float)t->n) : __builtin_convertvector(count, vf));
    const vf mean = round_each_up((Sum){sum.low / k.low, sum.high / k.high});
    /* A rounded mean can exceed every entry of a constant row; that of an empty one is NaN. */
    const vf threshold = choose(mean < max, mean, max), floor = least_above_underflow(max);
    const vf bar = eps > 0 ? threshold : larger(threshold, floor);
    vf part[4] = {zero, zero, zero, zero};
    for (int64_t j = 0; j < t->n; j++) {
        const vf x = t->x[j];
        if (found->kept)
            found->kept[j] = bits_of((eps > 0 ? x == x : x >= threshold) & (x != nothing));
        t->x[j] = evidential_weight(x, max, bar, floor, eps);
        part[j & 3] += t->x[j];
    }
    Sum total = in_double(part[0] + part[1]);
    sum_vector(&total, part[2] + part[3]);
    const vf factor = in_float((Sum){1.0 / total.low, 1.0 / total.high});
    for (int64_t j = 0; j < t->n; j++) {
        const vf p = t->x[j] * factor;
        t->x[j] = whole ? p : both(count != 0, p); /* the weights of an empty row are NaN */
    }
    return 1;
}
