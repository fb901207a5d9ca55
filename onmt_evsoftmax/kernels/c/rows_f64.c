/* float64 rows, one element at a time: the plain statement of what the vectors compute. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

static int takes_part(const double *x, const uint8_t *mask, int64_t j) {
    return (!mask || mask[j]) && x[j] != -INFINITY;
}

#define WITH_ROW_CODE
#include "normalizers.h"

#define RANGE(name) name##_range,
const double parameter_ranges[NORMALIZER_COUNT][2] = {NORMALIZERS(RANGE)};

int rows_forward_f64(const void *argument, int64_t begin, int64_t end) {
    const RowsForward *task = argument;
    const int64_t n = task->columns;
    Cursor at;
    cursor_start(&at, task, begin);
    for (int64_t r = begin; r < end; r++, cursor_next(&at)) {
        const double *x = (const double *)task->scores + at.scores;
        const uint8_t *mask = task->mask ? task->mask + at.mask : NULL;
        double *p = (double *)task->probabilities + r * n;
        uint8_t *support = task->support ? task->support + r * n : NULL;
        double max = -INFINITY;
        int64_t count = 0;
        int poisoned = 0;
        for (int64_t j = 0; j < n; j++) {
            if (!takes_part(x, mask, j)) continue;
            poisoned |= !(x[j] < INFINITY);
            max = x[j] > max ? x[j] : max;
            count++;
        }
        if (poisoned || count == 0) {
            for (int64_t j = 0; j < n; j++) p[j] = takes_part(x, mask, j) ? NAN : 0;
            if (support) memset(support, 0, (size_t)n);
            continue;
        }
        const double parameter = task->parameters ? task->parameters[r] : task->parameter;
        double threshold = 0;
#define ROW(name) \
    case id_##name: threshold = name##_row(x, mask, n, max, parameter, p); break;
        switch (task->normalizer) { NORMALIZERS(ROW) }
        for (int64_t j = 0; support && j < n; j++) {
            const double height = x[j] - max;
            const int reaches = height >= threshold, exceeds = height > threshold;
            support[j] = takes_part(x, mask, j)
                      && (keeps_equal(task->normalizer) ? reaches : exceeds);
        }
    }
    return OK;
}

static double slope(int normalizer, double p, double parameter) {
#define SLOPE(name) case id_##name: return name##_slope(p, parameter);
    switch (normalizer) { NORMALIZERS(SLOPE) }
    return 0;
}

/* The Jacobian is diag(s) - s s' / sum(s), s the slopes. */
int rows_backward_f64(const void *argument, int64_t begin, int64_t end) {
    const RowsBackward *task = argument;
    const int64_t n = task->columns;
    for (int64_t r = begin; r < end; r++) {
        const double *p = (const double *)task->probabilities + r * n;
        const double *g = (const double *)task->grad + r * n;
        double *out = (double *)task->grad_scores + r * n;
        const double parameter = task->parameters ? task->parameters[r] : task->parameter;
        double dot = 0, total = 0, change = 0;
        for (int64_t j = 0; j < n; j++) {
            const double s = slope(task->normalizer, p[j], parameter);
            dot += s * g[j];
            total += s;
            out[j] = s;
        }
        const double mean = unit_slopes(task->normalizer) ? dot : dot / fmax(total, DBL_MIN);
        for (int64_t j = 0; j < n; j++) {
            if (task->grad_parameters) change -= entmax_change(p[j], parameter) * (g[j] - mean);
            /* In a row with NaN the mean is NaN, but what takes no part keeps its 0. */
            if (out[j] != 0) out[j] *= g[j] - mean;
        }
        if (task->grad_parameters) task->grad_parameters[r] = change;
    }
    return OK;
}
