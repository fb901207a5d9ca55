"""What all attention kernels do with a tile of queries and keys.

``i`` and ``j`` are the places of queries and keys in the tile, shaped so that they broadcast to it:
(M, 1) and (1, N), or, in the kernel for keys and values, (1, M) and (N, 1). Addresses are a scalar
of 64 bits for the tile and 32 bits inside it.
"""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton import interpreted
from onmt_evsoftmax.kernels.triton.numerics import INFINITY, scramble

#: What MASK may be: no mask, one for the keys, or one that differs between queries.
UNMASKED = tl.constexpr(0)
KEYS = tl.constexpr(1)
QUERIES = tl.constexpr(2)

#: Triton's interpreter multiplies bfloat16 wrongly, and float32 by a BLAS that may give equal keys
#: products with different last bits, which tensor cores do not.
INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def product(a, b):
    """Matrix product, summed in float32.

    float32 is never shortened to TF32: rounded scores would change which keys are kept, in a third
    of the rows at 4096 keys. Three products of TF32 parts are as exact as float32.
    """
    if INTERPRETED:
        exact = tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64)
        return exact.to(tl.float32)
    else:
        precision: tl.constexpr = "tf32x3" if a.dtype == tl.float32 else "ieee"
        return tl.dot(a, b, input_precision=precision)


@triton.jit
def read_tile(base, start, stride, place, real, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Rows start + place of a matrix with rows of SIZE numbers; 0 where not real."""
    e = tl.arange(0, BLOCK)
    seen = real[:, None]
    if SIZE != BLOCK:
        seen = seen & (e < SIZE)[None, :]
    first = base + tl.cast(start, tl.int64) * stride
    return tl.load(first + place[:, None] * stride + e[None, :], mask=seen, other=0.0)


@triton.jit
def write_tile(base, start, stride, place, real, x, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Write rows start + place."""
    e = tl.arange(0, BLOCK)
    seen = real[:, None]
    if SIZE != BLOCK:
        seen = seen & (e < SIZE)[None, :]
    first = base + tl.cast(start, tl.int64) * stride
    place = first + place[:, None] * stride + e[None, :]
    tl.store(place, x.to(base.dtype.element_ty), mask=seen)


@triton.jit
def visible_keys(mask, mask_at, start, mask_s, place, keys, MASK: tl.constexpr):
    """Which keys of a tile (N,) any query may see, as far as the keys alone decide that.

    The others may hold anything, NaN too, and must not enter a product. ``mask_at`` is where the
    head begins in the mask.
    """
    real = start + place < keys
    if MASK == KEYS:
        first = mask + mask_at + tl.cast(start, tl.int64) * mask_s
        real = real & (tl.load(first + place * mask_s, mask=real, other=0) != 0)
    return real


@triton.jit
def distance(i, j, first_query, first_key, offset):
    """How far each key of a tile lies behind each query."""
    return (first_key + j) - (first_query + i) - offset


@triton.jit
def by_distance(table, first_row, i, apart, seen, window):
    """What a table (rows, 2 window + 1) has for every pair of a tile: distances are clipped."""
    column = tl.minimum(tl.maximum(apart, -window), window) + window
    size = 2 * window + 1
    return tl.load(table + first_row * size + (i * size + column), mask=seen, other=0.0)


@triton.jit
def beyond(x, apart, window):
    """Sums (M,) of a tile (M, N) over the keys that are clipped: on the left, and on the right.

    Strictly inside the window a query has one key for each distance, and nothing is to be summed.
    """
    left = tl.sum(tl.where(apart <= -window, x, 0.0), 1)
    return left, tl.sum(tl.where(apart >= window, x, 0.0), 1)


@triton.jit
def write_ends(table, rows, inside, left, right, window):
    """The first and the last column of a table (rows, 2 window + 1)."""
    at = table + rows * (2 * window + 1)
    tl.store(at, left, mask=inside)
    tl.store(at + 2 * window, right, mask=inside)


@triton.jit
def masked_scores(
    dots, i, j, head, first_query, first_key, queries, keys, scale, mask, mask_at, mask_l, mask_s,
    bias, bias_at, bias_l, bias_s, key_terms, slopes, window, offset,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Scores from products of queries and keys; -inf where a query does not see a key.

    ``head`` counts through the batch (int64); ``mask_at`` and ``bias_at`` are where it begins in
    these. ``key_terms`` (heads, queries, distances) and ``slopes`` (heads,) are what the distance
    adds.
    """
    s = dots * scale
    seen = (first_query + i < queries) & (first_key + j < keys)
    apart = distance(i, j, first_query, first_key, offset)
    if key_terms is not None:
        s += by_distance(key_terms, head * queries + first_query, i, apart, seen, window)
    if slopes is not None:
        s -= tl.load(slopes + head) * tl.abs(apart).to(tl.float32)
    if bias is not None:
        at = tl.cast(first_query, tl.int64) * bias_l + tl.cast(first_key, tl.int64) * bias_s
        place = bias + bias_at + at + (i * bias_l + j * bias_s)
        s += tl.load(place, mask=seen, other=0.0).to(tl.float32)
    if MASK == KEYS:
        place = mask + mask_at + tl.cast(first_key, tl.int64) * mask_s + j * mask_s
        seen = seen & (tl.load(place, mask=first_key + j < keys, other=0) != 0)
    elif MASK == QUERIES:
        at = tl.cast(first_query, tl.int64) * mask_l + tl.cast(first_key, tl.int64) * mask_s
        place = mask + mask_at + at + (i * mask_l + j * mask_s)
        seen = seen & (tl.load(place, mask=seen, other=0) != 0)
    if CAUSAL:
        seen = seen & (first_key + j <= first_query + i)
    return tl.where(seen, s, -INFINITY)


@triton.jit
def row_keys(seed, head, queries, row):
    """What tells rows apart in the hash that decides on dropout (uint64)."""
    number = (tl.cast(head, tl.int64) * queries + row + 1).to(tl.uint64)
    return scramble(tl.load(seed).to(tl.uint64) + number * 0x9E3779B97F4A7C15)


@triton.jit
def dropout_factor(row_key, position, least, factor):
    """``factor`` where a probability is kept, else 0; keys of rows and positions broadcast.

    ``least`` is the dropped share of 2^24. The same hash as ``attention/dropout.py`` and the C
    kernels have: a seed drops the same keys everywhere.
    """
    h = (position.to(tl.uint32) ^ row_key.to(tl.uint32)) * 0x7FEB352D
    h = (h ^ (h >> 15) ^ (row_key >> 32).to(tl.uint32)) * 0x846CA68B
    h = h ^ (h >> 16)
    return tl.where((h >> 8).to(tl.int32) >= least, factor, 0.0)
