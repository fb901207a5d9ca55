/* float64 rows, one element at a time: the plain statement of what the vectors compute. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

static int takes_part(const double *x, const uint8_t *mask, int64_t j) {
    return (!mask || mask[j]) && x[j] != -INFINITY;
}

/* Each *_row writes p and returns what x - max must exceed (ev-softmax: reach) for the support. */

static double evsoftmax_row(const double *x, const uint8_t *mask, int64_t n, double max, double eps,
                            double *p) {
    /* Of x - max: an offset costs no precision, and equal scores have a mean of exactly 0. */
    double sum = 0, total = 0;
    int64_t count = 0;
    for (int64_t j = 0; j < n; j++) {
        if (!takes_part(x, mask, j)) continue;
        sum += x[j] - max;
        count++;
    }
    const double mean = sum / (double)count;
    for (int64_t j = 0; j < n; j++) {
        p[j] = takes_part(x, mask, j) ? ((x[j] - max >= mean) + eps) * exp(x[j] - max) : 0;
        total += p[j];
    }
    for (int64_t j = 0; j < n; j++) p[j] /= total;
    return eps > 0 ? -DBL_MAX : mean; /* every entry that takes part has weight eps at least */
}

/* Supports shrink from pass to pass, so an unchanged count means an unchanged support. */
static double sparsemax_row(const double *x, const uint8_t *mask, int64_t n, double max,
                            double *p) {
    double tau = -1;
    for (int64_t before = INT64_MAX;;) {
        double sum = 0;
        int64_t count = 0;
        for (int64_t j = 0; j < n; j++) {
            if (!takes_part(x, mask, j) || !(x[j] - max > tau)) continue;
            sum += x[j] - max;
            count++;
        }
        if (count >= before) break;
        before = count;
        tau = (sum - 1) / (double)count;
    }
    for (int64_t j = 0; j < n; j++) p[j] = takes_part(x, mask, j) ? fmax(x[j] - max - tau, 0) : 0;
    return tau;
}

/* Newton on the norm of max(z - tau, 0), z = (x - max) / 2, climbs to tau from below. */
static double entmax15_row(const double *x, const uint8_t *mask, int64_t n, double max,
                           double *p) {
    double tau = -1;
    for (int pass = 0; pass < 100; pass++) {
        double square = 0, linear = 0;
        for (int64_t j = 0; j < n; j++) {
            const double u = takes_part(x, mask, j) ? fmax((x[j] - max) / 2 - tau, 0) : 0;
            square += u * u;
            linear += u;
        }
        const double norm = sqrt(square), step = (norm - 1) * norm / linear;
        tau += step;
        if (!(step > 1e-16)) break;
    }
    for (int64_t j = 0; j < n; j++) {
        const double u = takes_part(x, mask, j) ? fmax((x[j] - max) / 2 - tau, 0) : 0;
        p[j] = u * u;
    }
    return 2 * tau;
}

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
        double threshold;
        if (task->normalizer == EVSOFTMAX)
            threshold = evsoftmax_row(x, mask, n, max, task->eps, p);
        else if (task->normalizer == SPARSEMAX)
            threshold = sparsemax_row(x, mask, n, max, p);
        else
            threshold = entmax15_row(x, mask, n, max, p);
        for (int64_t j = 0; support && j < n; j++) {
            const double height = x[j] - max;
            const int reaches = height >= threshold, exceeds = height > threshold;
            support[j] = takes_part(x, mask, j)
                      && (task->normalizer == EVSOFTMAX ? reaches : exceeds);
        }
    }
    return OK;
}

/* The Jacobian is diag(s) - s s' / sum(s), with s as below. */
int rows_backward_f64(const void *argument, int64_t begin, int64_t end) {
    const RowsBackward *task = argument;
    const int64_t n = task->columns;
    for (int64_t r = begin; r < end; r++) {
        const double *p = (const double *)task->probabilities + r * n;
        const double *g = (const double *)task->grad + r * n;
        double *out = (double *)task->grad_scores + r * n;
        double dot = 0, total = 0;
        for (int64_t j = 0; j < n; j++) {
            const double s = task->normalizer == EVSOFTMAX ? p[j]
                           : task->normalizer == SPARSEMAX ? p[j] > 0 : sqrt(p[j]);
            dot += s * g[j];
            total += s;
            out[j] = s;
        }
        const double mean = task->normalizer == EVSOFTMAX ? dot : dot / fmax(total, DBL_MIN);
        for (int64_t j = 0; j < n; j++) out[j] *= g[j] - mean;
    }
    return OK;
}
