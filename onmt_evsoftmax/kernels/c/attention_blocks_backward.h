/* Attention of every normalizer, a block of queries at a time, backward: part of `variant.h`.
 *
 * The scores are computed again, and all the rest is done for the support alone: gradients of the
 * queries from the lists, those of keys and values from the same pairs in the order of the keys.
 */

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
        add_by_distance(task, pack, l, d, i, query, d->values + i * d->stride, grad);
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
        fill_distances(pack->queries, rows, &d->key_table, task->size, d->stride, pack->scores,
                       d->keys);
        if (task->relative_values)
            fill_distances(g->grad_out, rows, &d->value_table, task->value_size, d->stride,
                           pack->scores, d->values);
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
    memset(g->grad_query, 0, (size_t)(rows * pack->size) * sizeof(float));
    for (int i = 0; i < rows; i++) {
        int32_t *at = l->at + i * l->room;
        const int64_t count = l->count[i];
        for (int64_t k = count; k < ROUNDED(count, LANES); k++) at[k] = 0;
        if (d->distances) list_window(l, d, i);
        weigh_list(l, normalizer, i, level[i]);
        list_dot_rows(count, at, g->grad_out + i * pack->value_size, pack->values, pack->value_size,
                      l->grad + i * l->room);
        differentiate_list(task, pack, l, d, i, first + i);
        list_add_rows(count, at, l->grad + i * l->room, pack->keys, pack->size, 1.0f,
                      g->grad_query + i * pack->size);
        if (!d->distances) continue;
        sum_by_distance(task, pack, l, d, i, first + i, l->grad + i * l->room, d->grad,
                        task->relative_values ? l->score + i * l->room : NULL, d->mass);
        const int64_t found = list_distances(d, d->grad);
        add_relative(d, found, &d->key_table, g->grad_query + i * pack->size);
        add_to_table(d, found, pack->queries + i * pack->size, task->size, g->grad_relative_keys);
        if (task->relative_values)
            add_to_table(d, list_distances(d, d->mass), g->grad_out + i * pack->value_size,
                         task->value_size, g->grad_relative_values);
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
        lay_out_lists(task, &lists, &arena, 1);
        lay_out_distances(task, &distances, &arena, 1);
        g.grad_out = take(&arena, CHUNK * pack.value_size, sizeof(float));
        g.grad_query = take(&arena, CHUNK * pack.size, sizeof(float));
        g.grad_keys = take(&arena, keys * pack.size, sizeof(float));
        g.grad_values = take(&arena, keys * pack.value_size, sizeof(float));
        g.columns.start = take(&arena, keys + 1, sizeof(int32_t));
        g.columns.row = take(&arena, CHUNK * keys, 1);
        g.columns.weight = take(&arena, CHUNK * keys, sizeof(float));
        g.columns.grad = take(&arena, CHUNK * keys, sizeof(float));
        if (pass == 0 && !reserve(&arena)) return NO_MEMORY;
    }
    read_tables(task, &distances);
    const int64_t chunks = chunks_of(task);
    lists.gap = 1; /* read, but not used, where there is no alpha */
    for (int64_t item = begin; item < end; item++) {
        if (task->alphas) lists.gap = (float)(task->alphas[item / task->splits] - 1);
        lists.grad_alpha = 0;
        const int64_t split = item % task->splits;
        pack_head(task, &pack, item / task->splits);
        memset(g.grad_keys, 0, (size_t)(pack.count * pack.size) * sizeof(float));
        memset(g.grad_values, 0, (size_t)(pack.count * pack.value_size) * sizeof(float));
        g.grad_relative_keys = part_of(task->grad_relative_keys, item, &distances, task->size);
        g.grad_relative_values =
            part_of(task->grad_relative_values, item, &distances, task->value_size);
        const int64_t last = chunks * (split + 1) / task->splits;
        for (int64_t c = chunks * split / task->splits; c < last; c++)
            backward_block(task, &pack, &lists, &distances, &g, normalizer, folded(c, chunks));
        if (task->grad_alphas) task->grad_alphas[item] = lists.grad_alpha;
        unpack_gradients(task, &pack, g.grad_keys, g.grad_values, split);
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
