/* Attention of one query for each head, forward only, as in decoding: part of `variant.h`.
 *
 * Keys and values are read once, where they are: packing them would cost more than all the rest.
 * The scores go where the probabilities will be, the row kernels normalize them there, and the
 * values of the support are added up.
 */

#define HEADS_TOGETHER 32 /* whose scores are normalized while they are in the nearest cache */

typedef struct {
    float *query;   /* [size], scaled */
    float *row;     /* [keys] scores, then weights of the support */
    float *table;   /* [distances] query . relative key, then weights of the keys at a distance */
    float *sum;     /* [value_size] */
    int32_t *all, *at; /* [keys]: 0, 1, 2, ...; places of the support */
} OneQuery;

/* Keys before `near` are beyond the window on the left, those from `far` on, on the right. */
typedef struct { int64_t near, far; } Window;

INLINE int64_t within(int64_t i, int64_t least, int64_t most) {
    return i < least ? least : i > most ? most : i;
}

INLINE Window window_of(const Attention *task) {
    const int64_t near = within(task->offset - task->window + 1, 0, task->keys);
    return (Window){near, within(task->offset + task->window, near, task->keys)};
}

/* Every score is one and the same chain of additions: equal keys have equal scores. */
static void score_keys(const Attention *task, Place p, const OneQuery *o, float *scores) {
    const int64_t keys = task->keys, whole = task->size / LANES * LANES;
    const float *key = row_of(&task->key, p, 0);
    float *s = o->row;
    write_row(o->query, row_of(&task->query, p, 0), task->size, task->scale);
    list_dot_apart(keys, o->all, o->query, key, task->key.length, task->size, s);
    for (int64_t d = whole; d < task->size; d++)
        for (int64_t j = 0; j < keys; j++) s[j] += o->query[d] * key[j * task->key.length + d];
    if (task->window) {
        const Window w = window_of(task);
        const int64_t last = 2 * task->window;
        for (int64_t m = 0; m <= last; m++)
            o->table[m] = dot_plain(o->query, task->relative_keys + m * task->size, task->size);
        add_constant(s, 0, w.near, o->table[0]);
        for (int64_t j = w.near; j < w.far; j++) s[j] += o->table[j - task->offset + task->window];
        add_constant(s, w.far, keys, o->table[last]);
    }
    if (task->slopes) {
        const float slope = task->slopes[p.batch * task->heads + p.head];
        for (int64_t j = 0; j < keys; j++) s[j] -= slope * fabsf((float)(j - task->offset));
    }
    memcpy(scores, s, (size_t)keys * sizeof(float));
}

static void add_values(const Attention *task, Place p, const OneQuery *o, const float *weights) {
    const int64_t keys = task->keys, size = task->value_size, whole = size / LANES * LANES;
    const float *value = row_of(&task->value, p, 0);
    int64_t found = 0;
    for (int64_t j = 0; j < keys; j += LANES) {
        const vf w = load_up_to(weights + j, keys - j, 0.0f);
        found += compress_at(o->row + found, o->at + found, w, counting(j), w != splat(0.0f));
    }
    memset(o->sum, 0, (size_t)size * sizeof(float));
    list_add_apart(found, o->at, o->row, value, task->value.length, size, 1.0f, o->sum);
    for (int64_t d = whole; d < size; d++)
        for (int64_t k = 0; k < found; k++)
            o->sum[d] += o->row[k] * value[o->at[k] * task->value.length + d];
    if (task->relative_values) {
        const Window w = window_of(task);
        const int64_t last = 2 * task->window;
        memset(o->table, 0, (size_t)(last + 1) * sizeof(float));
        for (int64_t j = w.near; j < w.far; j++)
            o->table[j - task->offset + task->window] = weights[j];
        o->table[0] += sum_of(weights, 0, w.near);
        o->table[last] += sum_of(weights, w.far, keys);
        for (int64_t m = 0; m <= last; m++)
            add_scaled(o->sum, o->table[m], task->relative_values + m * size, size);
    }
    write_row(row_of(&task->out, p, 0), o->sum, size, 1);
}

static int single_forward(const void *argument, int64_t begin, int64_t end) {
    const Single *task = argument;
    const Attention *a = &task->attention;
    const int64_t keys = a->keys, room = ROUNDED(keys, LANES) + LANES;
    OneQuery o;
    Arena arena = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        o.query = take(&arena, a->size, sizeof(float));
        o.row = take(&arena, room, sizeof(float));
        o.table = take(&arena, 2 * a->window + 1, sizeof(float));
        o.sum = take(&arena, a->value_size, sizeof(float));
        o.all = take(&arena, room, sizeof(int32_t));
        o.at = take(&arena, room, sizeof(int32_t));
        if (pass == 0 && !reserve(&arena)) return NO_MEMORY;
    }
    for (int64_t j = 0; j < room; j++) o.all[j] = j < keys ? (int32_t)j : 0;
    int status = OK;
    for (int64_t first = begin; first < end && status == OK; first += HEADS_TOGETHER) {
        const int64_t last = first + HEADS_TOGETHER < end ? first + HEADS_TOGETHER : end;
        float *const rows = task->rows.probabilities;
        for (int64_t i = first; i < last; i++) score_keys(a, place_of(a, i), &o, rows + i * keys);
        status = rows_forward(&task->rows, first, last);
        for (int64_t i = first; i < last; i++) add_values(a, place_of(a, i), &o, rows + i * keys);
    }
    free(arena.data);
    return status;
}
