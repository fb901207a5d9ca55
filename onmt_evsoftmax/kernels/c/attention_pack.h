/* ev-softmax attention without the matrix of scores: part of `variant.h`.
 *
 * The mean of a row of scores is the query times the mean of the keys, so the threshold of a row is
 * known before its scores. Keys are walked through in tiles of TILE; in each, the scores of CHUNK
 * queries are computed, what reaches its threshold becomes a bit, and only for those bits are
 * exponentials taken and values added, with the running maximum of an online softmax.
 *
 * Before that, the keys and values of a head that take part are packed: keys that are masked cost
 * nothing from then on. `at` in all that follows counts packed keys.
 */

#define TILE 128                            /* keys of a tile: longer ones have longer runs of
                                             * kept keys, shorter ones fit the nearest cache */
#define PANEL (2 * LANES)                   /* keys whose scores one micro-kernel computes */
#define ROUNDED(n, to) (((n) + (to) - 1) / (to) * (to))

typedef struct {
    int64_t head;                           /* whose keys and values are packed, or -1 */
    int64_t count;                          /* packed keys */
    int64_t size, value_size;               /* padded to whole vectors, with zeros */
    int32_t *position;                      /* [keys] of a packed key: its place before packing */
    float *panels;                          /* [keys / PANEL][size][PANEL] keys, transposed */
    float *values, *keys;                   /* [keys][value_size], [keys][size]; the latter only
                                             * backward */
    double *sums;                           /* [1][size] of all packed keys; causal: [chunks][size],
                                             * of those that queries of earlier chunks attend to */
    float *queries;                         /* [CHUNK][size] of one chunk, scaled */
    float *scores;                          /* [CHUNK][TILE] of one tile */
} Packed;

typedef struct { int64_t batch, head; } Place;

INLINE Place place_of(const Attention *task, int64_t head) {
    return (Place){head / task->heads, head % task->heads};
}

INLINE float *row_of(const Tensor4 *t, Place p, int64_t i) {
    return t->data + p.batch * t->batch + p.head * t->head + i * t->length;
}

INLINE int64_t chunks_of(const Attention *task) { return (task->queries + CHUNK - 1) / CHUNK; }

/* Whether keys that no query may see are left out. With a mask of its own for every query, or a
 * bias, which both go by places, keys stay in theirs. */
INLINE int packs(const Attention *task) {
    return task->mask && task->mask_query == 0 && !task->bias;
}

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

/* The number of packed keys that query i attends to. */
INLINE int64_t visible(const Attention *task, const Packed *pack, int64_t i) {
    if (!task->causal || i >= task->keys - 1) return pack->count;
    if (i < 0) return 0;
    return packed_up_to(pack, i);
}

/* Copy a row, times a factor, up to its last element. */
INLINE void write_row(float *to, const float *from, int64_t size, float factor) {
    int64_t d = 0;
    for (; d + LANES <= size; d += LANES) store(to + d, load(from + d) * factor);
    for (; d < size; d++) to[d] = from[d] * factor;
}

/* Copy a row into whole vectors, times a factor. */
INLINE void copy_row(float *to, const float *from, int64_t size, float factor) {
    int64_t d = 0;
    for (; d + LANES <= size; d += LANES) store(to + d, load(from + d) * factor);
    if (d < size) store(to + d, load_first(from + d, (int)(size - d), 0.0f) * factor);
}

/* LANES rows of `size` floats, transposed, into one half of a panel; zeros for a row that is NULL. */
INLINE void transpose_rows(const float *const row[LANES], int64_t size, float *half) {
    for (int64_t d = 0; d < size; d += LANES) {
        vf v[LANES];
        for (int i = 0; i < LANES; i++)
            v[i] = row[i] ? load_up_to(row[i] + d, size - d, 0.0f) : splat(0.0f);
        transpose(v);
        for (int i = 0; i < LANES && i < size - d; i++) store(half + (d + i) * PANEL, v[i]);
    }
}

/* PANEL keys from packed key `first` on, transposed; keys beyond the last are zero. */
INLINE void pack_panel(const Attention *task, Packed *pack, Place p, int64_t first, float *panel) {
    for (int half = 0; half < 2; half++) {
        const float *row[LANES];
        for (int i = 0; i < LANES; i++) {
            const int64_t at = first + half * LANES + i;
            row[i] = at < pack->count ? row_of(&task->key, p, pack->position[at]) : NULL;
        }
        transpose_rows(row, task->size, panel + half * LANES);
    }
}

