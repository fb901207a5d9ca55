/* What enters scores beside query . key, and leaves beside the values: position terms, a bias and a
 * mask per query. Part of `variant.h`. */

/* A table of relative positions, as the kernels read it. */
typedef struct {
    int64_t size;           /* of a row, padded to whole vectors */
    float *rows;            /* [distances][size], padded with zeros */
    float *panels;          /* [distances / PANEL][size][PANEL], transposed; see `Packed` */
} RelativeTable;

/* What position terms need for the rows of a chunk. */
typedef struct {
    int64_t distances;      /* 2 window + 1, or 0 without relative positions */
    int64_t stride;         /* the same, padded to whole panels; what is behind the last is 0 */
    RelativeTable key_table, value_table; /* of the keys, and of the values if they have one */
    float *keys;            /* [CHUNK][stride]: query . relative key */
    float *values;          /* [CHUNK][stride]: backward, grad_out . relative value */
    float *mass;            /* [stride] of one row: weights of the keys at a distance */
    float *grad;            /* [stride] of one row: backward, dS of the keys at a distance */
    float *weight;          /* [distances], [distances]: those of one row that are not 0, … */
    int32_t *at;            /* … and their numbers */
    int64_t near[CHUNK], far[CHUNK]; /* packed keys before `near` are beyond the window on the left,
                                      * those from `far` on are beyond it on the right */
    int64_t begin, end;     /* the same among the listed keys of one row */
} Distances;

INLINE void lay_out_table(RelativeTable *t, int64_t distances, int64_t size, Arena *arena) {
    t->size = ROUNDED(size, LANES);
    t->rows = take(arena, distances * t->size, sizeof(float));
    t->panels = take(arena, ROUNDED(distances, PANEL) * size, sizeof(float));
}

INLINE void lay_out_distances(const Attention *task, Distances *d, Arena *arena, int backward) {
    d->distances = task->window ? 2 * task->window + 1 : 0;
    d->stride = ROUNDED(d->distances, PANEL);
    lay_out_table(&d->key_table, d->distances, task->size, arena);
    lay_out_table(&d->value_table, task->relative_values ? d->distances : 0, task->value_size,
                  arena);
    d->keys = take(arena, CHUNK * d->stride, sizeof(float));
    d->mass = take(arena, d->stride, sizeof(float));
    d->values = backward ? take(arena, CHUNK * d->stride, sizeof(float)) : NULL;
    d->grad = backward ? take(arena, d->stride, sizeof(float)) : NULL;
    /* Whole vectors are written behind the last. */
    d->weight = take(arena, d->stride + LANES, sizeof(float));
    d->at = take(arena, d->stride + LANES, sizeof(int32_t));
}

static void read_table(RelativeTable *t, const float *from, int64_t distances, int64_t size) {
    for (int64_t m = 0; m < distances; m++) copy_row(t->rows + m * t->size, from + m * size, size, 1);
    for (int64_t m = 0; m < ROUNDED(distances, PANEL); m += LANES) {
        const float *row[LANES];
        for (int i = 0; i < LANES; i++) row[i] = m + i < distances ? from + (m + i) * size : NULL;
        transpose_rows(row, size, t->panels + m / PANEL * PANEL * size + m % PANEL);
    }
}

