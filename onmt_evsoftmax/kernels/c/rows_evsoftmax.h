/* ev-softmax of a group of rows, forward: part of `rows.h`. */

#define FLUSH 64 /* vectors summed in float32 before the sum moves on to double */

/* (1{x >= bar} + eps) exp(x - max), where neither is lost to underflow. With eps = 0 the caller
 * has raised the bar to `floor` where it was below. */
INLINE vf evidential_weight(vf x, vf max, vf bar, vf floor, float eps) {
    const vf w = exp_nonpositive(x - max);
    if (eps > 0) return both(x >= floor, w * choose(x >= bar, splat(1.0f + eps), splat(eps)));
    return both(x >= bar, w);
}

/* Writes the weights of a row to e; returns their sum, spread over lanes. */
INLINE vd evidential_weights(const Row *row, float *e, float threshold, float eps) {
    const vf max = splat(row->max), floor = least_above_underflow(max);
    const vf bar = eps > 0 ? splat(threshold) : larger(splat(threshold), floor);
    Sum total = {{0}, {0}};
    for (int64_t j = 0; j < row->n;) {
        const int64_t flush = row->n - j < FLUSH * LANES ? row->n : j + FLUSH * LANES;
        vf sum = {0};
        for (; j + LANES <= flush; j += LANES) {
            const vf w = evidential_weight(load(row->x + j), max, bar, floor, eps);
            store(e + j, w);
            sum += w;
        }
        if (j < flush) {
            const int rest = (int)(flush - j);
            const vf x = load_first(row->x + j, rest, -INFINITY);
            const vf w = evidential_weight(x, max, bar, floor, eps);
            store_first(e + j, w, rest);
            sum += w;
            j = flush;
        }
        sum_vector(&total, sum);
    }
    return total.low + total.high;
}

INLINE void scale(float *e, int64_t n, float factor) {
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) store(e + j, load(e + j) * factor);
    for (; j < n; j++) e[j] *= factor;
}

/* `rows` <= GROUP rows from row `first` on; each has its own `room` floats of scratch. */
INLINE void evsoftmax_group(const RowsForward *task, Cursor *at, int64_t first, int rows,
                            float *scratch, int64_t room) {
    const int64_t n = task->columns;
    const float eps = (float)task->eps;
    Row row[GROUP];
    Partial part[GROUP];
    float threshold[GROUP], *p[GROUP];
    vd weight[GROUP];
    for (int i = 0; i < rows; i++, cursor_next(at))
        read_row(task, at, scratch + i * room, &row[i], &part[i]);
    for (int i = 0; i < rows; i++) {
        finish_row(task, scratch + i * room, &row[i], &part[i]);
        /* A rounded mean can exceed every entry of a constant row. */
        const double mean = row[i].sum / (double)row[i].count;
        threshold[i] = mean < row[i].max ? round_up(mean) : row[i].max;
        p[i] = scratch + i * room;
        if (task->dtype == FLOAT32) p[i] = (float *)task->probabilities + (first + i) * n;
    }
    /* The support first: a half-precision row is about to be overwritten by its weights. Every
     * entry that takes part has weight eps at least. */
    for (int i = 0; task->support && i < rows; i++) {
        const float bar = eps > 0 ? -FLT_MAX : threshold[i];
        for (int64_t j = 0; j < n; j++)
            task->support[(first + i) * n + j] = row[i].state == FINITE && row[i].x[j] >= bar;
    }
    for (int i = 0; i < rows; i++) {
        if (row[i].state != FINITE)
            fill_unsound(p[i], &row[i]);
        else if (eps > 0)
            weight[i] = evidential_weights(&row[i], p[i], threshold[i], eps);
        else
            weight[i] = evidential_weights(&row[i], p[i], threshold[i], 0.0f);
    }
    for (int i = 0; i < rows; i++) {
        if (row[i].state == FINITE) scale(p[i], n, (float)(1.0 / sum_double(weight[i])));
        if (task->dtype != FLOAT32)
            narrow(task->probabilities, p[i], (first + i) * n, n, task->dtype);
    }
}
