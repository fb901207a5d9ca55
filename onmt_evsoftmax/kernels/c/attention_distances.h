/* What enters scores beside query . key, and leaves beside the values: position terms, a bias and a
 * mask per query. Part of `variant.h`. */

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

INLINE void lay_out_distances(const Attention *task, Distances *d, Arena *arena, int backward) {
    d->distances = task->window ? 2 * task->window + 1 : 0;
    d->keys = take(arena, CHUNK * d->distances, sizeof(float));
    d->mass = take(arena, CHUNK * d->distances, sizeof(float));
    d->values = backward ? take(arena, CHUNK * d->distances, sizeof(float)) : NULL;
    d->grad = backward ? take(arena, CHUNK * d->distances, sizeof(float)) : NULL;
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

/* --------------------------------------------------------------------- lists and distances */

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

/* What the listed keys of row i have of x, by their distances. Lists are in the order of the keys,
 * so those beyond the window, most of them, come first and last. */
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
