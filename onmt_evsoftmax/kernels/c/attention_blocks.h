/* Attention of every normalizer, a block of queries at a time: part of `variant.h`.
 *
 * Scores are computed tile by tile and never stored as a matrix. Of each tile, a row keeps the
 * scores that may still matter in a list, with the places of their keys: for sparsemax and entmax
 * those within reach of the largest score so far, which are few; for ev-softmax all of them. When
 * the last tile is done, the row kernels find the threshold in the list, what lies above it is the
 * support, and only its values are added up. Backward computes the scores again and works on the
 * support alone.
 *
 * A row of scores may have position terms, a bias and a mask of its own: they enter before the list.
 */

/* The scores of CHUNK rows that matter, and in backward what follows from them. */
typedef struct {
    int64_t room;           /* entries of a row; not a power of two, which would share cache lines */
    float *score;           /* [CHUNK][room]: scores; forward then weights, backward P M */
    int32_t *at;            /* [CHUNK][room]: their packed keys */
    float *grad, *slope;    /* [CHUNK][room], backward only: dS; dP/dS up to the row's mean */
    int64_t count[CHUNK];
    float most[CHUNK];      /* the largest score so far */
    float threshold[CHUNK]; /* ev-softmax: known beforehand, or found at the end */
    double sum[CHUNK];      /* ev-softmax: of the scores so far, unless the threshold is known */
    float gap;              /* entmax: alpha - 1 of the head */
    double grad_alpha;      /* entmax, backward: of the item of work */
    uint8_t poisoned[CHUNK];/* a NaN or +inf was seen */
} Lists;

/* What position terms need for the rows of a chunk. */
typedef struct {
    int64_t distances;      /* 2 window + 1, or 0 without relative positions */
    float *keys;            /* [CHUNK][distances]: query . relative key */
    float *values;          /* [CHUNK][distances]: backward, grad_out . relative value */
    float *mass;            /* [CHUNK][distances]: weights of the keys at a distance */
    float *grad;            /* [CHUNK][distances]: backward, dS of the keys at a distance */
    int64_t near[CHUNK], far[CHUNK]; /* packed keys before `near` are beyond the window on the left,
                                      * those from `far` on are beyond it on the right */
} Distances;

/* ----------------------------------------------------------------------------------- scores */

/* The number of packed keys whose place is at most i. */
INLINE int64_t packed_up_to(const Packed *pack, int64_t i) {
    int64_t low = 0, high = pack->count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (pack->position[middle] <= i) low = middle + 1;
        else high = middle;
    }
    return low;
}

INLINE float dot_plain(const float *a, const float *b, int64_t size) {
    vf sum = {0};
    int64_t d = 0;
    for (; d + LANES <= size; d += LANES) sum += load(a + d) * load(b + d);
    if (d < size)
        sum += load_first(a + d, (int)(size - d), 0.0f) * load_first(b + d, (int)(size - d), 0.0f);
    return sum_everywhere(sum)[0];
}

/* to += weight * from. */
INLINE void add_scaled(float *to, float weight, const float *from, int64_t size) {
    int64_t e = 0;
    if (weight == 0) return; /* most distances of a short row */
    for (; e + LANES <= size; e += LANES) store(to + e, load(to + e) + load(from + e) * weight);
    for (; e < size; e++) to[e] += from[e] * weight;
}

/* Tables of the relative positions of a chunk: `from` has its queries (or gradients of outputs). */
static void fill_distances(const float *from, int64_t stride, int rows, const float *table,
                           int64_t size, int64_t distances, float *to) {
    for (int i = 0; i < rows; i++)
        for (int64_t m = 0; m < distances; m++)
            to[i * distances + m] = dot_plain(from + i * stride, table + m * size, size);
}

static void place_distances(const Attention *task, const Packed *pack, Distances *d, int64_t first,
                            int rows) {
    for (int i = 0; d->distances && i < rows; i++) {
        const int64_t at = first + i + task->offset;
        d->near[i] = packed_up_to(pack, at - task->window);
        d->far[i] = packed_up_to(pack, at + task->window - 1);
    }
}

/* The number of the relative position of packed key `at`. */
INLINE int64_t distance_of(const Attention *task, const Packed *pack, int64_t query, int64_t at) {
    const int64_t d = pack->position[at] - (query + task->offset);
    return (d < -task->window ? -task->window : d > task->window ? task->window : d) + task->window;
}

INLINE void add_constant(float *s, int64_t begin, int64_t end, float x) {
    int64_t j = begin;
    for (; j + LANES <= end; j += LANES) store(s + j, load(s + j) + x);
    for (; j < end; j++) s[j] += x;
}

/* Adds to the scores of row i with `count` packed keys from `tile` on whatever is not query . key,
 * and makes those of masked keys -inf. Without a mask per query or a bias keys are packed; with
 * either they are in their places. */
