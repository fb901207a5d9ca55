/* The functions Python calls: pick the instruction set, share rows among threads. */
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"

#define EXPORT __attribute__((visibility("default")))
#define GRAIN 32768           /* elements that are worth a thread; torch's own figure */
#define FRESH (32 << 20)      /* bytes from which on glibc gets memory from the system at each call */
#define HUGE_PAGE (2 << 20)

static int available(const Variant *v) {
#if defined(__x86_64__)
    if (v == &variant_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (v == &variant_avx512) {
#if defined(WIDE_WITHOUT_AVX512)
        return 1;
#else
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#endif
    }
#endif
    return v == &variant_portable;
}

/* Widest first. */
static const Variant *const variants[] = {
#if defined(__x86_64__)
    &variant_avx512, &variant_avx2,
#endif
    &variant_portable,
};

static const Variant *chosen = &variant_portable;

static __attribute__((constructor)) void choose_widest(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (available(variants[i])) {
            chosen = variants[i];
            return;
        }
}

EXPORT const char *onmt_evsoftmax_variant(void) { return chosen->name; }

/* The names of the normalizers, in the order of their numbers, each followed by a space. */
EXPORT const char *onmt_evsoftmax_normalizers(void) {
#define NAME(name) #name " "
    return NORMALIZERS(NAME);
}

EXPORT const double *onmt_evsoftmax_ranges(void) { return parameter_ranges[0]; }

static int takes(int normalizer, double parameter) {
    if (normalizer < 0 || normalizer >= NORMALIZER_COUNT) return 0;
    const double *const range = parameter_ranges[normalizer];
    return parameter == 0 || (parameter >= range[0] && parameter <= range[1]);
}

/* Parameters of all rows, if there are any; only entmax has one for every row. */
static int take_each(int normalizer, const double *parameters, int64_t rows) {
    if (parameters && normalizer != id_entmax) return 0;
    for (int64_t r = 0; parameters && r < rows; r++)
        if (parameters[r] == 0 || !takes(normalizer, parameters[r])) return 0;
    return 1;
}

/* For tests: force an instruction set by name. BAD_ARGUMENT if the processor lacks it. */
EXPORT int onmt_evsoftmax_select(const char *name) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (!strcmp(variants[i]->name, name) && available(variants[i])) {
            chosen = variants[i];
            return OK;
        }
    return BAD_ARGUMENT;
}

/* Threads are asked for only where there is work for two, so that a process that torch keeps to
 * one thread (a data loader's child after a fork) never starts a team. */
static int share(Range *range, const void *task, int64_t items, int64_t per_thread, int threads) {
    int64_t team = per_thread > 0 ? items / per_thread : items;
    team = team < 1 ? 1 : team > threads ? threads : team;
    if (team <= 1) return range(task, 0, items);
    int status = OK;
#pragma omp parallel for num_threads((int)team) schedule(static) reduction(max : status)
    for (int64_t t = 0; t < team; t++) {
        const int result = range(task, items * t / team, items * (t + 1) / team);
        status = result > status ? result : status;
    }
    return status;
}

/* A result so large that its memory has just come from the system: page by page, as it is written,
 * that takes longer than computing it. Where the system lets programs choose, ask for huge pages. */
