"""sparsemax: the projection onto the simplex, alpha = 2."""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.normalizers import Cost, Kernel
from onmt_evsoftmax.kernels.triton.numerics import inverse_of


@triton.jit
def weigh(x, top, bar, gap, PARAMETER: tl.constexpr):
    """w = v."""
    v = 1.0 + (x - top[:, None]) * inverse_of(bar)[:, None]
    return tl.maximum(v, 0.0), v


@triton.jit
def slope(p, gap):
    """1 in the support."""
    return tl.where(p > 0, 1.0, 0.0).to(p.dtype)


@triton.jit
def steepness(w, v):
    """v^0 in the support."""
    return tl.where(v > 0, 1.0, 0.0).to(v.dtype)


@triton.jit
def wanted(total, gap):
    """1 / total."""
    return inverse_of(total)


@triton.jit
def attention_weights(s, top, bar):
    """w = v."""
    v = tl.maximum(1.0 + (s - top) * inverse_of(bar), 0.0)
    return v, v


@triton.jit
def attention_slope(p, v, inverse):
    """1 in the support, NaN where p is."""
    return tl.where(v > 0, 1.0, tl.where(p != p, p, 0.0))


KERNEL = Kernel(
    weigh,
    slope,
    gap=1.0,
    steepness=steepness,
    wanted=wanted,
    attention_weights=attention_weights,
    attention_slope=attention_slope,
    cost=Cost(passes=5, each_pass=6),
)