INLINE void add_terms(const Attention *task, const Packed *pack, const Distances *d, int i,
                      int64_t query, int64_t tile, int64_t count, float *s) {
    const Place p = place_of(task, pack->head);
    if (d->distances) {
        const float *table = d->keys + i * d->distances;
        const int64_t near = d->near[i] - tile, far = d->far[i] - tile;
        const int64_t begin = near < 0 ? 0 : near > count ? count : near;
        const int64_t end = far < begin ? begin : far > count ? count : far;
        add_constant(s, 0, begin, table[0]);
        for (int64_t j = begin; j < end; j++)
            s[j] += table[distance_of(task, pack, query, tile + j)];
        add_constant(s, end, count, table[d->distances - 1]);
    }
    if (task->slopes) {
        const float slope = task->slopes[pack->head];
        const int64_t at = query + task->offset;
        for (int64_t j = 0; j < count; j++)
            s[j] -= slope * fabsf((float)(pack->position[tile + j] - at));
    }
    if (task->bias) {
        const float *bias = task->bias + p.batch * task->bias_batch + p.head * task->bias_head
                          + query * task->bias_query + tile;
        int64_t j = 0;
        for (; j + LANES <= count; j += LANES) store(s + j, load(s + j) + load(bias + j));
        for (; j < count; j++) s[j] += bias[j];
    }
    if (task->mask && !packs(task)) {
        const uint8_t *mask = task->mask + p.batch * task->mask_batch + p.head * task->mask_head
                            + query * task->mask_query + tile;
        int64_t j = 0;
        for (; j + LANES <= count; j += LANES)
            store(s + j, choose(load_mask(mask + j), load(s + j), splat(-INFINITY)));
        for (; j < count; j++)
            if (!mask[j]) s[j] = -INFINITY;
    }
}

INLINE int has_terms(const Attention *task) {
    return task->window || task->slopes || task->bias || (task->mask && !packs(task));
}

/* Like `compress`, with places of 32 bits. */
INLINE int compress_at(float *p, int32_t *at, vf x, vi place, vi keep) {
    const uint32_t bits = bits_of(keep);
#if defined(USE_AVX512)
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps((__mmask16)bits, (__m512)x));
    _mm512_storeu_si512(at, _mm512_maskz_compress_epi32((__mmask16)bits, (__m512i)place));
#elif defined(USE_AVX2)
    const __m128i packed = _mm_loadl_epi64((const __m128i *)compress_order[bits]);
    const __m256i order = _mm256_cvtepu8_epi32(packed);
    store(p, (vf)_mm256_permutevar8x32_ps((__m256)x, order));
    _mm256_storeu_si256((__m256i *)at, _mm256_permutevar8x32_epi32((__m256i)place, order));
#else
    for (int i = 0, k = 0; i < LANES; i++) {
        p[k] = x[i];
        at[k] = place[i];
        k += bits >> i & 1;
    }
#endif
    return __builtin_popcount(bits);
}

INLINE vi counting(int64_t from) {
    vi place;
    for (int i = 0; i < LANES; i++) place[i] = i;
    return place + (int32_t)from;
}

/* Row i of a tile goes into its list: what is above `most - reach` or, of ev-softmax with a known
 * threshold, what reaches that. */
INLINE void collect(Lists *l, int normalizer, int known, int i, const float *scores, int64_t limit,
                    float reach, int64_t tile) {
    const vf nothing = splat(-INFINITY);
    vf most = nothing;
    vi poison = {0};
    Sum sum = {{0}, {0}};
    if (limit <= 0) return;
    for (int64_t j = 0; j < limit; j += LANES) {
        vf s = load(scores + j);
        if (limit - j < LANES) s = choose(first_lanes((int)(limit - j)), s, nothing);
        most = larger(s, most);
        poison |= ~(s < splat(INFINITY));
        if (needs_sum(normalizer) && !known) sum_vector(&sum, both(s > nothing, s));
    }
    const float top = largest_lane(most)[0];
    if (top > l->most[i]) l->most[i] = top;
    if (bits_of(poison)) l->poisoned[i] = 1;
    if (needs_sum(normalizer) && !known) l->sum[i] += sum_total(&sum);
    /* A little lower than the reach: which entries count is decided by the row kernel. */
    const float most_so_far = l->most[i];
    const vf bar = splat(known ? l->threshold[i]
                               : most_so_far - reach * 1.0001f - fabsf(most_so_far) * 1e-6f);
    float *score = l->score + i * l->room;
    int32_t *at = l->at + i * l->room;
    int64_t found = l->count[i];
    for (int64_t j = 0; j < limit; j += LANES) {
        vf s = load(scores + j);
        if (limit - j < LANES) s = choose(first_lanes((int)(limit - j)), s, nothing);
        found += compress_at(score + found, at + found, s, counting(tile + j),
                             known ? s >= bar : s > bar);
    }
    l->count[i] = found;
}

/* -------------------------------------------------------------------------- rows of 32-bit places */

INLINE void add_listed(const int vectors, int64_t count, const int32_t *at, const float *weight,
                       const float *rows, int64_t stride, float *sum) {
    vf total[8];
    for (int v = 0; v < vectors; v++) total[v] = load(sum + v * LANES);
    for (int64_t k = 0; k < count; k++) {
        const vf w = splat(weight[k]);
        const float *row = rows + at[k] * stride;
        for (int v = 0; v < vectors; v++) total[v] += w * load(row + v * LANES);
    }
    for (int v = 0; v < vectors; v++) store(sum + v * LANES, total[v]);
}

/* sum += weight[k] * rows[at[k]]. Not inlined, as `add_rows`. */
static __attribute__((noinline)) void add_list(int64_t count, const int32_t *at,
                                               const float *weight, const float *rows,
                                               int64_t stride, float *sum) {
    for (int64_t vectors = stride / LANES; vectors > 0; vectors -= 8) {
        switch (vectors) {
        case 1: add_listed(1, count, at, weight, rows, stride, sum); break;
        case 2: add_listed(2, count, at, weight, rows, stride, sum); break;
        case 3: add_listed(3, count, at, weight, rows, stride, sum); break;
        case 4: add_listed(4, count, at, weight, rows, stride, sum); break;
        case 5: add_listed(5, count, at, weight, rows, stride, sum); break;
        case 6: add_listed(6, count, at, weight, rows, stride, sum); break;
        case 7: add_listed(7, count, at, weight, rows, stride, sum); break;
        default: add_listed(8, count, at, weight, rows, stride, sum); break;
        }
        rows += 8 * LANES;
        sum += 8 * LANES;
    }
}

