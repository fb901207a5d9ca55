/* Sums and products of the rows that a list names, for one type of the places in the list: included
 * by `attention_tile.h` for places in a tile and by `attention_lists.h` for those among all keys.
 * PLACE is the type, NAMED(name) what a function is called. */

/* sum = sum * shrink + weight[k] * rows[at[k]] over k, for VECTORS vectors of a row. */
INLINE void NAMED(add_vectors)(const int vectors, int64_t count, const PLACE *at,
                               const float *weight, const float *rows, int64_t stride,
                               float shrink, float *sum) {
    vf total[8];
    for (int v = 0; v < vectors; v++) total[v] = load(sum + v * LANES) * shrink;
    for (int64_t k = 0; k < count; k++) {
        const vf w = splat(weight[k]);
        const float *row = rows + at[k] * stride;
        for (int v = 0; v < vectors; v++) total[v] += w * load(row + v * LANES);
    }
    for (int v = 0; v < vectors; v++) store(sum + v * LANES, total[v]);
}

/* The same for the whole vectors of rows of `size` floats, in stretches that fit the registers. Not
 * inlined: in a large function the loop's counters would live in memory, which doubles its time. */
static __attribute__((noinline)) void NAMED(add_apart)(int64_t count, const PLACE *at,
                                                       const float *weight, const float *rows,
                                                       int64_t stride, int64_t size, float shrink,
                                                       float *sum) {
    for (int64_t vectors = size / LANES; vectors > 0; vectors -= 8) {
        switch (vectors) {
        case 1: NAMED(add_vectors)(1, count, at, weight, rows, stride, shrink, sum); break;
        case 2: NAMED(add_vectors)(2, count, at, weight, rows, stride, shrink, sum); break;
        case 3: NAMED(add_vectors)(3, count, at, weight, rows, stride, shrink, sum); break;
        case 4: NAMED(add_vectors)(4, count, at, weight, rows, stride, shrink, sum); break;
        case 5: NAMED(add_vectors)(5, count, at, weight, rows, stride, shrink, sum); break;
        case 6: NAMED(add_vectors)(6, count, at, weight, rows, stride, shrink, sum); break;
        case 7: NAMED(add_vectors)(7, count, at, weight, rows, stride, shrink, sum); break;
        default: NAMED(add_vectors)(8, count, at, weight, rows, stride, shrink, sum); break;
        }
        rows += 8 * LANES;
        sum += 8 * LANES;
    }
}

/* The same for rows that lie close together. */
INLINE void NAMED(add_rows)(int64_t count, const PLACE *at, const float *weight, const float *rows,
                            int64_t stride, float shrink, float *sum) {
    NAMED(add_apart)(count, at, weight, rows, stride, stride, shrink, sum);
}

/* products[k] += a . rows[at[k]] (`more`; else =) for VECTORS vectors of a row. */
INLINE void NAMED(dot_vectors)(const int vectors, int64_t count, const PLACE *at, const float *a,
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

/* products[k] = a . rows[at[k]] of the whole vectors of rows of `size` floats. Products are written
 * in whole vectors: behind the last, `at` must name a row, too. Not inlined, as `add_apart`. */
static __attribute__((noinline)) void NAMED(dot_apart)(int64_t count, const PLACE *at,
                                                       const float *a, const float *rows,
                                                       int64_t stride, int64_t size,
                                                       float *products) {
    if (size < LANES) memset(products, 0, (size_t)ROUNDED(count, LANES) * sizeof(float));
    for (int64_t d = 0; d + LANES <= size; d += 8 * LANES) {
        switch ((size - d) / LANES) {
        case 1: NAMED(dot_vectors)(1, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 2: NAMED(dot_vectors)(2, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 3: NAMED(dot_vectors)(3, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 4: NAMED(dot_vectors)(4, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 5: NAMED(dot_vectors)(5, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 6: NAMED(dot_vectors)(6, count, at, a + d, rows + d, stride, d > 0, products); break;
        case 7: NAMED(dot_vectors)(7, count, at, a + d, rows + d, stride, d > 0, products); break;
        default: NAMED(dot_vectors)(8, count, at, a + d, rows + d, stride, d > 0, products); break;
        }
    }
}

INLINE void NAMED(dot_rows)(int64_t count, const PLACE *at, const float *a, const float *rows,
                            int64_t stride, float *products) {
    NAMED(dot_apart)(count, at, a, rows, stride, stride, products);
}

#undef PLACE
#undef NAMED