/* Once for all heads, which share the tables. */
static void read_tables(const Attention *task, Distances *d) {
    if (!d->distances) return;
    read_table(&d->key_table, task->relative_keys, d->distances, task->size);
    if (task->relative_values)
        read_table(&d->value_table, task->relative_values, d->distances, task->value_size);
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

/* Products of the rows of a chunk, queries or gradients of outputs, with all rows of a table of rows
 * of `size` floats. `scores` is a tile's, and is overwritten. */
static void fill_distances(const float *from, int rows, const RelativeTable *t, int64_t size,
                           int64_t stride, float *scores, float *to) {
    for (int64_t m = 0; m < stride; m += PANEL) {
        score_rows(from, t->size, size, t->panels + m * size, 0, rows, scores);
        for (int i = 0; i < rows; i++) {
            store(to + i * stride + m, load(scores + i * TILE));
            store(to + i * stride + m + LANES, load(scores + i * TILE + LANES));
        }
    }
}

/* Those of one row's numbers, by distance, that are not 0, to `weight` and `at`; in a short row they
 * are few. Returns how many. */
INLINE int64_t list_distances(const Distances *d, const float *x) {
    int64_t found = 0;
    for (int64_t m = 0; m < d->distances; m += LANES) {
        const vf w = load(x + m);
        found += compress_at(d->weight + found, d->at + found, w, counting(m), w != splat(0.0f));
    }
    return found;
}

/* sum += x[m] * (row m of the table) over what `list_distances` listed. */
INLINE void add_relative(const Distances *d, int64_t found, const RelativeTable *t, float *sum) {
    list_add_rows(found, d->at, d->weight, t->rows, t->size, 1.0f, sum);
}

/* Row m of a table's gradient += x[m] * from, over the same. */
INLINE void add_to_table(const Distances *d, int64_t found, const float *from, int64_t size,
                         float *grad) {
    for (int64_t k = 0; k < found; k++)
        add_scaled(grad + d->at[k] * size, d->weight[k], from, size);
}

/* Where the window of each row begins and ends: it moves on with the rows. */
static void place_distances(const Attention *task, const Packed *pack, Distances *d, int64_t first,
                            int rows) {
    if (!d->distances || !rows) return;
    int64_t near = packed_up_to(pack, first + task->offset - task->window), far = near;
    for (int i = 0; i < rows; i++) {
        const int64_t at = first + i + task->offset;
        while (near < pack->count && pack->position[near] <= at - task->window) near++;
        while (far < pack->count && pack->position[far] < at + task->window) far++;
        d->near[i] = near;
        d->far[i] = far;
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

/* Adds what the table has for each of the keys begin .. end-1 of a tile, all within the window; as a
 * rule none between them is masked, and what is added stands side by side. */
INLINE void add_window(const Attention *task, const Packed *pack, int64_t query, int64_t tile,
                       int64_t begin, int64_t end, const float *table, float *s) {
    int64_t j = begin;
    const int32_t *at = pack->position + tile;
    if (end - begin >= LANES && at[end - 1] - at[begin] == end - 1 - begin) {
        const float *from = table + distance_of(task, pack, query, tile + begin) - begin;
        for (; j + LANES <= end; j += LANES) store(s + j, load(s + j) + load(from + j));
    }
    for (; j < end; j++) s[j] += table[distance_of(task, pack, query, tile + j)];
}

/* Adds to the scores of row i with `count` packed keys from `tile` on whatever is not query . key,
 * and makes those of masked keys -inf. Without a mask per query or a bias keys are packed; with
 * either they are in their places. */
INLINE void add_terms(const Attention *task, const Packed *pack, const Distances *d, int i,
                      int64_t query, int64_t tile, int64_t count, float *s) {
    const Place p = place_of(task, pack->head);
    if (d->distances) {
        const float *table = d->keys + i * d->stride;
        const int64_t near = d->near[i] - tile, far = d->far[i] - tile;
        const int64_t begin = near < 0 ? 0 : near > count ? count : near;
        const int64_t end = far < begin ? begin : far > count ? count : far;
        add_constant(s, 0, begin, table[0]);
        add_window(task, pack, query, tile, begin, end, table, s);
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

/* The first listed key of row i whose place among the packed is not before `place`. The processor
 * could not guess which half it is in: nothing branches on that. */
INLINE int64_t listed_from(const Lists *l, int i, int64_t place) {
    const int32_t *const at = l->at + i * l->room, *from = at;
    int64_t left = l->count[i];
    while (left > 0) {
        const int64_t half = (left + 1) / 2;
        from += from[half - 1] < place ? half : 0;
        left -= half;
    }
    return from - at;
}

/* The listed keys begin .. end-1 of row i are within the window; as a rule most are not. */
INLINE void list_window(const Lists *l, Distances *d, int i) {
    d->begin = listed_from(l, i, d->near[i]);
    d->end = listed_from(l, i, d->far[i]);
}

INLINE float sum_of(const float *x, int64_t begin, int64_t end) {
    double total = 0;
    int64_t k = begin;
    if (k + LANES <= end) { /* else, as in most short rows, there is nothing to add up in lanes */
        Sum sum = {{0}, {0}};
        for (; k + LANES <= end; k += LANES) sum_vector(&sum, load(x + k));
        total = sum_total(&sum);
    }
    for (; k < end; k++) total += x[k];
    return (float)total;
}

/* What the listed keys of row i have of x, and of y if it is there, by their distances; see
 * `list_window`. Within the window no two keys have the same. */
INLINE void sum_by_distance(const Attention *task, const Packed *pack, const Lists *l,
                            const Distances *d, int i, int64_t query, const float *x, float *x_to,
                            const float *y, float *y_to) {
    const int32_t *at = l->at + i * l->room;
    const int64_t first = query + task->offset - task->window, last = d->distances - 1;
    for (int64_t m = 0; m < d->stride; m += LANES) {
        store(x_to + m, splat(0.0f));
        if (y) store(y_to + m, splat(0.0f));
    }
    for (int64_t k = d->begin; k < d->end; k++) {
        const int64_t m = pack->position[at[k]] - first;
        x_to[m] = x[k];
        if (y) y_to[m] = y[k];
    }
    x_to[0] += sum_of(x, 0, d->begin);
    x_to[last] += sum_of(x, d->end, l->count[i]);
    if (!y) return;
    y_to[0] += sum_of(y, 0, d->begin);
    y_to[last] += sum_of(y, d->end, l->count[i]);
}

/* x of every listed key of row i plus what the table has for its distance. */
INLINE void add_by_distance(const Attention *task, const Packed *pack, const Lists *l,
                            const Distances *d, int i, int64_t query, const float *table,
                            float *x) {
    const int32_t *at = l->at + i * l->room;
    add_constant(x, 0, d->begin, table[0]);
    for (int64_t k = d->begin; k < d->end; k++)
        x[k] += table[distance_of(task, pack, query, at[k])];
    add_constant(x, d->end, l->count[i], table[d->distances - 1]);
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
            const float *table = d->keys + i * d->stride;
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