INLINE void dot_listed(const int vectors, int64_t count, const int32_t *at, const float *a,
                       const float *rows, int64_t stride, int more, float *products) {
    vf left[8];
    for (int v = 0; v < vectors; v++) left[v] = load(a + v * LANES);
    for (int64_t k = 0; k < count; k += LANES) {
        vf part[LANES / 4];
        for (int i = 0; i < LANES / 4; i++) {
            vf sum[4];
            for (int j = 0; j < 4; j++) {
                const float *row = rows + at[k + 4 * i + j] * stride;
                sum[j] = left[0] * load(row);
                for (int v = 1; v < vectors; v++) sum[j] += left[v] * load(row + v * LANES);
            }
            part[i] = sum_quarters(sum[0], sum[1], sum[2], sum[3]);
        }
        const vf dots = sum_each(part);
        store(products + k, more ? load(products + k) + dots : dots);
    }
}

/* products[k] = a . rows[at[k]], in whole vectors of products: `at` is 0 behind the last. */
static __attribute__((noinline)) void dot_list(int64_t count, const int32_t *at, const float *a,
                                               const float *rows, int64_t stride,
                                               float *products) {
    if (!stride) memset(products, 0, (size_t)ROUNDED(count, LANES) * sizeof(float));
    for (int64_t d = 0; d < stride; d += 8 * LANES) {
        switch ((stride - d) / LANES) {
        case 1: dot_listed(1, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 2: dot_listed(2, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 3: dot_listed(3, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 4: dot_listed(4, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 5: dot_listed(5, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 6: dot_listed(6, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 7: dot_listed(7, count, at, a + d, rows + d, stride, d > 0, products); break;
        default: dot_listed(8, count, at, a + d, rows + d, stride, d > 0, products); break;
        }
    }
}

/* Dropout's factors for LANES listed keys. */
INLINE vf listed_factor(const Attention *task, const Packed *pack, uint64_t row_key,
                        const int32_t *at) {
    vu position;
    for (int i = 0; i < LANES; i++) position[i] = (uint32_t)pack->position[at[i]];
    return dropout_factor(task, row_key, position);
}

/* ---------------------------------------------------------------------------- lists and distances */

/* The first listed key of row i whose place among the packed is not before `place`. */
INLINE int64_t listed_from(const Lists *l, int i, int64_t place) {
    const int32_t *at = l->at + i * l->room;
    int64_t low = 0, high = l->count[i];
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (at[middle] < place) low = middle + 1;
        else high = middle;
    }
    return low;
}

INLINE float sum_of(const float *x, int64_t begin, int64_t end) {
    Sum sum = {{0}, {0}};
    int64_t k = begin;
    for (; k + LANES <= end; k += LANES) sum_vector(&sum, load(x + k));
    double total = sum_total(&sum);
    for (; k < end; k++) total += x[k];
    return (float)total;
}

/* What the listed keys of row i have of x, by their distances. Lists are in the order of the keys, so
 * those beyond the window, most of them, come first and last. */
INLINE void sum_by_distance(const Attention *task, const Packed *pack, const Lists *l,
                            const Distances *d, int i, int64_t query, const float *x, float *to) {
    const int32_t *at = l->at + i * l->room;
    const int64_t begin = listed_from(l, i, d->near[i]), end = listed_from(l, i, d->far[i]);
    memset(to, 0, (size_t)d->distances * sizeof(float));
    for (int64_t k = begin; k < end; k++) to[distance_of(task, pack, query, at[k])] += x[k];
    to[0] += sum_of(x, 0, begin);
    to[d->distances - 1] += sum_of(x, end, l->count[i]);
}

/* x of every listed key of row i plus what the table has for its distance. */
INLINE void add_by_distance(const Attention *task, const Packed *pack, const Lists *l,
                            const Distances *d, int i, int64_t query, const float *table,
                            float *x) {
    const int32_t *at = l->at + i * l->room;
    const int64_t begin = listed_from(l, i, d->near[i]), end = listed_from(l, i, d->far[i]);
    add_constant(x, 0, begin, table[0]);
    for (int64_t k = begin; k < end; k++) x[k] += table[distance_of(task, pack, query, at[k])];
    add_constant(x, end, l->count[i], table[d->distances - 1]);
}

/* ----------------------------------------------------------------------------------- forward */

/* The thresholds of rows begin .. begin + LANES - 1 of projections, in double; their lists become
 * factor (score - most). */
static void project_lists(Lists *l, int normalizer, int begin, int rows, double tau[LANES]) {
    const float factor = 1.0f / reach(normalizer);
    int64_t found[LANES] = {0}, longest = 0;
    for (int i = 0; i < LANES && begin + i < rows; i++) {
        const int r = begin + i;
        float *d = l->score + r * l->room;
        tau[i] = INFINITY;
        if (l->poisoned[r] || !l->count[r]) continue;
        found[i] = l->count[r];
        for (int64_t k = 0; k < found[i]; k += LANES)
            store(d + k, centered(load(d + k), splat(l->most[r]), factor));
        store(d + found[i], splat(-INFINITY));
        longest = found[i] > longest ? found[i] : longest;
    }
    if (longest <= FORWARD_TOGETHER) {
        Tile t;
        t.n = ROUNDED(longest, LANES);
        read_tile(&t, l->score + begin * l->room, l->room, found);
        double together[LANES];
        store_double(together, tile_tau(normalizer, &t));
        for (int i = 0; i < LANES; i++)
            if (found[i]) tau[i] = together[i];
        return;
    }
    for (int i = 0; i < LANES && begin + i < rows; i++) {
        if (!found[i]) continue;
        const float *d = l->score + (begin + i) * l->room;
        tau[i] = row_tau(normalizer, d, ROUNDED(found[i], LANES) / LANES);
    }
}

/* Of entmax with any alpha: the lists become weights, whose sums have the logarithms `level`. */
static void weigh_lists(Lists *l, int begin, int rows, double level[LANES]) {
    const vf gap = splat(l->gap);
    int64_t found[LANES] = {0}, longest = 0;
    float root[LANES];
    for (int i = 0; i < LANES && begin + i < rows; i++) {
        const int r = begin + i;
        float *d = l->score + r * l->room;
        level[i] = INFINITY;
        if (l->poisoned[r] || !l->count[r]) continue;
        found[i] = l->count[r];
        for (int64_t k = 0; k < found[i]; k += LANES) store(d + k, load(d + k) - l->most[r]);
        store(d + found[i], splat(-INFINITY));
        longest = found[i] > longest ? found[i] : longest;
    }
    if (longest <= FORWARD_TOGETHER) {
        Tile t;
        t.n = ROUNDED(longest, LANES);
        read_tile(&t, l->score + begin * l->room, l->room, found);
        store(root, tile_alpha(&t, gap));
    }
    for (int i = 0; i < LANES; i++) {
        if (!found[i]) continue;
        float *d = l->score + (begin + i) * l->room;
        if (longest > FORWARD_TOGETHER)
            root[i] = row_alpha(d, ROUNDED(found[i], LANES) / LANES, gap)[0];
        level[i] = log(alpha_weights(d, found[i], gap, splat(root[i])));
    }
}

/* What remains of the list of row r, of weights: those above 0, divided by their sum. */
INLINE void divide_row(Lists *l, int r, double level) {
    const vf factor = splat((float)exp(-level));
    float *score = l->score + r * l->room;
    int32_t *at = l->at + r * l->room;
    int64_t found = 0;
    for (int64_t k = 0; k < l->count[r]; k += LANES) {
        const vf w = load(score + k);
        vi place;
        memcpy(&place, at + k, sizeof place);
        found += compress_at(score + found, at + found, w * factor, place, w > splat(0.0f));
    }
    l->count[r] = found;
}

/* What remains of the list of row r of a projection: its support, with probabilities. */
INLINE void project_row(Lists *l, int normalizer, int r, double tau) {
    const float head = (float)tau, tail = (float)(tau - head);
    float *score = l->score + r * l->room;
    int32_t *at = l->at + r * l->room;
    int64_t found = 0;
    for (int64_t k = 0; k < l->count[r]; k += LANES) {
        const vf u = (load(score + k) - head) - tail;
        vi place;
        memcpy(&place, at + k, sizeof place);
        found += compress_at(score + found, at + found, projected(normalizer, u), place,
                             u > splat(0.0f));
    }
    l->count[r] = found;
}

/* The threshold of a row of ev-softmax whose list has all of its scores. */
INLINE float mean_of_list(const Lists *l, int r) {
    const double mean = l->sum[r] / (double)l->count[r];
    return mean < l->most[r] ? round_up(mean) : l->most[r];
}

/* The same for ev-softmax, by the row's threshold; returns the logarithm of its sum. */
INLINE double evidential_row(Lists *l, int r) {
    float *score = l->score + r * l->room;
    int32_t *at = l->at + r * l->room;
    const int64_t n = l->count[r];
    const vf bar = splat(l->threshold[r]), top = splat(l->most[r]);
    Sum total = {{0}, {0}};
    int64_t found = 0;
    for (int64_t k = 0; k < n; k += LANES) {
        const vf s = load(score + k), x = s - top;
        const vi kept = (s >= bar) & (k + LANES <= n ? (vi){0} - 1 : first_lanes((int)(n - k)));
        const vf w = both(kept & (x >= splat(UNDERFLOW)), exp_nonpositive(x));
        vi place;
        memcpy(&place, at + k, sizeof place);
        sum_vector(&total, w);
        found += compress_at(score + found, at + found, w, place, kept);
    }
    const double sum = sum_total(&total);
    const float factor = (float)(1 / sum);
    for (int64_t k = 0; k < found; k += LANES) store(score + k, load(score + k) * factor);
    l->count[r] = found;
    return l->most[r] + log(sum);
}

/* Dropout, masses of the distances, and the output of row i, whose list is its support. */
INLINE void give_out(const Attention *task, const Packed *pack, const Lists *l, const Distances *d,
                     int i, int64_t query, float *sum, float *out) {
    float *weight = l->score + i * l->room;
    int32_t *at = l->at + i * l->room;
    const int64_t count = l->count[i];
    if (task->dropout > 0) {
        const uint64_t key = dropout_key(task, pack->head, query);
        for (int64_t k = count; k < ROUNDED(count, LANES); k++) at[k] = 0;
        for (int64_t k = 0; k < count; k += LANES)
            store(weight + k, load(weight + k) * listed_factor(task, pack, key, at + k));
    }
    memset(sum, 0, (size_t)pack->value_size * sizeof(float));
    add_list(count, at, weight, pack->values, pack->value_size, sum);
    if (d->distances && task->relative_values) {
        float *mass = d->mass + i * d->distances;
        sum_by_distance(task, pack, l, d, i, query, weight, mass);
        for (int64_t m = 0; m < d->distances; m++)
            add_scaled(sum, mass[m], task->relative_values + m * task->value_size,
                       task->value_size);
    }
    write_row(out, sum, task->value_size, 1);
}

/* What the terms add to the mean score of every row: the number of keys at each distance, and the
 * mean distance, follow from the places of the keys. */
static void add_mean_terms(const Attention *task, const Packed *pack, const Distances *d,
                           int64_t first, int rows, const int64_t *seen, float *threshold) {
    double places = 0, before = 0; /* sums of the places that are seen, and that are on the left */
    int64_t added = 0, left = 0;
    for (int i = 0; i < rows; i++) {
        const int64_t count = seen[i];
        double more = 0;
        if (d->distances) {
            const float *table = d->keys + i * d->distances;
            const int64_t near = d->near[i] < count ? d->near[i] : count;
            const int64_t far = d->far[i] < near ? near : d->far[i] < count ? d->far[i] : count;
            more += (double)table[0] * (double)near
                  + (double)table[d->distances - 1] * (double)(count - far);
            for (int64_t at = near; at < far; at++)
                more += table[distance_of(task, pack, first + i, at)];
        }
        if (task->slopes) {
            const int64_t at = first + i + task->offset;
            for (; added < count; added++) places += pack->position[added];
            for (; left < count && pack->position[left] <= at; left++)
                before += pack->position[left];
            const double reach = (double)at * (double)(2 * left - count);
            more -= task->slopes[pack->head] * (places - 2 * before + reach);
        }
        threshold[i] = (float)(threshold[i] + more / (double)count);
    }
}

/* Scores of rows begin .. end-1 of a block, tile by tile, into their lists. */
INLINE void collect_rows(const Attention *task, const Packed *pack, Lists *l, const Distances *d,
                         int normalizer, int known, int64_t first, int begin, int end,
                         const int64_t *seen) {
    for (int i = begin; i < end; i++) {
        l->count[i] = 0;
        l->most[i] = -INFINITY;
        l->sum[i] = 0;
        l->poisoned[i] = 0;
    }
    for (int64_t tile = 0; tile < seen[end - 1]; tile += TILE) {
        const int64_t rest = seen[end - 1] - tile, count = rest < TILE ? rest : TILE;
        score_tile(task, pack, tile, count, begin, end);
        for (int i = begin; i < end; i++) {
            float *s = pack->scores + i * TILE;
            const int64_t limit = seen[i] - tile < count ? seen[i] - tile : count;
            if (limit > 0 && has_terms(task))
                add_terms(task, pack, d, i, first + i, tile, limit, s);
            const float far = normalizer == id_entmax ? 1.0f / l->gap : reach(normalizer);
            collect(l, normalizer, known, i, s, limit, far, tile);
        }
    }
}

/* Queries first .. first + rows - 1 of the packed head. */
static void forward_block(const Attention *task, Packed *pack, Lists *l, Distances *d, float *sum,
                          int normalizer, int known, int64_t first, int rows) {
    const Place p = place_of(task, pack->head);
    int64_t seen[CHUNK];
    for (int i = 0; i < rows; i++) {
        copy_row(pack->queries + i * pack->size, row_of(&task->query, p, first + i), task->size,
                 task->scale);
        seen[i] = visible(task, pack, first + i);
    }
    place_distances(task, pack, d, first, rows);
    if (d->distances)
        fill_distances(pack->queries, pack->size, rows, task->relative_keys, task->size,
                       d->distances, d->keys);
    if (known) {
        find_thresholds(task, pack, first / CHUNK, rows, l->threshold);
        if (has_terms(task)) add_mean_terms(task, pack, d, first, rows, seen, l->threshold);
    }
    if (known)
        collect_rows(task, pack, l, d, normalizer, 1, first, 0, rows, seen);
    else
        collect_rows(task, pack, l, d, normalizer, 0, first, 0, rows, seen);
    double *level = task->level + pack->head * task->queries + first;
    float *most = task->bar + pack->head * task->queries + first;
    for (int begin = 0; !needs_sum(normalizer) && begin < rows; begin += LANES) {
        double tau[LANES];
        if (normalizer == id_entmax) weigh_lists(l, begin, rows, tau);
        else project_lists(l, normalizer, begin, rows, tau);
        for (int i = begin; i < begin + LANES && i < rows; i++) level[i] = tau[i - begin];
    }
    for (int i = 0; i < rows; i++) {
        float *out = row_of(&task->out, p, first + i);
        int all = !known; /* whether the list has all scores of the row */
        /* Rounding can put a known threshold above every score, as where all are equal. */
        if (known && seen[i] > 0 && (!l->count[i] || !(fabsf(l->threshold[i]) <= FLT_MAX))) {
            collect_rows(task, pack, l, d, normalizer, 0, first, i, i + 1, seen);
            all = 1;
        }
        most[i] = l->most[i];
        if (l->poisoned[i]) { /* backward then keeps every key and spreads the NaN */
            level[i] = NAN;
            if (needs_sum(normalizer)) most[i] = -INFINITY;
            for (int64_t e = 0; e < task->value_size; e++) out[e] = NAN;
            continue;
        }
        if (!l->count[i]) { /* nothing to attend to */
            level[i] = most[i] = INFINITY;
            for (int64_t e = 0; e < task->value_size; e++) out[e] = 0;
            continue;
        }
        if (needs_sum(normalizer)) {
            if (all) l->threshold[i] = mean_of_list(l, i);
            most[i] = l->threshold[i];
            level[i] = evidential_row(l, i);
        } else if (normalizer == id_entmax) {
            divide_row(l, i, level[i]);
        } else {
            project_row(l, normalizer, i, level[i]);
        }
        give_out(task, pack, l, d, i, first + i, sum, out);
    }
}

/* Queries that are worked on together: fewer where their lists, of whole rows, would leave the
 * second cache. */
INLINE int height_of(const Attention *task, int normalizer, int known) {
    if (!needs_sum(normalizer) || known || task->keys <= 512) return CHUNK;
    return task->keys <= 1024 ? 32 : task->keys <= 2048 ? 16 : 8;
}

INLINE void lay_out_lists(const Attention *task, Lists *l, Distances *d, Arena *arena,
                          int backward) {
    const int64_t keys = ROUNDED(task->keys, TILE);
    l->room = keys + 3 * 16; /* whole vectors are written behind the last */
    l->score = take(arena, CHUNK * l->room, sizeof(float));
    l->at = take(arena, CHUNK * l->room, sizeof(int32_t));
    l->grad = backward ? take(arena, CHUNK * l->room, sizeof(float)) : NULL;
    l->slope = backward ? take(arena, CHUNK * l->room, sizeof(float)) : NULL;
    d->distances = task->window ? 2 * task->window + 1 : 0;
    d->keys = take(arena, CHUNK * d->distances, sizeof(float));
    d->mass = take(arena, CHUNK * d->distances, sizeof(float));
    d->values = backward ? take(arena, CHUNK * d->distances, sizeof(float)) : NULL;
    d->grad = backward ? take(arena, CHUNK * d->distances, sizeof(float)) : NULL;
}

INLINE int forward_blocks(int normalizer, const Attention *task, int64_t begin, int64_t end) {
    Packed pack;
    Lists lists;
    Distances distances;
    float *sum = NULL;
    Arena arena = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        lay_out(task, &pack, &arena, 0);
        lay_out_lists(task, &lists, &distances, &arena, 0);
        sum = take(&arena, pack.value_size, sizeof(float));
        if (pass == 0) {
            arena = (Arena){aligned_alloc(64, arena.used), 0};
            if (!arena.data) return NO_MEMORY;
        }
    }
    const int known = needs_sum(normalizer) && !task->bias && (!task->mask || packs(task));
    if (!known) pack.sums = NULL;
    const int64_t chunks = chunks_of(task), height = height_of(task, normalizer, known);
    for (int64_t item = begin; item < end; item++) {
        pack_head(task, &pack, item / chunks);
        if (task->alphas) lists.gap = (float)(task->alphas[item / chunks] - 1);
        const int64_t first = folded(item % chunks, chunks) * CHUNK;
        const int64_t last = first + CHUNK < task->queries ? first + CHUNK : task->queries;
        for (int64_t i = first; i < last; i += height)
            forward_block(task, &pack, &lists, &distances, sum, normalizer, known, i,
                          (int)(last - i < height ? last - i : height));
    }
    free(arena.data);
    return OK;
}

static int blocks_forward(const void *argument, int64_t begin, int64_t end) {
    const Attention *task = argument;
#define FORWARD_BLOCKS(name) case id_##name: return forward_blocks(id_##name, task, begin, end);
    switch (task->normalizer) { NORMALIZERS(FORWARD_BLOCKS) }
    return BAD_ARGUMENT;
}

/* ---------------------------------------------------------------------------------- backward */

/* The kept pairs of a chunk again, by key instead of by query. */
typedef struct {
    int32_t *start;         /* [keys + 1] */
    uint8_t *row;           /* [CHUNK * keys] */
    float *weight, *grad;   /* the same: P M and dS */
} Columns;

typedef struct {
    float *grad_out;        /* [CHUNK][value_size] */
    float *grad_query;      /* [CHUNK][size] */
    float *grad_keys, *grad_values; /* [keys][…], packed */
    float *grad_relative_keys, *grad_relative_values; /* [distances][…] of this item */
    Columns columns;
} BlockGradients;

/* The support of row i in a tile, from its level (ev-softmax: logarithm of the sum; else tau) and
 * `most` (ev-softmax: threshold): what probabilities follow from goes to `score`. */
INLINE void collect_support(Lists *l, int normalizer, int i, const float *scores, int64_t limit,
                            double level, float most, int64_t tile) {
    const float head = (float)level, tail = (float)(level - head), nan = head - head;
    const float factor = 1.0f / reach(normalizer);
    const int powers = normalizer == id_entmax;
    const float rate = powers ? l->gap / (float)exp(-l->gap * level) : 0; /* of x - most in v */
    float *score = l->score + i * l->room;
    int32_t *at = l->at + i * l->room;
    int64_t found = l->count[i];
    if (limit <= 0 || level == INFINITY) return;
    for (int64_t j = 0; j < limit; j += LANES) {
        const vf s = load(scores + j);
        vi lanes = s > splat(-INFINITY);
        if (nan != 0) lanes |= ~(s < splat(INFINITY));
        if (limit - j < LANES) lanes &= first_lanes((int)(limit - j));
        if (needs_sum(normalizer)) {
            const vi kept = lanes & ~(s < splat(most));
            found += compress_at(score + found, at + found, s, counting(tile + j), kept);
        } else if (powers) {
            const vf z = (s - most) * rate;
            const vi kept = lanes & ~(z <= splat(-1.0f));
            found += compress_at(score + found, at + found, z, counting(tile + j), kept);
        } else {
            const vf u = (centered(s, splat(most), factor) - head) - tail;
            const vi kept = lanes & ~(u <= splat(0.0f));
            found += compress_at(score + found, at + found, u, counting(tile + j), kept);
        }
    }
    l->count[i] = found;
}

/* Probabilities and slopes of a whole list. */
INLINE void weigh_list(Lists *l, int normalizer, int i, double level) {
    const float head = (float)level, tail = (float)(level - head);
    const vf nan = splat(head - head), b = splat(1.0f / l->gap - 1.0f);
    const int powers = normalizer == id_entmax;
    const float over = powers ? (float)exp(-level) : 0;
    const float slope_over = powers ? (float)exp((l->gap - 1.0) * level) : 0;
    float *score = l->score + i * l->room, *slope = l->slope + i * l->room;
    for (int64_t k = 0; k < l->count[i]; k += LANES) {
        const vf x = load(score + k);
        if (needs_sum(normalizer)) {
            const vf y = (x - head) - tail;
            const vf p = both(y >= splat(UNDERFLOW), exp_nonpositive(y)) + nan;
            store(score + k, p);
            store(slope + k, p);
        } else if (powers) {
            vf quotient;
            store(score + k, power(x, b, &quotient) * over + nan);
            store(slope + k, quotient * slope_over + nan);
        } else {
            store(score + k, projected(normalizer, x) + nan);
            store(slope + k, projected_slope(normalizer, x) + nan);
        }
    }
}

/* What row i adds to the gradient of its alpha, while its list still has P; then it becomes P M. */
INLINE void add_to_alpha(const Attention *task, const Packed *pack, Lists *l, int i, float mean,
                         uint64_t key) {
    float *score = l->score + i * l->room, *slope = l->slope + i * l->room;
    const float *grad = l->grad + i * l->room;
    const int64_t count = l->count[i];
    Sum change = {{0}, {0}};
    for (int64_t k = 0; k < count; k += LANES) {
        const vi real = k + LANES <= count ? (vi){0} - 1 : first_lanes((int)(count - k));
        const vf p = load(score + k), log_p = log_positive(larger(p, splat(0x1p-125f)));
        const vf each = alpha_change(p, log_p, load(slope + k), splat(l->gap));
        sum_vector(&change, both(real & ~(p <= splat(0.0f)), each * (load(grad + k) - mean)));
        if (task->dropout > 0)
            store(score + k, p * listed_factor(task, pack, key, l->at + i * l->room + k));
    }
    l->grad_alpha -= sum_total(&change);
}

/* P M, and dS, of a whole list whose `grad` is grad_out . values. */
INLINE void differentiate_list(const Attention *task, const Packed *pack, Lists *l,
                               const Distances *d, int i, int64_t query) {
    float *score = l->score + i * l->room, *slope = l->slope + i * l->room;
    float *grad = l->grad + i * l->room;
    const int32_t *at = l->at + i * l->room;
    const int64_t count = l->count[i];
    const uint64_t key = dropout_key(task, pack->head, query);
    if (d->distances && task->relative_values)
        add_by_distance(task, pack, l, d, i, query, d->values + i * d->distances, grad);
    Sum slopes = {{0}, {0}}, weighted = slopes;
    for (int64_t k = 0; k < count; k += LANES) {
        const vi real = k + LANES <= count ? (vi){0} - 1 : first_lanes((int)(count - k));
        vf factor = splat(1.0f);
        if (task->dropout > 0) factor = listed_factor(task, pack, key, at + k);
        const vf s = both(real, load(slope + k)), g = both(real, load(grad + k) * factor);
        if (!task->grad_alphas) store(score + k, load(score + k) * factor);
        store(grad + k, g);
        sum_vector(&slopes, s);
        sum_vector(&weighted, s * g);
    }
    const float mean = (float)(sum_total(&weighted) / (sum_total(&slopes) + DBL_MIN));
    if (task->grad_alphas) add_to_alpha(task, pack, l, i, mean, key);
    for (int64_t k = 0; k < count; k += LANES)
        store(grad + k, load(slope + k) * (load(grad + k) - mean));
}

static void transpose_lists(const Lists *l, int rows, int64_t keys, Columns *c) {
    memset(c->start, 0, (size_t)(keys + 1) * sizeof(int32_t));
    for (int i = 0; i < rows; i++)
        for (int64_t k = 0; k < l->count[i]; k++) c->start[l->at[i * l->room + k] + 1]++;
    for (int64_t j = 0; j < keys; j++) c->start[j + 1] += c->start[j];
    /* Each start moves on to its end as it is filled, and is the next one's start then. */
    for (int i = 0; i < rows; i++)
        for (int64_t k = 0; k < l->count[i]; k++) {
            const int64_t from = i * l->room + k;
            const int32_t to = c->start[l->at[from]]++;
            c->row[to] = (uint8_t)i;
            c->weight[to] = l->score[from];
            c->grad[to] = l->grad[from];
        }
}

static void backward_block(const Attention *task, Packed *pack, Lists *l, Distances *d,
                           BlockGradients *g, int normalizer, int64_t chunk) {
    const Place p = place_of(task, pack->head);
    const int64_t first = chunk * CHUNK, left = task->queries - first;
    const int rows = left < CHUNK ? (int)left : CHUNK;
    const double *level = task->level + pack->head * task->queries + first;
    const float *most = task->bar + pack->head * task->queries + first;
    int64_t seen[CHUNK];
    for (int i = 0; i < rows; i++) {
        copy_row(pack->queries + i * pack->size, row_of(&task->query, p, first + i), task->size,
                 task->scale);
        copy_row(g->grad_out + i * pack->value_size, row_of(&task->grad_out, p, first + i),
                 task->value_size, 1);
        seen[i] = visible(task, pack, first + i);
        l->count[i] = 0;
    }
    place_distances(task, pack, d, first, rows);
    if (d->distances) {
        fill_distances(pack->queries, pack->size, rows, task->relative_keys, task->size,
                       d->distances, d->keys);
        if (task->relative_values)
            fill_distances(g->grad_out, pack->value_size, rows, task->relative_values,
                           task->value_size, d->distances, d->values);
    }
    const int64_t most_keys = visible(task, pack, first + rows - 1);
    for (int64_t tile = 0; tile < most_keys; tile += TILE) {
        const int64_t count = most_keys - tile < TILE ? most_keys - tile : TILE;
        score_tile(task, pack, tile, count, 0, rows);
        for (int i = 0; i < rows; i++) {
            float *s = pack->scores + i * TILE;
            const int64_t limit = seen[i] - tile < count ? seen[i] - tile : count;
            if (limit > 0 && has_terms(task))
                add_terms(task, pack, d, i, first + i, tile, limit, s);
            collect_support(l, normalizer, i, s, limit, level[i], most[i], tile);
        }
    }
    memset(g->grad_query, 0, (size_t)(CHUNK * pack->size) * sizeof(float));
    for (int i = 0; i < rows; i++) {
        int32_t *at = l->at + i * l->room;
        const int64_t count = l->count[i];
        for (int64_t k = count; k < ROUNDED(count, LANES); k++) at[k] = 0;
        weigh_list(l, normalizer, i, level[i]);
        dot_list(count, at, g->grad_out + i * pack->value_size, pack->values, pack->value_size,
                 l->grad + i * l->room);
        differentiate_list(task, pack, l, d, i, first + i);
        add_list(count, at, l->grad + i * l->room, pack->keys, pack->size,
                 g->grad_query + i * pack->size);
        if (!d->distances) continue;
        float *mass = d->mass + i * d->distances, *grad = d->grad + i * d->distances;
        sum_by_distance(task, pack, l, d, i, first + i, l->score + i * l->room, mass);
        sum_by_distance(task, pack, l, d, i, first + i, l->grad + i * l->room, grad);
        const float *query = pack->queries + i * pack->size;
        const float *grad_out = g->grad_out + i * pack->value_size;
        for (int64_t m = 0; m < d->distances; m++) {
            add_scaled(g->grad_query + i * pack->size, grad[m],
                       task->relative_keys + m * task->size, task->size);
            add_scaled(g->grad_relative_keys + m * task->size, grad[m], query, task->size);
            if (task->relative_values)
                add_scaled(g->grad_relative_values + m * task->value_size, mass[m], grad_out,
                           task->value_size);
        }
    }
    for (int i = 0; i < rows; i++)
        write_row(row_of(&task->grad_query, p, first + i), g->grad_query + i * pack->size,
                  task->size, task->scale);
    transpose_lists(l, rows, pack->count, &g->columns);
    for (int64_t j = 0, begin = 0; j < pack->count; j++) {
        const int64_t end = g->columns.start[j]; /* after filling: the end */
        if (end == begin) continue;
        const int count = (int)(end - begin);
        add_rows(count, g->columns.row + begin, g->columns.weight + begin, g->grad_out,
                 pack->value_size, 1.0f, g->grad_values + j * pack->value_size);
        add_rows(count, g->columns.row + begin, g->columns.grad + begin, pack->queries, pack->size,
                 1.0f, g->grad_keys + j * pack->size);
        begin = end;
    }
}

/* The table of gradients of one item of work, if there is any. */
INLINE float *part_of(float *tables, int64_t item, const Distances *d, int64_t size) {
    return tables ? tables + item * d->distances * size : NULL;
}

INLINE int backward_blocks(int normalizer, const Attention *task, int64_t begin, int64_t end) {
    const int64_t keys = ROUNDED(task->keys, TILE);
    Packed pack;
    Lists lists;
    Distances distances;
    BlockGradients g;
    Arena arena = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        lay_out(task, &pack, &arena, 1);
        lay_out_lists(task, &lists, &distances, &arena, 1);
        g.grad_out = take(&arena, CHUNK * pack.value_size, sizeof(float));
        g.grad_query = take(&arena, CHUNK * pack.size, sizeof(float));
        g.grad_keys = take(&arena, keys * pack.size, sizeof(float));
        g.grad_values = take(&arena, keys * pack.value_size, sizeof(float));
        g.columns.start = take(&arena, keys + 1, sizeof(int32_t));
        g.columns.row = take(&arena, CHUNK * keys, 1);
        g.columns.weight = take(&arena, CHUNK * keys, sizeof(float));
        g.columns.grad = take(&arena, CHUNK * keys, sizeof(float));
        if (pass == 0) {
            arena = (Arena){aligned_alloc(64, arena.used), 0};
            if (!arena.data) return NO_MEMORY;
        }
    }
    const int64_t chunks = chunks_of(task);
    lists.gap = 1; /* read, but not used, where there is no alpha */
    for (int64_t item = begin; item < end; item++) {
        if (task->alphas) lists.gap = (float)(task->alphas[item / task->splits] - 1);
        lists.grad_alpha = 0;
        const int64_t split = item % task->splits;
        pack_head(task, &pack, item / task->splits);
        memset(g.grad_keys, 0, (size_t)(keys * pack.size) * sizeof(float));
        memset(g.grad_values, 0, (size_t)(keys * pack.value_size) * sizeof(float));
        g.grad_relative_keys = part_of(task->grad_relative_keys, item, &distances, task->size);
        g.grad_relative_values =
            part_of(task->grad_relative_values, item, &distances, task->value_size);
        const int64_t last = chunks * (split + 1) / task->splits;
        for (int64_t c = chunks * split / task->splits; c < last; c++)
            backward_block(task, &pack, &lists, &distances, &g, normalizer, folded(c, chunks));
        if (task->grad_alphas) task->grad_alphas[item] = lists.grad_alpha;
        const Place p = place_of(task, pack.head);
        unpack(&pack, g.grad_keys, pack.size, &task->grad_key, p, split * task->grad_key_split,
               task->keys, task->size);
        unpack(&pack, g.grad_values, pack.value_size, &task->grad_value, p,
               split * task->grad_value_split, task->keys, task->value_size);
    }
    free(arena.data);
    return OK;
}

static int blocks_backward(const void *argument, int64_t begin, int64_t end) {
    const Attention *task = argument;
#define BACKWARD_BLOCKS(name) case id_##name: return backward_blocks(id_##name, task, begin, end);
    switch (task->normalizer) { NORMALIZERS(BACKWARD_BLOCKS) }
    return BAD_ARGUMENT;
}
