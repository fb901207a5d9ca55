"""What position terms need beside the kernels of attention; :mod:`.positions` launches these.

A table has a row for each query and a column for each distance from -window to window, to which
distances are clipped. Beyond the window many keys share a column: the attention kernels add them up
on their way. Strictly inside, every column is one key's.
"""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.attention_kernels import LENGTHS, probabilities
from onmt_evsoftmax.kernels.triton.attention_tile import (
    by_distance,
    distance,
    dropout_factor,
    masked_scores,
    product,
    read_tile,
    row_keys,
    visible_keys,
)


@triton.jit(do_not_specialize=["queries", "distances", "blocks"])
def distance_products(
    vectors, table, out, heads, queries, distances, blocks, scale,
    vectors_b, vectors_h, vectors_l,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Products of M queries (or gradients of outputs) and the rows of a table of positions.

    A kernel, since torch's own product may be TF32, which is not for scores.
    """
    program = tl.program_id(0)
    block, head = program % blocks, (program // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    i, m = tl.arange(0, M), tl.arange(0, N)
    first = block * M
    inside = first + i < queries
    x = read_tile(vectors + b * vectors_b + h * vectors_h, first, vectors_l, i, inside, SIZE, BLOCK)
    to = out + (head * queries + first) * distances
    for start in range(0, distances, N):
        real = start + m < distances
        r = read_tile(table, start, SIZE, m, real, SIZE, BLOCK)
        found = product(x, tl.trans(r)) * scale
        at = to + (i[:, None] * distances + (start + m)[None, :])
        tl.store(at, found, mask=inside[:, None] & real[None, :])


@triton.jit
def keys_before(place, numbers, limit):
    """How many keys before ``place`` take part, of the first ``limit``."""
    place = tl.minimum(tl.maximum(place, 0), limit)
    if numbers is None:
        return place
    else:
        return tl.load(numbers + place)


@triton.jit
def places_before(place, places, limit):
    """The sum of their places (int64)."""
    place = tl.minimum(tl.maximum(place, 0), limit)
    if places is None:
        place = place.to(tl.int64)
        return place * (place - 1) // 2
    else:
        return tl.load(places + place)


@triton.jit(do_not_specialize=LENGTHS)
def distance_totals(
    key_terms, slopes, numbers, places, of_distances, heads, queries, keys, blocks, window,
    offset,
    numbers_b, numbers_h,
    M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """What position terms add to the sum of the scores of M queries, in float64.

    ``numbers`` and ``places``, (…, keys + 1), are how many keys before each take part, and the sum
    of their places; None where all do. So the keys at each distance are counted, not visited.
    """
    program = tl.program_id(0)
    block, head = program % blocks, (program // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    i = tl.arange(0, M)
    first = block * M
    inside = first + i < queries
    at = first + i + offset
    limit = tl.zeros((M,), tl.int32) + keys
    if CAUSAL:
        limit = tl.minimum(limit, first + i + 1)
    numbers_base, places_base = numbers, places
    if numbers is not None:
        numbers_base = numbers + b * numbers_b + h * numbers_h
        places_base = places + b * numbers_b + h * numbers_h
    total = tl.zeros((M,), tl.float64)
    if key_terms is not None:
        size = 2 * window + 1
        terms = key_terms + (head * queries + first) * size
        for start in range(0, size, N):
            m = start + tl.arange(0, N)
            last = at[:, None] + (m - window)[None, :]
            beyond = tl.where(m == size - 1, keys, 0)[None, :]
            upto = keys_before(tl.maximum(last + 1, beyond), numbers_base, limit[:, None])
            below = keys_before(last, numbers_base, limit[:, None])
            count = upto - tl.where((m == 0)[None, :], 0, below)
            real = inside[:, None] & (m < size)[None, :]
            term = tl.load(terms + (i[:, None] * size + m[None, :]), mask=real, other=0.0)
            total += tl.sum(term.to(tl.float64) * count.to(tl.float64), 1)
    if slopes is not None:
        count, left = (
            keys_before(limit, numbers_base, limit),
            keys_before(at + 1, numbers_base, limit),
        )
        sum_all = places_before(limit, places_base, limit)
        sum_left = places_before(at + 1, places_base, limit)
        far = sum_all - 2 * sum_left + at.to(tl.int64) * (2 * left - count)
        total -= tl.load(slopes + head).to(tl.float64) * far.to(tl.float64)
    tl.store(of_distances + head * queries + first + i, total, mask=inside)


@triton.jit(do_not_specialize=LENGTHS)
def near_distances(
    query, key, value, mask, bias, key_terms, slopes, value_terms, grad, tops, thresholds,
    inverses, deltas, table, seed, heads, heads_per_key, queries, keys, blocks, scale, least,
    factor, window, offset,
    query_b, query_h, query_l, key_b, key_h, key_s, value_b, value_h, value_s, mask_b, mask_h,
    mask_l, mask_s, bias_b, bias_h, bias_l, bias_s, grad_b, grad_h, grad_l,
    WEIGHTS: tl.constexpr, SLOPE: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """The columns strictly inside the window of a table for M queries.

    With ``grad``: gradients of the scores; else probabilities, after dropout. Only the keys within
    the window are visited; what has no key is left as it is.
    """
    program = tl.program_id(0)
    block, head = program % blocks, (program // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    i, j = tl.arange(0, M), tl.arange(0, N)
    first = block * M
    inside = first + i < queries
    rows = head * queries + first + i
    size = 2 * window + 1
    key_base = key + b * key_b + h // heads_per_key * key_h
    value_base = value + b * value_b + h // heads_per_key * value_h
    mask_at, bias_at = b * mask_b + h * mask_h, b * bias_b + h * bias_h
    to = table + (head * queries + first) * size
    q = read_tile(query + b * query_b + h * query_h, first, query_l, i, inside, SIZE, BLOCK)
    if grad is not None:
        at = grad + b * grad_b + h * grad_h
        g = read_tile(at, first, grad_l, i, inside, VALUE_SIZE, VALUE_BLOCK)
        delta = tl.load(deltas + rows, mask=inside, other=0.0)
    top = tl.load(tops + rows, mask=inside, other=0.0)
    bar = tl.load(thresholds + rows, mask=inside, other=1.0)
    inverse = tl.load(inverses + rows, mask=inside, other=0.0)
    row_key = i
    if seed is not None:
        row_key = row_keys(seed, head, queries, first + i)
    begin = tl.maximum(first + offset - window + 1, 0)
    end = tl.minimum(first + M - 1 + offset + window, keys)
    if CAUSAL:
        end = tl.minimum(end, first + M)
    for start in range(begin, end, N):
        seen = visible_keys(mask, mask_at, start, mask_s, j, keys, MASK)
        k = read_tile(key_base, start, key_s, j, seen, SIZE, BLOCK)
        s = masked_scores(
            product(q, tl.trans(k)), i[:, None], j[None, :], head, first, start, queries, keys,
            scale, mask, mask_at, mask_l, mask_s, bias, bias_at, bias_l, bias_s, key_terms, slopes,
            window, offset, CAUSAL, MASK,
        )  # fmt: skip
        p, slope = probabilities(s, top[:, None], bar[:, None], inverse[:, None], WEIGHTS, SLOPE)
        kept = 1.0
        if seed is not None:
            kept = dropout_factor(row_key[:, None], (start + j)[None, :], least, factor)
        real = inside[:, None] & (start + j < keys)[None, :]
        apart = distance(i[:, None], j[None, :], first, start, offset)
        if grad is not None:
            v = read_tile(value_base, start, value_s, j, seen, VALUE_SIZE, VALUE_BLOCK)
            dp = product(g, tl.trans(v))
            if value_terms is not None:
                dp += by_distance(
                    value_terms, head * queries + first, i[:, None], apart, real, window
                )
            found = tl.where(slope == 0, 0.0, slope * (dp * kept - delta[:, None]))
        else:
            found = p * kept
        column = apart + window
        near = (column > 0) & (column < 2 * window)
        tl.store(to + (i[:, None] * size + column), found, mask=real & near)
