"""The row kernels, as Triton compiles them; :mod:`.rows` launches them.

A program takes a few rows. A row that fits is held in registers as one tile; a longer one is read
again in each pass, tile by tile. Every normalizer goes through the same steps:

1. the maximum of the valid entries, which is infinite if one is NaN or +inf, and their mean;
2. its threshold. ev-softmax has the mean. For the others let d = x - max, gap = alpha - 1 and
   v = 1 + gap d / c, where v > 0, with weights w = v^(1 / gap). Then p = w / W with W = sum w for
   the c in (0, 1] with c = W^-gap, found by Newton from c = 1: c decreases to the root without
   overshooting for alpha <= 2 (where sparsemax's step is Michelot's), and nothing cancels near
   alpha = 1, where c is 1 and w is exp(d). Beyond 2 it is found by bisection;
3. probabilities w / W.
"""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.numerics import (
    INFINITY,
    UNDERFLOW32,
    UNDERFLOW64,
    divide,
    expm1_rest,
    log1p_ratio,
    round_up,
)

#: What NORMALIZER may be.
EVSOFTMAX = tl.constexpr(0)
SPARSEMAX = tl.constexpr(1)
ENTMAX15 = tl.constexpr(2)
ENTMAX = tl.constexpr(3)

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
def mean_threshold(total, count, top):
    """What entries must reach (of float64: relative to the maximum). The rounded mean of equal
    entries may exceed them all, hence the minimum."""
    mean = total / tl.where(count > 0, count, 1).to(tl.float64)
    if top.dtype == tl.float64:
        return tl.minimum(mean, 0.0)
    else:
        return tl.minimum(round_up(mean), top)


@triton.jit
def weigh(x, top, bar, gap, NORMALIZER: tl.constexpr, EPS: tl.constexpr):
    """(weights, v), v > 0 in the support; ``bar`` is ev-softmax's threshold, or c of the others."""
    d = x - top[:, None]
    if NORMALIZER == EVSOFTMAX:
        if x.dtype == tl.float64:
            v = tl.where(d >= bar[:, None], 1.0, 0.0)
            alive = d >= UNDERFLOW64
        else:
            v = tl.where(x >= bar[:, None], 1.0, 0.0)
            alive = d >= UNDERFLOW32
        if EPS > 0:
            factor = tl.where(v > 0, 1.0 + EPS, EPS).to(x.dtype)
            w = tl.where(alive, tl.exp(d) * factor, 0.0)
            v = tl.where(d > -INFINITY, 1.0, 0.0)
        else:
            w = tl.where(alive & (v > 0), tl.exp(d), 0.0)
    else:
        near = d * divide(tl.full(bar.shape, 1.0, bar.dtype), bar)[:, None]
        u = near * gap[:, None]
        v = 1.0 + u
        if NORMALIZER == SPARSEMAX:
            w = tl.maximum(v, 0.0)
        elif NORMALIZER == ENTMAX15:
            w = tl.maximum(v, 0.0)
            w = w * w
        else:
            inner = tl.where(v > 0, u, 0.0)
            power = near * log1p_ratio(inner)
            alive = power >= (UNDERFLOW64 if x.dtype == tl.float64 else UNDERFLOW32)
            w = tl.where(alive & (v > 0), tl.exp(power), 0.0)
    return w, v


@triton.jit
def sums(x, top, bar, gap, NORMALIZER: tl.constexpr):
    """(W, A) of a Newton step: the sums of v^b and of v^(b-1), b = 1 / gap."""
    w, v = weigh(x, top, bar, gap, NORMALIZER, 0.0)
    if NORMALIZER == SPARSEMAX:
        slope = tl.where(v > 0, 1.0, 0.0).to(x.dtype)
    elif NORMALIZER == ENTMAX15:
        slope = tl.maximum(v, 0.0)
    else:
        slope = w / tl.where(v > 0, v, 1.0)
    return tl.sum(w, 1), tl.sum(slope, 1)


