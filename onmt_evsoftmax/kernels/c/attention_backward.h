/* Backward pass of ev-softmax attention: part of `variant.h`.
 *
 * With P the probabilities and M the dropout factors, dV = (P M)' dO, dP = M (dO V'),
 * dS = P (dP - sum_j P dP), dQ = dS K and dK = dS' Q. P is computed again, tile by tile; everything
 * is done for the kept (query, key) pairs only: dQ from what a row keeps, dK and dV from what a
 * column is kept by.
 */

/* The queries of a chunk that keep one key. */
typedef struct {
    int count;
    uint8_t at[CHUNK];
    float weight[CHUNK], grad[CHUNK]; /* P M and dS */
} Column;

typedef struct {
    float *grad_out;     /* [CHUNK][value_size] of a chunk */
    float *grad_query;   /* [CHUNK][size] */
    float *grad_keys;    /* [keys][size], packed */
    float *grad_values;  /* [keys][value_size], packed */
    Kept *kept;          /* [CHUNK] of a tile */
    Column *column;      /* [TILE] of a tile */
    int64_t visible[CHUNK];
    float threshold[CHUNK];
    double log_sum[CHUNK];
    float mean[CHUNK];   /* sum_j P dP = dO . O */
} Gradients;

/* P M and dS of what row i keeps of the tile. */
INLINE void weigh(const Attention *task, const Packed *pack, const Gradients *g, int i,
                  int64_t tile, uint64_t row_key, Kept *kept) {
    /* In two float32 parts: next to large scores, one would lose the logarithm of the sum. */
    const float head = (float)g->log_sum[i], tail = (float)(g->log_sum[i] - head);
    const vf nan = splat(head - head); /* 0, or NaN in a row that is not sound */
    const vf mean = splat(g->mean[i]);
    dot_rows(kept->count, kept->at, g->grad_out + i * pack->value_size,
             pack->values + tile * pack->value_size, pack->value_size, kept->grad);
    for (int k = 0; k < kept->count; k += LANES) {
        const vf x = (load(kept->score + k) - head) - tail;
        const vf p = both(x >= splat(UNDERFLOW), exp_nonpositive(x)) + nan;
        vf factor = splat(1.0f);
        if (task->dropout > 0)
            factor = dropout_factor(task, row_key, positions(pack, tile, kept->at + k));
        store(kept->score + k, p * factor);
        store(kept->grad + k, p * (load(kept->grad + k) * factor - mean));
    }
}

/* In separate walks through the tile, each of which touches one or two matrices of CHUNK rows only:
 * all together would not fit the nearest cache. */
static void backward_tile(const Attention *task, const Packed *pack, Gradients *g, int64_t chunk,
                          int64_t tile, int64_t count, int rows) {
    score_tile(task, pack, tile, count, 0, rows);
    for (int i = 0; i < rows; i++) {
        keep(pack->scores + i * TILE, count, g->visible[i] - tile, g->threshold[i], &g->kept[i]);
        weigh(task, pack, g, i, tile, dropout_key(task, pack->head, chunk * CHUNK + i),
              &g->kept[i]);
    }
    for (int j = 0; j < TILE; j++) g->column[j].count = 0;
    for (int i = 0; i < rows; i++) {
        const Kept *kept = &g->kept[i];
        if (!kept->count) continue;
        add_rows(kept->count, kept->at, kept->grad, pack->keys + tile * pack->size, pack->size,
                 1.0f, g->grad_query + i * pack->size);
    }
    for (int i = 0; i < rows; i++) {
        const Kept *kept = &g->kept[i];
        for (int k = 0; k < kept->count; k++) {
            Column *column = g->column + kept->at[k];
            const int at = column->count++;
            column->at[at] = (uint8_t)i;
            column->weight[at] = kept->score[k];
            column->grad[at] = kept->grad[k];
        }
    }
    for (int j = 0; j < count; j++) {
        const Column *c = g->column + j;
        if (c->count)
            add_rows(c->count, c->at, c->weight, g->grad_out, pack->value_size, 1.0f,
                     g->grad_values + (tile + j) * pack->value_size);
    }
    for (int j = 0; j < count; j++) {
        const Column *c = g->column + j;
        if (c->count)
            add_rows(c->count, c->at, c->grad, pack->queries, pack->size, 1.0f,
                     g->grad_keys + (tile + j) * pack->size);
    }
}