static void expect_result(void *data, int64_t elements, int dtype) {
#if defined(MADV_HUGEPAGE)
    const size_t size = dtype == FLOAT64 ? 8 : dtype == FLOAT32 ? 4 : 2;
    const size_t bytes = (size_t)elements * size;
    if (bytes < FRESH) return;
    const uintptr_t first = ((uintptr_t)data + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t last = ((uintptr_t)data + bytes) / HUGE_PAGE * HUGE_PAGE;
    madvise((void *)first, last - first, MADV_HUGEPAGE); /* a wish: refusal changes nothing */
#else
    (void)data, (void)elements, (void)dtype;
#endif
}

/* `layout` is NULL for contiguous scores without a mask, else: rank, then `rank` sizes, strides of
 * the scores and strides of the mask, all without the last dimension, whose stride is 1. */
EXPORT int onmt_evsoftmax_rows_forward(int normalizer, int dtype, int64_t rows, int64_t columns,
                                       const int64_t *layout, const void *scores,
                                       const uint8_t *mask, void *probabilities, uint8_t *support,
                                       double parameter, const double *parameters,
                                       int threads) {
    RowsForward task = {.normalizer = normalizer, .dtype = dtype, .columns = columns,
                        .scores = scores, .mask = mask, .probabilities = probabilities,
                        .support = support, .parameter = parameter, .parameters = parameters};
    if (!takes(normalizer, parameter) || !take_each(normalizer, parameters, rows)
        || dtype < FLOAT32 || dtype > FLOAT16 || rows < 0 || columns < 0 || (mask && !layout))
        return BAD_ARGUMENT;
    if (rows == 0 || columns == 0) return OK;
    if (layout) {
        if (layout[0] < 0 || layout[0] > MAX_RANK) return BAD_ARGUMENT;
        task.rank = (int)layout[0];
        task.sizes = layout + 1;
        task.stride = task.sizes + task.rank;
        task.mask_stride = task.stride + task.rank;
    }
    expect_result(probabilities, rows * columns, dtype);
    Range *range = dtype == FLOAT64 ? rows_forward_f64 : chosen->rows_forward;
    return share(range, &task, rows, GRAIN / columns, threads);
}

EXPORT int onmt_evsoftmax_rows_backward(int normalizer, int dtype, int64_t rows, int64_t columns,
                                        const void *probabilities, const void *grad,
                                        void *grad_scores, double parameter,
                                        const double *parameters, double *grad_parameters,
                                        int threads) {
    const RowsBackward task = {.normalizer = normalizer, .dtype = dtype, .columns = columns,
                               .probabilities = probabilities, .grad = grad,
                               .grad_scores = grad_scores, .parameter = parameter,
                               .parameters = parameters, .grad_parameters = grad_parameters};
    if (!takes(normalizer, parameter) || !take_each(normalizer, parameters, rows)
        || (grad_parameters && normalizer != id_entmax) || dtype < FLOAT32 || dtype > FLOAT16
        || rows < 0 || columns < 0) return BAD_ARGUMENT;
    if (rows == 0 || columns == 0) return OK;
    expect_result(grad_scores, rows * columns, dtype);
    Range *range = dtype == FLOAT64 ? rows_backward_f64 : chosen->rows_backward;
    return share(range, &task, rows, GRAIN / columns, threads);
}

/* `sizes`: batches, heads, queries, keys, size, value_size, splits. `tensors`: query, key, value,
 * out and the gradients of out, query, key and value; forward, the gradients are NULL. `strides`:
 * three (batch, head, length) for each, three (batch, head, query) of the mask and of the bias, and
 * those of the splits of the gradients of keys and of values. `positions`: window and offset.
 * `terms`, each of which may be NULL: slopes, relative keys and values and, backward, the gradients
 * of these two; `alphas`: those of the heads, and their gradients. */
EXPORT int onmt_evsoftmax_attention(int backward, int normalizer, const int64_t *sizes,
                                    const int64_t *strides, float *const *tensors,
                                    const uint8_t *mask, const float *bias, int causal,
                                    double scale, double dropout, uint64_t seed, double *level,
                                    float *bar, const int64_t *positions, float *const *terms,
                                    double *const *alphas, int threads) {
    Attention task = {.normalizer = normalizer, .batches = sizes[0], .heads = sizes[1],
                      .queries = sizes[2], .keys = sizes[3], .size = sizes[4],
                      .value_size = sizes[5], .splits = sizes[6],
                      .mask = mask, .mask_batch = strides[24], .mask_head = strides[25],
                      .mask_query = strides[26], .bias = bias, .bias_batch = strides[27],
                      .bias_head = strides[28], .bias_query = strides[29],
                      .grad_key_split = strides[30], .grad_value_split = strides[31],
                      .causal = causal, .scale = (float)scale, .dropout = dropout,
                      .seed = seed, .level = level, .bar = bar, .window = positions[0],
                      .offset = positions[1], .slopes = terms[0], .relative_keys = terms[1],
                      .relative_values = terms[2], .grad_relative_keys = terms[3],
                      .grad_relative_values = terms[4], .alphas = alphas[0],
                      .grad_alphas = alphas[1]};
    Tensor4 *const all[] = {&task.query, &task.key, &task.value, &task.out,
                            &task.grad_out, &task.grad_query, &task.grad_key, &task.grad_value};
    for (int i = 0; i < 8; i++)
        *all[i] = (Tensor4){tensors[i], strides[3 * i], strides[3 * i + 1], strides[3 * i + 2]};
    for (int i = 0; i < 7; i++)
        if (sizes[i] < 0) return BAD_ARGUMENT;
    if (!takes(normalizer, 0) || task.keys > INT32_MAX || task.splits < 1 || task.window < 0
        || (task.window && task.size && !task.relative_keys) || !(dropout >= 0 && dropout <= 1)
        || !take_each(normalizer, task.alphas, task.batches * task.heads)
        || (normalizer == id_entmax) != (task.alphas != NULL))
        return BAD_ARGUMENT;
    /* Where the threshold is known before the scores, one pass suffices. */
    const int one_pass = normalizer == id_evsoftmax && !bias && !task.window && !task.slopes
                      && (!mask || !task.mask_query);
    const int64_t heads = task.batches * task.heads;
    if (backward)
        return share(one_pass ? chosen->attention_backward : chosen->blocks_backward, &task,
                     heads * task.splits, 1, threads);
    const int64_t items = heads * ((task.queries + CHUNK - 1) / CHUNK);
    const int64_t scores = CHUNK * (task.keys > 0 ? task.keys : 1);
    return share(one_pass ? chosen->attention_forward : chosen->blocks_forward, &task, items,
                 1 + GRAIN / scores, threads);
}

/* One query for each head. `sizes`: batches, heads, keys, size, value_size. `tensors`: query, key,
 * value, out; `strides`: three (batch, head, length) for each, two (batch, head) of the mask.
 * `positions`: window and offset. `terms`, each of which may be NULL: slopes, relative keys and
 * values. `alphas`: those of the heads, for entmax. `probabilities`: (batches, heads, keys). */
EXPORT int onmt_evsoftmax_single(int normalizer, const int64_t *sizes, const int64_t *strides,
                                 float *const *tensors, const uint8_t *mask, double scale,
                                 const int64_t *positions, float *const *terms,
                                 const double *alphas, float *probabilities, int threads) {
    const int64_t heads = sizes[0] * sizes[1], keys = sizes[2];
    const int64_t row_strides[] = {sizes[1] * keys, keys};
    const Single task = {
        .attention = {.normalizer = normalizer, .batches = sizes[0], .heads = sizes[1],
                      .queries = 1, .keys = keys, .size = sizes[3], .value_size = sizes[4],
                      .query = {tensors[0], strides[0], strides[1], strides[2]},
                      .key = {tensors[1], strides[3], strides[4], strides[5]},
                      .value = {tensors[2], strides[6], strides[7], strides[8]},
                      .out = {tensors[3], strides[9], strides[10], strides[11]},
                      .scale = (float)scale, .window = positions[0], .offset = positions[1],
                      .slopes = terms[0], .relative_keys = terms[1], .relative_values = terms[2]},
        .rows = {.normalizer = normalizer, .dtype = FLOAT32, .columns = keys,
                 .rank = mask ? 2 : 0, .sizes = sizes, .stride = row_strides,
                 .mask_stride = strides + 12, .scores = probabilities, .mask = mask,
                 .probabilities = probabilities, .parameters = alphas},
    };
    for (int i = 0; i < 5; i++)
        if (sizes[i] < 0) return BAD_ARGUMENT;
    if (!takes(normalizer, 0) || keys > INT32_MAX - 64 || positions[0] < 0
        || (positions[0] && sizes[3] && !terms[1]) || (terms[2] && !positions[0])
        || !take_each(normalizer, alphas, heads) || (normalizer == id_entmax) != (alphas != NULL))
        return BAD_ARGUMENT;
    return share(chosen->single_forward, &task, heads, 1 + GRAIN / (1 + keys * sizes[3]), threads);
}
