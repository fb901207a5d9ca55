"""ev-softmax: exp(x) where x reaches the mean of its row; PARAMETER is eps."""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.normalizers import Cost, Kernel
from onmt_evsoftmax.kernels.triton.numerics import INFINITY, UNDERFLOW32, UNDERFLOW64, round_up


@triton.jit
def threshold(total, count, top, PARAMETER: tl.constexpr):
    """The mean. That of equal entries may be rounded above them all, hence the minimum."""
    mean = total / tl.where(count > 0, count, 1).to(tl.float64)
    if top.dtype == tl.float64:
        return tl.minimum(mean, 0.0)
    else:
        return tl.minimum(round_up(mean), top)


@triton.jit
def weigh(x, top, bar, gap, PARAMETER: tl.constexpr):
    """exp(x - top) from the threshold on."""
    d = x - top[:, None]
    if x.dtype == tl.float64:
        v = tl.where(d >= bar[:, None], 1.0, 0.0)
        alive = d >= UNDERFLOW64
    else:
        v = tl.where(x >= bar[:, None], 1.0, 0.0)
        alive = d >= UNDERFLOW32
    if PARAMETER > 0:
        factor = tl.where(v > 0, 1.0 + PARAMETER, PARAMETER).to(x.dtype)
        w = tl.where(alive, tl.exp(d) * factor, 0.0)
        v = tl.where(d > -INFINITY, 1.0, 0.0)
    else:
        w = tl.where(alive & (v > 0), tl.exp(d), 0.0)
    return w, v


@triton.jit
def slope(p, gap):
    """Softmax's, of p."""
    return p


@triton.jit
def attention_weights(s, top, bar):
    """exp(s - top) from the threshold on."""
    kept = (s >= bar) & (s != -INFINITY)
    v = tl.where(kept, tl.exp(s - top), 0.0)
    return v, v


@triton.jit
def attention_slope(p, v, inverse):
    """Softmax's, of p."""
    return p


KERNEL = Kernel(
    weigh,
    slope,
    threshold,
    attention_weights=attention_weights,
    attention_slope=attention_slope,
    mean=True,
    cost=Cost(special=1, special_attention=1, float64=2),
)
