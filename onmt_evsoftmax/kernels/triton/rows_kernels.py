"""The row kernels, as Triton compiles them; :mod:`.rows` launches them.

A program takes a few rows. A row that fits is held in registers as one tile; a longer one is read
again in each pass, tile by tile. Every normalizer goes through the same steps:

1. the maximum of the valid entries, which is infinite if one is NaN or +inf, and their mean;
2. its threshold, computed or searched;
3. probabilities w / sum(w).

What differs between normalizers are functions, compile-time arguments named in capitals; what they
take and return is written down in :mod:`.normalizers`.
"""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.numerics import (
    INFINITY,
    divide,
    expm1_rest,
    inverse_of,
)

#: Bisection needs as many passes as float64 has bits; Newton 3 to 13.
MAX_PASSES = tl.constexpr(64)


@triton.jit
def row_offset(row, size1, size2, stride0, stride1, stride2):
    """Where a row begins, in a tensor of three leading dimensions (…, size1, size2)."""
    inner, outer = row % size2, row // size2
    first, second = (outer // size1).to(tl.int64), (outer % size1).to(tl.int64)
    return first * stride0 + second * stride1 + inner.to(tl.int64) * stride2


@triton.jit
def read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE: tl.constexpr):
    """A tile of scores, -inf where hidden or outside.

    The mask comes after the load: predicated by it, the load would be of single entries.
    """
    real = inside[:, None] & (column < columns)[None, :]
    x = tl.load(scores + at[:, None] + column[None, :], mask=real, other=-INFINITY).to(WIDE)
    if mask is not None:
        place = mask_at[:, None] + column.to(tl.int64)[None, :] * mask_column
        x = tl.where(tl.load(mask + place, mask=real, other=0) != 0, x, -INFINITY)
    return x


@triton.jit
def largest(x):
    """The largest valid entry of each row; +inf if one is NaN, which the hardware would ignore."""
    return tl.max(tl.where(x != x, INFINITY, x), 1)


@triton.jit
def entries(x, top):
    """(sum, count) of the valid entries: of float32 as they are, in float64, which is exact enough
    to decide ties; of float64 relative to the maximum."""
    valid = x != -INFINITY
    if x.dtype == tl.float64:
        kept = tl.where(valid, x - top[:, None], 0.0)
    else:
        kept = tl.where(valid, x, 0.0).to(tl.float64)
    return tl.sum(kept, 1), tl.sum(valid.to(tl.int32), 1)


@triton.jit
def sums(x, top, bar, gap, WEIGH: tl.constexpr, STEEPNESS: tl.constexpr):
    """(W, A) of a Newton step: the sums of v^b and of v^(b-1), b = 1 / gap."""
    w, v = WEIGH(x, top, bar, gap, 0.0)
    return tl.sum(w, 1), tl.sum(STEEPNESS(w, v), 1)


@triton.jit
def improve(
    c, low, high, total, slope, wanted, gap, TOLERANCE: tl.constexpr, PER_ROW: tl.constexpr
):
    """(c, low, high, whether it moved) after a step; the root lies between low and high."""
    better = c - (c - wanted) * total / slope
    if PER_ROW:
        high = tl.where(c > wanted, c, high)
        low = tl.where(c > wanted, low, c)
        newton = gap <= 1.0
        better = tl.where(newton, better, 0.5 * (low + high))
        moved = tl.where(newton, c - better, high - low) > TOLERANCE * c
    else:
        moved = c - better > TOLERANCE * c
    return tl.where(moved, better, c), low, high, moved


@triton.jit
def read_gap(alpha, at, inside, GAP: tl.constexpr, WIDE: tl.constexpr):
    """alpha - 1 of every row: the same for all, or its own; NaN for an alpha below 1."""
    if GAP is None:
        gap = tl.load(alpha + at, mask=inside, other=2.0).to(WIDE) - 1.0
        gap = tl.where(gap >= 0, gap, float("nan"))
    else:
        gap = tl.full(at.shape, GAP, WIDE)
    return gap


