"""entmax with one alpha for every row."""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.normalizers import Cost, Kernel
from onmt_evsoftmax.kernels.triton.numerics import (
    UNDERFLOW32,
    UNDERFLOW64,
    inverse_of,
    log1p_ratio,
)


@triton.jit
def weigh(x, top, bar, gap, PARAMETER: tl.constexpr):
    """w = v^(1 / gap), which tends to exp(x - top) with gap."""
    near = (x - top[:, None]) * inverse_of(bar)[:, None]
    u = near * gap[:, None]
    v = 1.0 + u
    power = near * log1p_ratio(tl.where(v > 0, u, 0.0))
    alive = power >= (UNDERFLOW64 if x.dtype == tl.float64 else UNDERFLOW32)
    return tl.where(alive & (v > 0), tl.exp(power), 0.0), v


@triton.jit
def slope(p, gap):
    """p^(1 - gap) in the support."""
    log_p = tl.log(tl.where(p > 0, p, 1.0))
    return tl.where(p > 0, tl.exp((1.0 - gap[:, None]) * log_p), 0.0)


@triton.jit
def steepness(w, v):
    """w / v in the support."""
    return w / tl.where(v > 0, v, 1.0)


@triton.jit
def wanted(total, gap):
    """total^-gap."""
    return tl.exp(-gap * tl.log(total))


KERNEL = Kernel(
    weigh,
    slope,
    steepness=steepness,
    wanted=wanted,
    cost=Cost(passes=5, each_pass=24, special=2, special_each_pass=2, special_backward=2),
)
