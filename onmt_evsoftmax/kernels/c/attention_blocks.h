/* Attention of every normalizer, a block of queries at a time, forward: part of `variant.h`.
 *
 * Scores are computed tile by tile and never stored as a matrix: the few that matter go into lists.
 * When the last tile is done, the row kernels find the threshold in the list, what lies above it is
 * the support, and only its values are added up.
 */

/* Makes the lists of rows begin .. begin + LANES - 1 factor (score - most), where a row is sound,
 * and says how long each of these is; returns the longest. */
static int64_t center_lists(Lists *l, int begin, int rows, float factor, int64_t found[LANES]) {
    int64_t longest = 0;
    for (int i = 0; i < LANES; i++) {
        const int r = begin + i;
        found[i] = 0;
        if (r >= rows || l->poisoned[r] || !l->count[r]) continue;
        float *d = l->score + r * l->room;
        found[i] = l->count[r];
        for (int64_t k = 0; k < found[i]; k += LANES)
            store(d + k, centered(load(d + k), splat(l->most[r]), factor));
        store(d + found[i], splat(-INFINITY));
        longest = found[i] > longest ? found[i] : longest;
    }
    return longest;
}

/* Those lists, side by side. */
INLINE Tile tile_of_lists(const Lists *l, int begin, const int64_t found[LANES], int64_t longest) {
    Tile t;
    t.n = ROUNDED(longest, LANES);
    read_tile(&t, l->score + begin * l->room, l->room, found);
    return t;
}

/* The thresholds of centered lists of projections, in double. */
static void project_lists(Lists *l, int normalizer, int begin, int rows, double tau[LANES]) {
    int64_t found[LANES];
    const int64_t longest = center_lists(l, begin, rows, 1.0f / reach(normalizer), found);
    double together[LANES];
    if (longest <= FORWARD_TOGETHER) {
        const Tile t = tile_of_lists(l, begin, found, longest);
        store_double(together, tile_tau(normalizer, &t));
    }
    for (int i = 0; i < LANES; i++) {
        tau[i] = INFINITY;
        if (!found[i]) continue;
        const float *d = l->score + (begin + i) * l->room;
        tau[i] = longest <= FORWARD_TOGETHER
                     ? together[i]
                     : row_tau(normalizer, d, ROUNDED(found[i], LANES) / LANES);
    }
}

/* Of entmax with any alpha: the lists become weights, whose sums have the logarithms `level`. */
static void weigh_lists(Lists *l, int begin, int rows, double level[LANES]) {
    const vf gap = splat(l->gap);
    int64_t found[LANES];
    const int64_t longest = center_lists(l, begin, rows, 1.0f, found);
    float root[LANES];
    if (longest <= FORWARD_TOGETHER) {
        const Tile t = tile_of_lists(l, begin, found, longest);
        store(root, tile_alpha(&t, gap));
    }
    for (int i = 0; i < LANES; i++) {
        level[i] = INFINITY;
        if (!found[i]) continue;
        float *d = l->score + (begin + i) * l->room;
        if (longest > FORWARD_TOGETHER)
            root[i] = row_alpha(d, ROUNDED(found[i], LANES) / LANES, gap)[0];
        level[i] = log(alpha_weights(d, found[i], gap, splat(root[i])));
    }
}

/* What remains of the list of row r: its support, with probabilities. The list has weights, whose sum
 * has the logarithm `level` (entmax), or centered scores, whose threshold that is. */
INLINE void keep_support(Lists *l, int normalizer, int r, double level) {
    const int powers = normalizer == id_entmax;
    const float head = (float)level, tail = (float)(level - head);
    const float factor = powers ? (float)exp(-level) : 0;
    float *score = l->score + r * l->room;
    int32_t *at = l->at + r * l->room;
    int64_t found = 0;
    for (int64_t k = 0; k < l->count[r]; k += LANES) {
        const vf x = load(score + k), u = powers ? x : (x - head) - tail;
        const vf p = powers ? x * factor : projected(normalizer, u);
        vi place;
        memcpy(&place, at + k, sizeof place);
        found += compress_at(score + found, at + found, p, place, u > splat(0.0f));
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
INLINE void give_out(const Attention *task, const Packed *pack, const Lists *l, Distances *d,
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
    list_add_rows(count, at, weight, pack->values, pack->value_size, 1.0f, sum);
    if (d->distances && task->relative_values) {
        list_window(l, d, i);
        sum_by_distance(task, pack, l, d, i, query, weight, d->mass, NULL, NULL);
        add_relative(d, list_distances(d, d->mass), &d->value_table, sum);
    }
    write_row(out, sum, task->value_size, 1);
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
        fill_distances(pack->queries, rows, &d->key_table, task->size, d->stride, pack->scores,
                       d->keys);
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
        } else {
            keep_support(l, normalizer, i, level[i]);
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

INLINE int forward_blocks(int normalizer, const Attention *task, int64_t begin, int64_t end) {
    Packed pack;
    Lists lists;
    Distances distances;
    float *sum = NULL;
    Arena arena = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        lay_out(task, &pack, &arena, 0);
        lay_out_lists(task, &lists, &arena, 0);
        lay_out_distances(task, &distances, &arena, 0);
        sum = take(&arena, pack.value_size, sizeof(float));
        if (pass == 0 && !reserve(&arena)) return NO_MEMORY;
    }
    read_tables(task, &distances);
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