@triton.jit
def improve(c, low, high, total, slope, gap, TOLERANCE: tl.constexpr, NORMALIZER: tl.constexpr):
    """(c, low, high, whether it moved) after a step; the root lies between low and high."""
    if NORMALIZER == SPARSEMAX:
        wanted = divide(tl.full(c.shape, 1.0, c.dtype), total)
    elif NORMALIZER == ENTMAX15:
        wanted = divide(tl.full(c.shape, 1.0, c.dtype), tl.sqrt(total))
    else:
        wanted = tl.exp(-gap * tl.log(total))
    better = c - (c - wanted) * total / slope
    if NORMALIZER == ENTMAX:
        high = tl.where(c > wanted, c, high)
        low = tl.where(c > wanted, low, c)
        newton = gap <= 1.0
        better = tl.where(newton, better, 0.5 * (low + high))
        moved = tl.where(newton, c - better, high - low) > TOLERANCE * c
    else:
        moved = c - better > TOLERANCE * c
    return tl.where(moved, better, c), low, high, moved


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
def rows_forward_tile(
    scores,
    mask,
    alpha,
    p,
    support,
    rows,
    columns,
    size1,
    size2,
    scores0,
    scores1,
    scores2,
    mask0,
    mask1,
    mask2,
    mask_column,
    alpha0,
    alpha1,
    alpha2,
    NORMALIZER: tl.constexpr,
    EPS: tl.constexpr,
    WIDE: tl.constexpr,
    TOLERANCE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """ROWS rows of up to COLUMNS entries each."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row_offset(row, size1, size2, scores0, scores1, scores2)
    mask_at = row_offset(row, size1, size2, mask0, mask1, mask2)
    column = tl.arange(0, COLUMNS)
    x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
    top = largest(x)
    safe = finite(top)
    if NORMALIZER == EVSOFTMAX:
        gap = safe
        total, count = entries(x, safe)
        bar = mean_threshold(total, count, safe)
        w, v = weigh(x, safe, bar, gap, NORMALIZER, EPS)
        mass = tl.sum(w, 1)
    else:
        if NORMALIZER == ENTMAX:
            alpha_at = row_offset(row, size1, size2, alpha0, alpha1, alpha2)
            gap = tl.load(alpha + alpha_at, mask=inside, other=2.0).to(WIDE) - 1.0
        else:
            gap = tl.full((ROWS,), 1.0 if NORMALIZER == SPARSEMAX else 0.5, WIDE)
        bar = tl.full((ROWS,), 1.0, WIDE)
        high = bar
        low = tl.exp(-gap * tl.log(tl.zeros((ROWS,), WIDE) + columns))
        mass, slope = sums(x, safe, bar, gap, NORMALIZER)
        active = 1
        left = MAX_PASSES
        while (active != 0) & (left > 0):
            bar, low, high, moved = improve(bar, low, high, mass, slope, gap, TOLERANCE, NORMALIZER)
            active = tl.max(moved.to(tl.int32), 0)
            left -= 1
            if active != 0:
                mass, slope = sums(x, safe, bar, gap, NORMALIZER)
        w, v = weigh(x, safe, bar, gap, NORMALIZER, EPS)
    inverse = divide(tl.full((ROWS,), 1.0, WIDE), tl.where(mass > 0, mass, 1.0))
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    real = inside[:, None] & (column < columns)[None, :]
    finish(p, support, w, v, inverse, x, top, place, real)


@triton.jit
def rows_forward_long(
    scores,
    mask,
    alpha,
    p,
    support,
    rows,
    columns,
    size1,
    size2,
    scores0,
    scores1,
    scores2,
    mask0,
    mask1,
    mask2,
    mask_column,
    alpha0,
    alpha1,
    alpha2,
    NORMALIZER: tl.constexpr,
    EPS: tl.constexpr,
    WIDE: tl.constexpr,
    TOLERANCE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
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
        if NORMALIZER == EVSOFTMAX and top.dtype != tl.float64:
            more, valid = entries(x, top)
            total += more
            count += valid
    safe = finite(top)
    if NORMALIZER == EVSOFTMAX:
        if top.dtype == tl.float64:
            for start in range(0, columns, COLUMNS):
                column = start + tl.arange(0, COLUMNS)
                x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
                more, valid = entries(x, safe)
                total += more
                count += valid
        gap = safe
        bar = mean_threshold(total, count, safe)
        mass = zero
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
            w, v = weigh(x, safe, bar, gap, NORMALIZER, EPS)
            mass += tl.sum(w, 1).to(tl.float64)
    else:
        if NORMALIZER == ENTMAX:
            alpha_at = row_offset(row, size1, size2, alpha0, alpha1, alpha2)
            gap = tl.load(alpha + alpha_at, mask=inside, other=2.0).to(WIDE) - 1.0
        else:
            gap = tl.full((ROWS,), 1.0 if NORMALIZER == SPARSEMAX else 0.5, WIDE)
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
                more, steeper = sums(x, safe, bar, gap, NORMALIZER)
                mass += more.to(tl.float64)
                slope += steeper.to(tl.float64)
            bar, low, high, moved = improve(
                bar, low, high, mass.to(WIDE), slope.to(WIDE), gap, TOLERANCE, NORMALIZER
            )
            active = tl.max(moved.to(tl.int32), 0)
            left -= 1
    inverse = (1.0 / tl.where(mass > 0, mass, 1.0)).to(WIDE)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = read(scores, mask, at, mask_at, inside, column, columns, mask_column, WIDE)
        w, v = weigh(x, safe, bar, gap, NORMALIZER, EPS)
        place = row.to(tl.int64)[:, None] * columns + column[None, :]
        real = inside[:, None] & (column < columns)[None, :]
        finish(p, support, w, v, inverse, x, top, place, real)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def slopes(q, gap, NORMALIZER: tl.constexpr):
    """s = p^(2 - alpha) in the support, else 0; the Jacobian is diag(s) - s sᵀ / sum(s)."""
    if NORMALIZER == EVSOFTMAX:
        return q
    elif NORMALIZER == SPARSEMAX:
        return tl.where(q > 0, 1.0, 0.0).to(q.dtype)
    elif NORMALIZER == ENTMAX15:
        return tl.sqrt_rn(q) if q.dtype == tl.float32 else tl.sqrt(q)
    else:
        log_p = tl.log(tl.where(q > 0, q, 1.0))
        return tl.where(q > 0, tl.exp((1.0 - gap[:, None]) * log_p), 0.0)


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
    p,
    grad,
    alpha,
    grad_scores,
    grad_alpha,
    rows,
    columns,
    size1,
    size2,
    grad0,
    grad1,
    grad2,
    alpha0,
    alpha1,
    alpha2,
    NORMALIZER: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradient of the scores of ROWS rows, and, if asked for, of each row's alpha."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row.to(tl.int64) * columns
    grad_at = row_offset(row, size1, size2, grad0, grad1, grad2)
    column = tl.arange(0, COLUMNS)
    q, g, real = read_pair(p, grad, at, grad_at, inside, column, columns, WIDE)
    gap = tl.zeros((ROWS,), WIDE)
    if NORMALIZER == ENTMAX:
        alpha_at = row_offset(row, size1, size2, alpha0, alpha1, alpha2)
        gap = tl.load(alpha + alpha_at, mask=inside, other=2.0).to(WIDE) - 1.0
    s = slopes(q, gap, NORMALIZER)
    mean = tl.sum(s * g, 1)
    mass = tl.sum(s, 1)
    mass = tl.where(mass > 0, mass, 1.0)
    if NORMALIZER != EVSOFTMAX:
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
    p,
    grad,
    alpha,
    grad_scores,
    grad_alpha,
    rows,
    columns,
    size1,
    size2,
    grad0,
    grad1,
    grad2,
    alpha0,
    alpha1,
    alpha2,
    NORMALIZER: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The same for rows of any length: one pass for the sums, one for the result."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row.to(tl.int64) * columns
    grad_at = row_offset(row, size1, size2, grad0, grad1, grad2)
    gap = tl.zeros((ROWS,), WIDE)
    if NORMALIZER == ENTMAX:
        alpha_at = row_offset(row, size1, size2, alpha0, alpha1, alpha2)
        gap = tl.load(alpha + alpha_at, mask=inside, other=2.0).to(WIDE) - 1.0
    zero = tl.zeros((ROWS,), tl.float64)
    weighted, mass, entropy, mean_h = zero, zero, zero, zero
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        q, g, real = read_pair(p, grad, at, grad_at, inside, column, columns, WIDE)
        s = slopes(q, gap, NORMALIZER)
        weighted += tl.sum(s * g, 1).to(tl.float64)
        mass += tl.sum(s, 1).to(tl.float64)
        if grad_alpha is not None:
            log_p, h = curvature(q, gap)
            entropy += tl.sum(q * log_p, 1).to(tl.float64)
            mean_h += tl.sum(q * h, 1).to(tl.float64)
    mass = tl.where(mass > 0, mass, 1.0)
    mean = (weighted if NORMALIZER == EVSOFTMAX else weighted / mass).to(WIDE)
    of_alpha = zero
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        q, g, real = read_pair(p, grad, at, grad_at, inside, column, columns, WIDE)
        s = slopes(q, gap, NORMALIZER)
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