@triton.jit
def finish(p, support, w, v, inverse, x, top, place, real):
    """Write a tile of results: NaN in rows that have one, 0 where hidden."""
    hidden = (x == -INFINITY) | (top == -INFINITY)[:, None]
    broken = (top == INFINITY)[:, None]
    result = tl.where(broken, float("nan"), w * inverse[:, None])
    result = tl.where(hidden, 0.0, result)
    tl.store(p + place, result.to(p.dtype.element_ty), mask=real)
    if support is not None:
        kept = (v > 0) & (hidden == 0) & (broken == 0)
        tl.store(support + place, kept.to(tl.uint8), mask=real)


@triton.jit
def finite(top):
    """The maximum, or 0 where it is infinite: such rows are settled when they are written."""
    return tl.where((top > -INFINITY) & (top < INFINITY), top, 0.0)


@triton.jit
def broken_by(gap, top):
    """The maximum, infinite also in a row whose alpha is NaN."""
    return tl.where((gap == gap) | (top == -INFINITY), top, INFINITY)


@triton.jit
def rows_forward_tile(
    scores, mask, alpha, p, support, rows, columns, size1, size2, scores0, scores1, scores2,
    mask0, mask1, mask2, mask_column, alpha0, alpha1, alpha2,
    WEIGH: tl.constexpr, THRESHOLD: tl.constexpr, STEEPNESS: tl.constexpr, WANTED: tl.constexpr,
    GAP: tl.constexpr, PARAMETER: tl.constexpr, WIDE: tl.constexpr, TOLERANCE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS rows of up to COLUMNS entries each."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row_offset(row, size1, size2, scores0, scores1, scores2)
    mask_at = row_offset(row, size1, size2, mask0, mask1, mask2)
    column = tl.arange(0, COLUMNS)
    x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
    top = largest(x)
    safe = finite(top)
    if THRESHOLD is not None:
        gap = safe
        total, count = entries(x, safe)
        bar = THRESHOLD(total, count, safe, PARAMETER)
        w, v = WEIGH(x, safe, bar, gap, PARAMETER)
        mass = tl.sum(w, 1)
    else:
        alpha_at = row_offset(row, size1, size2, alpha0, alpha1, alpha2)
        gap = read_gap(alpha, alpha_at, inside, GAP, WIDE)
        bar = tl.full((ROWS,), 1.0, WIDE)
        high = bar
        low = tl.exp(-gap * tl.log(tl.zeros((ROWS,), WIDE) + columns))
        mass, slope = sums(x, safe, bar, gap, WEIGH, STEEPNESS)
        active = 1
        left = MAX_PASSES
        while (active != 0) & (left > 0):
            wanted = WANTED(mass, gap)
            bar, low, high, moved = improve(
                bar, low, high, mass, slope, wanted, gap, TOLERANCE, GAP is None
            )
            active = tl.max(moved.to(tl.int32), 0)
            left -= 1
            if active != 0:
                mass, slope = sums(x, safe, bar, gap, WEIGH, STEEPNESS)
        w, v = WEIGH(x, safe, bar, gap, PARAMETER)
        top = broken_by(gap, top)
    inverse = inverse_of(tl.where(mass > 0, mass, 1.0))
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    real = inside[:, None] & (column < columns)[None, :]
    finish(p, support, w, v, inverse, x, top, place, real)


@triton.jit
def rows_forward_long(
    scores, mask, alpha, p, support, rows, columns, size1, size2, scores0, scores1, scores2,
    mask0, mask1, mask2, mask_column, alpha0, alpha1, alpha2,
    WEIGH: tl.constexpr, THRESHOLD: tl.constexpr, STEEPNESS: tl.constexpr, WANTED: tl.constexpr,
    GAP: tl.constexpr, PARAMETER: tl.constexpr, WIDE: tl.constexpr, TOLERANCE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row of any length, in passes over tiles of COLUMNS entries; sums in float64."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row_offset(row, size1, size2, scores0, scores1, scores2)
    mask_at = row_offset(row, size1, size2, mask0, mask1, mask2)
    zero = tl.zeros((ROWS,), tl.float64)
    top = tl.full((ROWS,), -INFINITY, WIDE)
    total, count = zero, tl.zeros((ROWS,), tl.int32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
        top = tl.maximum(top, largest(x))
        if THRESHOLD is not None and top.dtype != tl.float64:
            more, valid = entries(x, top)
            total += more
            count += valid
    safe = finite(top)
    if THRESHOLD is not None:
        if top.dtype == tl.float64:
            for start in range(0, columns, COLUMNS):
                column = start + tl.arange(0, COLUMNS)
                x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
                more, valid = entries(x, safe)
                total += more
                count += valid
        gap = safe
        bar = THRESHOLD(total, count, safe, PARAMETER)
        mass = zero
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
            w, v = WEIGH(x, safe, bar, gap, PARAMETER)
            mass += tl.sum(w, 1).to(tl.float64)
    else:
        alpha_at = row_offset(row, size1, size2, alpha0, alpha1, alpha2)
        gap = read_gap(alpha, alpha_at, inside, GAP, WIDE)
        bar = tl.full((ROWS,), 1.0, WIDE)
        high = bar
        low = tl.exp(-gap * tl.log(tl.zeros((ROWS,), WIDE) + columns))
        mass = zero
        active = 1
        left = MAX_PASSES
        while (active != 0) & (left > 0):
            mass, slope = zero, zero
            for start in range(0, columns, COLUMNS):
                column = start + tl.arange(0, COLUMNS)
                x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
                more, steeper = sums(x, safe, bar, gap, WEIGH, STEEPNESS)
                mass += more.to(tl.float64)
                slope += steeper.to(tl.float64)
            sum_w, wanted = mass.to(WIDE), WANTED(mass.to(WIDE), gap)
            bar, low, high, moved = improve(
                bar, low, high, sum_w, slope.to(WIDE), wanted, gap, TOLERANCE, GAP is None
            )
            active = tl.max(moved.to(tl.int32), 0)
            left -= 1
        top = broken_by(gap, top)
    inverse = (1.0 / tl.where(mass > 0, mass, 1.0)).to(WIDE)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
        w, v = WEIGH(x, safe, bar, gap, PARAMETER)
        place = row.to(tl.int64)[:, None] * columns + column[None, :]
        real = inside[:, None] & (column < columns)[None, :]
        finish(p, support, w, v, inverse, x, top, place, real)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def read_pair(p, grad, at, grad_at, inside, column, columns, WIDE: tl.constexpr):
    """(p, its gradient) of a tile; a gradient counts only where there is a probability."""
    real = inside[:, None] & (column < columns)[None, :]
    q = tl.load(p + at[:, None] + column[None, :], mask=real, other=0.0).to(WIDE)
    g = tl.load(grad + grad_at[:, None] + column[None, :], mask=real, other=0.0).to(WIDE)
    return q, tl.where(q == 0, 0.0, g), real


@triton.jit
def curvature(q, gap):
    """(log p, h) of the derivative to alpha; see :func:`alpha_terms`."""
    log_p = tl.log(tl.where(q > 0, q, 1.0))
    return log_p, log_p * log_p * expm1_rest(-gap[:, None] * log_p)


@triton.jit
def alpha_terms(q, g, log_p, h, gap, entropy, mean_h, mass):
    """g · dp/dalpha of Correia, Niculae & Martins (2019), proposition 1, rearranged.

    With L = log p, h = (p^-gap - 1 + gap L) / gap², H = sum p L, M = sum p h and S = sum s it is
    p / S (M (1 - gap L) - h (1 - gap H)): the terms in 1 / gap of the original have cancelled.
    """
    slope = mean_h[:, None] * (1.0 - gap[:, None] * log_p)
    slope -= h * (1.0 - gap[:, None] * entropy[:, None])
    return g * q * slope / mass[:, None]


@triton.jit
def rows_backward_tile(
    p, grad, alpha, grad_scores, grad_alpha, rows, columns, size1, size2, grad0, grad1, grad2,
    alpha0, alpha1, alpha2,
    SLOPE: tl.constexpr, GAP: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradient of the scores of ROWS rows, and, if asked for, of each row's alpha."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row.to(tl.int64) * columns
    grad_at = row_offset(row, size1, size2, grad0, grad1, grad2)
    column = tl.arange(0, COLUMNS)
    q, g, real = read_pair(p, grad, at, grad_at, inside, column, columns, WIDE)
    alpha_at = row_offset(row, size1, size2, alpha0, alpha1, alpha2)
    gap = read_gap(alpha, alpha_at, inside, GAP, WIDE)
    s = SLOPE(q, gap)
    mean = tl.sum(s * g, 1)
    mass = tl.sum(s, 1)
    mass = tl.where(mass > 0, mass, 1.0)
    mean = divide(mean, mass)
    # A row of NaN has NaN for its mean: its valid entries get it, its hidden ones 0.
    result = tl.where(q == 0, 0.0, tl.where(q != q, q, s * (g - mean[:, None])))
    place = at[:, None] + column[None, :]
    tl.store(grad_scores + place, result.to(grad_scores.dtype.element_ty), mask=real)
    if grad_alpha is not None:
        log_p, h = curvature(q, gap)
        entropy, mean_h = tl.sum(q * log_p, 1), tl.sum(q * h, 1)
        terms = alpha_terms(q, g, log_p, h, gap, entropy, mean_h, mass)
        tl.store(grad_alpha + row, tl.sum(terms, 1), mask=inside)


@triton.jit
def rows_backward_long(
    p, grad, alpha, grad_scores, grad_alpha, rows, columns, size1, size2, grad0, grad1, grad2,
    alpha0, alpha1, alpha2,
    SLOPE: tl.constexpr, GAP: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The same for rows of any length: one pass for the sums, one for the result."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row.to(tl.int64) * columns
    grad_at = row_offset(row, size1, size2, grad0, grad1, grad2)
    alpha_at = row_offset(row, size1, size2, alpha0, alpha1, alpha2)
    gap = read_gap(alpha, alpha_at, inside, GAP, WIDE)
    zero = tl.zeros((ROWS,), tl.float64)
    weighted, mass, entropy, mean_h = zero, zero, zero, zero
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        q, g, real = read_pair(p, grad, at, grad_at, inside, column, columns, WIDE)
        s = SLOPE(q, gap)
        weighted += tl.sum(s * g, 1).to(tl.float64)
        mass += tl.sum(s, 1).to(tl.float64)
        if grad_alpha is not None:
            log_p, h = curvature(q, gap)
            entropy += tl.sum(q * log_p, 1).to(tl.float64)
            mean_h += tl.sum(q * h, 1).to(tl.float64)
    # Used once: of a sum that a loop ends with and that no conversion follows (float64), Triton 3.7
    # compiles no second use.
    mass = tl.maximum(mass, 0.0)
    mass = tl.where(mass > 0, mass, 1.0)
    mean = (weighted / mass).to(WIDE)
    of_alpha = zero
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        q, g, real = read_pair(p, grad, at, grad_at, inside, column, columns, WIDE)
        s = SLOPE(q, gap)
        result = tl.where(q == 0, 0.0, tl.where(q != q, q, s * (g - mean[:, None])))
        place = at[:, None] + column[None, :]
        tl.store(grad_scores + place, result.to(grad_scores.dtype.element_ty), mask=real)
        if grad_alpha is not None:
            log_p, h = curvature(q, gap)
            terms = alpha_terms(
                q, g, log_p, h, gap, entropy.to(WIDE), mean_h.to(WIDE), mass.to(WIDE)
            )
            of_alpha += tl.sum(terms, 1).to(tl.float64)
    if grad_alpha is not None:
        tl.store(grad_alpha + row, of_alpha.to(WIDE), mask=inside)