/* Sums of the packed keys in double; see `Packed`. */
static void sum_keys(const Attention *task, Packed *pack, Place p) {
    const int64_t sums = task->causal ? chunks_of(task) : 1;
    for (int64_t d = 0; d < task->size; d += LANES) {
        Sum sum = {{0}, {0}};
        int64_t at = 0;
        for (int64_t c = 0; c < sums; c++) {
            const int64_t end = task->causal ? visible(task, pack, c * CHUNK - 1) : pack->count;
            for (; at < end; at++) {
                const float *key = row_of(&task->key, p, pack->position[at]) + d;
                sum_vector(&sum, load_up_to(key, task->size - d, 0.0f));
            }
            store_double(pack->sums + c * pack->size + d, sum);
        }
    }
}

static void pack_head(const Attention *task, Packed *pack, int64_t head) {
    if (pack->head == head) return;
    pack->head = head;
    const Place p = place_of(task, head);
    const uint8_t *mask = packs(task) ? task->mask : NULL;
    if (mask) mask += p.batch * task->mask_batch + p.head * task->mask_head;
    pack->count = 0;
    for (int64_t j = 0; j < task->keys; j++)
        if (!mask || mask[j]) pack->position[pack->count++] = (int32_t)j;
    /* Places beyond the last are read (by whole vectors) but not used. */
    for (int64_t j = pack->count; j < ROUNDED(task->keys, TILE); j++) pack->position[j] = 0;
    for (int64_t first = 0; first < pack->count; first += PANEL)
        pack_panel(task, pack, p, first, pack->panels + first * task->size);
    for (int64_t at = 0; at < pack->count; at++) {
        const int64_t j = pack->position[at];
        const float *value = row_of(&task->value, p, j);
        copy_row(pack->values + at * pack->value_size, value, task->value_size, 1);
        if (pack->keys)
            copy_row(pack->keys + at * pack->size, row_of(&task->key, p, j), task->size, 1);
    }
    if (pack->sums) sum_keys(task, pack, p);
}

/* One aligned piece of memory, handed out in stretches. Without data, `take` only counts. */
typedef struct { char *data; size_t used; } Arena;

INLINE void *take(Arena *arena, int64_t count, size_t size) {
    void *stretch = arena->data ? arena->data + arena->used : NULL;
    arena->used += ROUNDED((size_t)count * size, 64);
    return stretch;
}

/* The memory for all that was counted so far; whether there is so much. */
INLINE int reserve(Arena *arena) {
    *arena = (Arena){aligned_alloc(64, arena->used), 0};
    return arena->data != NULL;
}

/* Called twice: to learn the size of the arena, and to hand it out. */
static void lay_out(const Attention *task, Packed *pack, Arena *arena, int backward) {
    const int64_t keys = ROUNDED(task->keys, TILE), sums = task->causal ? chunks_of(task) : 1;
    pack->head = -1;
    pack->size = ROUNDED(task->size, LANES);
    pack->value_size = ROUNDED(task->value_size, LANES);
    pack->position = take(arena, keys, sizeof(int32_t));
    pack->panels = take(arena, keys * task->size, sizeof(float));
    pack->values = take(arena, keys * pack->value_size, sizeof(float));
    pack->keys = backward ? take(arena, keys * pack->size, sizeof(float)) : NULL;
    pack->sums = backward ? NULL : take(arena, sums * pack->size, sizeof(double));
    pack->queries = take(arena, CHUNK * pack->size, sizeof(float));
    pack->scores = take(arena, CHUNK * TILE, sizeof(float));
}

/* ------------------------------------------------------------------------------ thresholds */

/* The mean score of every query of a chunk, from the sum of its keys. NaN where it has no keys. */
static void find_thresholds(const Attention *task, Packed *pack, int64_t chunk, int rows,
                            float *threshold) {
    const Place p = place_of(task, pack->head);
    /* Where causal, used up: a chunk is worked on once. */
    double *sum = pack->sums + (task->causal ? chunk * pack->size : 0);
    int64_t at = visible(task, pack, chunk * CHUNK - 1);
    for (int i = 0; i < rows; i++) {
        int64_t count = pack->count;
        if (task->causal) {
            count = visible(task, pack, chunk * CHUNK + i);
            for (; at < count; at++) {
                const float *key = row_of(&task->key, p, pack->position[at]);
                for (int64_t d = 0; d < task->size; d++) sum[d] += key[d];
            }
        }
        const float *query = pack->queries + i * pack->size;
        Sum dot = {{0}, {0}};
        for (int64_t d = 0; d < pack->size; d += LANES) {
            const Sum q = in_double(load(query + d)), s = load_double(sum + d);
            dot.low += q.low * s.low;
            dot.high += q.high * s.high;
        }
        threshold[i] = (float)(sum_total(&dot) / (double)count);
    }
}