static void backward_chunk(const Attention *task, Packed *pack, Gradients *g, int64_t chunk) {
    const Place p = place_of(task, pack->head);
    const int64_t first = chunk * CHUNK, left = task->queries - first;
    const int rows = left < CHUNK ? (int)left : CHUNK;
    for (int i = 0; i < rows; i++) {
        const int64_t row = pack->head * task->queries + first + i;
        const float *grad = row_of(&task->grad_out, p, first + i);
        const float *out = row_of(&task->out, p, first + i);
        copy_row(pack->queries + i * pack->size, row_of(&task->query, p, first + i), task->size,
                 task->scale);
        copy_row(g->grad_out + i * pack->value_size, grad, task->value_size, 1);
        double mean = 0;
        for (int64_t d = 0; d < task->value_size; d++) mean += (double)grad[d] * out[d];
        g->mean[i] = (float)mean;
        g->visible[i] = visible(task, pack, first + i);
        g->threshold[i] = task->bar[row];
        g->log_sum[i] = task->level[row];
    }
    memset(g->grad_query, 0, (size_t)(CHUNK * pack->size) * sizeof(float));
    const int64_t most_keys = visible(task, pack, first + rows - 1);
    for (int64_t tile = 0; tile < most_keys; tile += TILE) {
        const int64_t count = most_keys - tile < TILE ? most_keys - tile : TILE;
        backward_tile(task, pack, g, chunk, tile, count, rows);
    }
    for (int i = 0; i < rows; i++)
        write_row(row_of(&task->grad_query, p, first + i), g->grad_query + i * pack->size,
                  task->size, task->scale);
}

/* Packed gradients to where their keys are; keys that take no part get zeros. */
static void unpack(const Packed *pack, const float *from, int64_t stride, const Tensor4 *to,
                   Place p, int64_t split, int64_t keys, int64_t size) {
    int64_t at = 0;
    for (int64_t j = 0; j < keys; j++) {
        float *row = row_of(to, p, j) + split;
        if (at < pack->count && pack->position[at] == j)
            write_row(row, from + at++ * stride, size, 1);
        else
            memset(row, 0, (size_t)size * sizeof(float));
    }
}

/* Those of all keys and values, to what one part of the queries of a head has found. */
static void unpack_gradients(const Attention *task, const Packed *pack, const float *grad_keys,
                             const float *grad_values, int64_t split) {
    const Place p = place_of(task, pack->head);
    unpack(pack, grad_keys, pack->size, &task->grad_key, p, split * task->grad_key_split,
           task->keys, task->size);
    unpack(pack, grad_values, pack->value_size, &task->grad_value, p,
           split * task->grad_value_split, task->keys, task->value_size);
}

static int attention_backward(const void *argument, int64_t begin, int64_t end) {
    const Attention *task = argument;
    const int64_t keys = ROUNDED(task->keys, TILE);
    Packed pack;
    Gradients g;
    Arena arena = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        lay_out(task, &pack, &arena, 1);
        g.grad_out = take(&arena, CHUNK * pack.value_size, sizeof(float));
        g.grad_query = take(&arena, CHUNK * pack.size, sizeof(float));
        g.grad_keys = take(&arena, keys * pack.size, sizeof(float));
        g.grad_values = take(&arena, keys * pack.value_size, sizeof(float));
        g.kept = take(&arena, CHUNK, sizeof(Kept));
        g.column = take(&arena, TILE, sizeof(Column));
        if (pass == 0 && !reserve(&arena)) return NO_MEMORY;
    }
    const int64_t chunks = chunks_of(task);
    for (int64_t item = begin; item < end; item++) {
        const int64_t split = item % task->splits;
        pack_head(task, &pack, item / task->splits);
        memset(g.grad_keys, 0, (size_t)(keys * pack.size) * sizeof(float));
        memset(g.grad_values, 0, (size_t)(keys * pack.value_size) * sizeof(float));
        const int64_t last = chunks * (split + 1) / task->splits;
        for (int64_t c = chunks * split / task->splits; c < last; c++)
            backward_chunk(task, &pack, &g, folded(c, chunks));
        unpack_gradients(task, &pack, g.grad_keys, g.grad_values, split);
    }
    free(arena.data);
    return OK;
}

