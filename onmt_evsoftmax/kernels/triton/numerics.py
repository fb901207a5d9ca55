"""Arithmetic that the kernels share: functions that Triton compiles into each of them.

Triton's own division, logarithm and exponential of float32 are approximations. The functions here
are as exact as the kernels need them, and say where that matters.
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))

#: Exponentials of less would be denormal; the CPU kernels drop them at the same place.
UNDERFLOW32 = tl.constexpr(-87.0)
UNDERFLOW64 = tl.constexpr(-708.0)


@triton.jit
def divide(a, b):
    """a / b, correctly rounded: Triton's own is two units off in float32."""
    if b.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def inverse_of(x):
    """1 / x, correctly rounded."""
    return divide(tl.full(x.shape, 1.0, x.dtype), x)


@triton.jit
def round_up(x):
    """The least float32 that is not below a float64: y >= x and y >= round_up(x) are then one."""
    near = x.to(tl.float32)
    bits = near.to(tl.int32, bitcast=True)
    above = (bits + tl.where(near >= 0, 1, -1)).to(tl.float32, bitcast=True)
    return tl.where(near.to(tl.float64) < x, above, near)


@triton.jit
def log1p_ratio(u):
    """log(1 + u) / u for -1 < u <= 0, and 1 at 0.

    With alpha near 1, entmax multiplies this with large numbers, and the hardware's logarithm loses
    all digits next to 1: there it is a series, 2 atanh(u / (2 + u)).
    """
    t = divide(u, 2.0 + u)
    q = t * t
    if u.dtype == tl.float64:
        # Kahan: what 1 + u was rounded by cancels.
        v = 1.0 + u
        rounded = tl.where(v == 1.0, 1.0, v - 1.0)
        return tl.where(v == 1.0, 1.0, tl.log(tl.where(v > 0, v, 1.0)) / rounded)
    else:
        series = 1.0 / 15 + q * (1.0 / 17)
        series = 1.0 / 11 + q * (1.0 / 13 + q * series)
        series = 1.0 / 7 + q * (1.0 / 9 + q * series)
        series = 1.0 + q * (1.0 / 3 + q * (1.0 / 5 + q * series))
        far = u < -0.5
        v = tl.where(far & (u > -1.0), 1.0 + u, 1.0)
        return tl.where(far, tl.log(v) / tl.where(far, u, 1.0), divide(2.0 * series, 2.0 + u))


@triton.jit
def expm1_rest(y):
    """(exp(y) - 1 - y) / y² for y >= 0, without the cancellation near 0."""
    series = y * 0.0
    for k in tl.static_range(17):
        series = (1.0 + series) * y / (19 - k)
    series = (1.0 + series) * 0.5
    large = y > 1.0
    safe = tl.where(large, y, 2.0)
    return tl.where(large, (tl.exp(safe) - 1.0 - safe) / (safe * safe), series)


@triton.jit
def scramble(x):
    """SplitMix's finalizer of 64 bits, as ``attention/dropout.py`` and the C kernels have it."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
