"""entmax-1.5: alpha = 1.5, weights are squares."""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.normalizers import Cost, Kernel
from onmt_evsoftmax.kernels.triton.numerics import inverse_of


@triton.jit
def weigh(x, top, bar, gap, PARAMETER: tl.constexpr):
    """w = v²."""
    v = 1.0 + (x - top[:, None]) * inverse_of(bar)[:, None] * 0.5
    w = tl.maximum(v, 0.0)
    return w * w, v


@triton.jit
def slope(p, gap):
    """√p."""
    return tl.sqrt_rn(p) if p.dtype == tl.float32 else tl.sqrt(p)


@triton.jit
def steepness(w, v):
    """v in the support."""
    return tl.maximum(v, 0.0)


@triton.jit
def wanted(total, gap):
    """1 / √total."""
    return inverse_of(tl.sqrt(total))


@triton.jit
def attention_weights(s, top, bar):
    """w = v²."""
    v = tl.maximum(1.0 + (s - top) * tl.div_rn(tl.full(bar.shape, 0.5, tl.float32), bar), 0.0)
    return v * v, v


@triton.jit
def attention_slope(p, v, inverse):
    """√p."""
    return v * tl.sqrt(inverse)


KERNEL = Kernel(
    weigh,
    slope,
    gap=0.5,
    steepness=steepness,
    wanted=wanted,
    attention_weights=attention_weights,
    attention_slope=attention_slope,
    cost=Cost(passes=5, each_pass=7, special_backward=1, special_attention=1),
)
