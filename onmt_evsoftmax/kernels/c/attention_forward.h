/* Forward pass of ev-softmax attention: part of `variant.h`. */

/* What the online softmax of a chunk has so far: sums are relative to exp(most). */
typedef struct {
    int64_t visible[CHUNK]; /* packed keys that the query attends to: the first so many */
    float threshold[CHUNK];
    float most[CHUNK];
    double sum[CHUNK];
    float *out; /* [CHUNK][value_size] */
} Online;

/* exp(x) of a single non-positive number, 0 where it underflows. */
INLINE float exp_one(float x) { return x >= UNDERFLOW ? exp_nonpositive(splat(x))[0] : 0.0f; }

/* Take what row i keeps of a tile into its softmax; `most` is the largest of its scores there. */
INLINE void absorb(const Attention *task, const Packed *pack, Online *online, int i, int64_t tile,
                   Kept *kept, float most, uint64_t row_key) {
    float shrink = 1.0f;
    if (most > online->most[i]) {
        shrink = exp_one(online->most[i] - most);
        online->most[i] = most;
        online->sum[i] *= shrink;
    }
    const vf top = splat(online->most[i]);
    vf sum = splat(0.0f);
    for (int k = 0; k < kept->count; k += LANES) {
        const vf x = load(kept->score + k) - top;
        vf weight = both(x >= splat(UNDERFLOW), exp_nonpositive(x));
        sum += weight;
        if (task->dropout > 0)
            weight *= dropout_factor(task, row_key, positions(pack, tile, kept->at + k));
        store(kept->score + k, weight);
    }
    online->sum[i] += sum_lanes(sum);
    add_rows(kept->count, kept->at, kept->score, pack->values + tile * pack->value_size,
             pack->value_size, shrink, online->out + i * pack->value_size);
}

/* Attention of queries begin .. end-1 of a chunk, by the thresholds that `online` has. */
static void attend(const Attention *task, const Packed *pack, Online *online, int64_t chunk,
                   int begin, int end) {
    const int64_t first = chunk * CHUNK, most_keys = visible(task, pack, first + end - 1);
    for (int i = begin; i < end; i++) {
        online->most[i] = -INFINITY;
        online->sum[i] = 0;
        memset(online->out + i * pack->value_size, 0, (size_t)pack->value_size * sizeof(float));
    }
    for (int64_t tile = 0; tile < most_keys; tile += TILE) {
        const int64_t count = most_keys - tile < TILE ? most_keys - tile : TILE;
        score_tile(task, pack, tile, count, begin, end);
        for (int i = begin; i < end; i++) {
            Kept kept;
            const float most = keep(pack->scores + i * TILE, count, online->visible[i] - tile,
                                    online->threshold[i], &kept);
            if (kept.count)
                absorb(task, pack, online, i, tile, &kept, most,
                       dropout_key(task, pack->head, first + i));
        }
    }
}

/* A row whose threshold rounding put above every score (as where all are equal), or that is not
 * finite: its threshold from its scores, as in the row kernels. 0 if it cannot be normalized. */
static int threshold_from_scores(const Attention *task, const Packed *pack, int i, int64_t keys,
                                 float *threshold) {
    double sum = 0;
    int64_t valid = 0;
    float most = -INFINITY;
    for (int64_t tile = 0; tile < keys; tile += TILE) {
        const int64_t count = keys - tile < TILE ? keys - tile : TILE;
        score_tile(task, pack, tile, count, i, i + 1);
        for (int j = 0; j < count; j++) {
            const float s = pack->scores[i * TILE + j];
            if (s == -INFINITY) continue;
            if (!(s < INFINITY)) return 0;
            sum += s;
            valid++;
            most = s > most ? s : most;
        }
    }
    const double mean = sum / (double)valid;
    *threshold = valid == 0 ? INFINITY : mean < most ? round_up(mean) : most;
    return 1;
}

static void forward_chunk(const Attention *task, Packed *pack, Online *online, int64_t chunk) {
    const Place p = place_of(task, pack->head);
    const int64_t first = chunk * CHUNK, left = task->queries - first;
    const int rows = left < CHUNK ? (int)left : CHUNK;
    for (int i = 0; i < rows; i++) {
        copy_row(pack->queries + i * pack->size, row_of(&task->query, p, first + i), task->size,
                 task->scale);
        online->visible[i] = visible(task, pack, first + i);
    }
    find_thresholds(task, pack, chunk, rows, online->threshold);
    attend(task, pack, online, chunk, 0, rows);
    double *log_sum = task->level + pack->head * task->queries + first;
    float *threshold = task->bar + pack->head * task->queries + first;
    for (int i = 0; i < rows; i++) {
        const int settled = online->sum[i] > 0 && fabsf(online->threshold[i]) <= FLT_MAX
                         && online->most[i] < INFINITY;
        int sound = 1;
        if (!settled && online->visible[i] > 0) {
            sound = threshold_from_scores(task, pack, i, online->visible[i], &online->threshold[i]);
            attend(task, pack, online, chunk, i, i + 1);
        }
        float *out = row_of(&task->out, p, first + i);
        const float *from = online->out + i * pack->value_size;
        if (!sound) {
            /* Backward then keeps every key and spreads the NaN. */
            threshold[i] = -INFINITY;
            log_sum[i] = NAN;
            for (int64_t d = 0; d < task->value_size; d++) out[d] = NAN;
        } else if (online->sum[i] > 0) {
            threshold[i] = online->threshold[i];
            log_sum[i] = online->most[i] + log(online->sum[i]);
            write_row(out, from, task->value_size, (float)(1 / online->sum[i]));
        } else { /* nothing to attend to */
            log_sum[i] = threshold[i] = INFINITY;
            for (int64_t d = 0; d < task->value_size; d++) out[d] = 0;
        }
    }
}

/* Items in an order in which any stretch of a causal head has early (cheap) and late chunks. */
INLINE int64_t folded(int64_t chunk, int64_t chunks) {
    return chunk % 2 ? chunks - 1 - chunk / 2 : chunk / 2;
}

static int attention_forward(const void *argument, int64_t begin, int64_t end) {
    const Attention *task = argument;
    Packed pack;
    Online online;
    Arena arena = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        lay_out(task, &pack, &arena, 0);
        online.out = take(&arena, CHUNK * pack.value_size, sizeof(float));
        if (pass == 0 && !reserve(&arena)) return NO_MEMORY;
    }
    const int64_t chunks = chunks_of(task);
    for (int64_t item = begin; item < end; item++) {
        pack_head(task, &pack, item / chunks);
        forward_chunk(task, &pack, &online, folded(item % chunks, chunks));
    }
    free(arena.data);
    return OK;
}
