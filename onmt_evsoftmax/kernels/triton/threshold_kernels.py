"""Thresholds of attention, before its output is computed; :mod:`.attention` launches these.

The mean (ev-softmax): the mean score of a query is its product with the mean of its keys. Keys are
summed by chunks, in float64; a causal query sees the chunks before its own, whose sums are known,
and a part of its own chunk, whose scores are added up. What position terms add follows from how
many keys there are at each distance (:mod:`.distance_kernels`). A mask that differs between
queries, a bias, or a score of -inf (which counts as masked) leaves no other way than to add up all
scores.

Searched (sparsemax, entmax-1.5): one pass for the maximum, then Newton on c (see
:mod:`.normalizers`), every step a pass over the keys.
"""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.attention_tile import (
    masked_scores,
    product,
    read_tile,
    visible_keys,
)
from onmt_evsoftmax.kernels.triton.numerics import INFINITY, round_up

#: Of Newton's method; 3 to 13 are needed.
MAX_PASSES = tl.constexpr(40)


@triton.jit(do_not_specialize=["keys", "chunks"])
def key_sums(
    key, mask, sums, counts, heads, heads_per_key, keys, chunks,
    key_b, key_h, key_s, mask_b, mask_h, mask_s,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """The sum (in float64) and number of the keys of one chunk that take part."""
    program = tl.program_id(0)
    chunk, head = program % chunks, (program // chunks).to(tl.int64)
    b, h = head // heads, head % heads
    place = tl.arange(0, CHUNK)
    start = chunk * CHUNK
    mask_at = b * mask_b + h * mask_h
    seen = visible_keys(mask, mask_at, start, mask_s, place, keys, MASK)
    base = key + b * key_b + h // heads_per_key * key_h
    e = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float64)
    # Sixteen keys at a time: as float64 a whole chunk would not fit the registers.
    for part in tl.static_range(0, CHUNK, 16):
        some = part + tl.arange(0, 16)
        real = visible_keys(mask, mask_at, start, mask_s, some, keys, MASK)
        total += tl.sum(read_tile(base, start, key_s, some, real, SIZE, BLOCK).to(tl.float64), 0)
    tl.store(sums + program.to(tl.int64) * SIZE + e, total, mask=e < SIZE)
    tl.store(counts + program, tl.sum(seen.to(tl.int32), 0))


@triton.jit(do_not_specialize=["queries", "keys", "blocks", "chunks", "window", "offset"])
def mean_thresholds(
    query, key, mask, bias, key_terms, slopes, sums, counts, of_distances, thresholds, heads,
    heads_per_key, heads_per_sum, queries, keys, blocks, chunks, scale, window, offset,
    query_b, query_h, query_l, key_b, key_h, key_s, mask_b, mask_h, mask_l, mask_s, bias_b,
    bias_h, bias_l, bias_s,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, M: tl.constexpr, CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """What the scores of M queries must reach.

    ``sums`` and ``counts`` are of all keys, or, causal, of those before each chunk of M; or None.
    ``of_distances`` is what position terms add to the sum of the scores. A row with NaN or +inf
    among its scores has the threshold NaN; one without any key has +inf, and one with a single key
    -inf, so that rounding cannot lose it.
    """
    program = tl.program_id(0)
    block, head = program % blocks, (program // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    place = tl.arange(0, M)
    first = block * M
    inside = first + place < queries
    query_base = query + b * query_b + h * query_h
    key_base = key + b * key_b + h // heads_per_key * key_h
    mask_at, bias_at = b * mask_b + h * mask_h, b * bias_b + h * bias_h
    q = read_tile(query_base, first, query_l, place, inside, SIZE, BLOCK)
    total = tl.zeros((M,), tl.float64)
    count = tl.zeros((M,), tl.int32)
    unknown = 1
    if sums is not None:
        before = (b * heads + h) // heads_per_sum * chunks
        if CAUSAL:
            before += tl.minimum(block, chunks - 1)
        count += tl.load(counts + before).to(tl.int32)
        for e in tl.static_range(0, BLOCK, 16):
            column = e + tl.arange(0, 16)
            known = tl.load(sums + before * SIZE + column, mask=column < SIZE, other=0.0)
            at = query_base + first.to(tl.int64) * query_l
            real = inside[:, None] & (column < SIZE)[None, :]
            part = tl.load(at + place[:, None] * query_l + column[None, :], mask=real, other=0.0)
            total += tl.sum(part.to(tl.float64) * known[None, :], 1)
        total *= scale
        if CAUSAL:
            seen = visible_keys(mask, mask_at, first, mask_s, place, keys, MASK)
            k = read_tile(key_base, first, key_s, place, seen, SIZE, BLOCK)
            s = masked_scores(
                product(q, tl.trans(k)), place[:, None], place[None, :], head, first, first,
                queries, keys, scale, mask, mask_at, mask_l, mask_s, bias, bias_at, bias_l, bias_s,
                None, None, window, offset, CAUSAL, MASK,
            )  # fmt: skip
            valid = s != -INFINITY
            total += tl.sum(tl.where(valid, s, 0.0).to(tl.float64), 1)
            count += tl.sum(valid.to(tl.int32), 1)
        if of_distances is not None:
            total += tl.load(of_distances + head * queries + first + place, mask=inside, other=0.0)
        unknown = tl.max(tl.where(inside & (total - total != 0), 1, 0), 0)
    # Rarely anything is unknown; the loop then has no steps.
    total = tl.where(unknown != 0, 0.0, total)
    count = tl.where(unknown != 0, 0, count)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, first + M)
    end = tl.where(unknown != 0, end, 0)
    for start in range(0, end, M):
        seen = visible_keys(mask, mask_at, start, mask_s, place, keys, MASK)
        k = read_tile(key_base, start, key_s, place, seen, SIZE, BLOCK)
        s = masked_scores(
            product(q, tl.trans(k)), place[:, None], place[None, :], head, first, start, queries,
            keys, scale, mask, mask_at, mask_l, mask_s, bias, bias_at, bias_l, bias_s, key_terms,
            slopes, window, offset, CAUSAL, MASK,
        )  # fmt: skip
        valid = s != -INFINITY
        total += tl.sum(tl.where(valid, s, 0.0).to(tl.float64), 1)
        count += tl.sum(valid.to(tl.int32), 1)
    mean = round_up(total / tl.where(count > 0, count, 1).to(tl.float64))
    bar = tl.where(count > 1, mean, tl.where(count == 1, -INFINITY, INFINITY))
    bar = tl.where(total - total == 0, bar, float("nan"))
    tl.store(thresholds + head * queries + first + place, bar, mask=inside)


@triton.jit(do_not_specialize=["queries", "keys", "blocks", "window", "offset"])
def searched_thresholds(
    query, key, mask, bias, key_terms, slopes, tops, thresholds, heads, heads_per_key, queries,
    keys, blocks, scale, window, offset,
    query_b, query_h, query_l, key_b, key_h, key_s, mask_b, mask_h, mask_l, mask_s, bias_b,
    bias_h, bias_l, bias_s,
    WEIGHTS: tl.constexpr, STEEPNESS: tl.constexpr, WANTED: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """The largest score and c of M queries; c is NaN in a row with NaN or +inf."""
    program = tl.program_id(0)
    block, head = program % blocks, (program // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    i, j = tl.arange(0, M), tl.arange(0, N)
    first = block * M
    inside = first + i < queries
    query_base = query + b * query_b + h * query_h
    key_base = key + b * key_b + h // heads_per_key * key_h
    mask_at, bias_at = b * mask_b + h * mask_h, b * bias_b + h * bias_h
    q = read_tile(query_base, first, query_l, i, inside, SIZE, BLOCK)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, first + M)
    top = tl.full((M,), -INFINITY, tl.float32)
    c = tl.full((M,), 1.0, tl.float32)
    # Pass 0 finds the maximum; the others are Newton's.
    safe = c
    active = 1
    number = 0
    while (active != 0) & (number < MAX_PASSES):
        total = tl.zeros((M,), tl.float32)
        slope = tl.zeros((M,), tl.float32)
        for start in range(0, end, N):
            seen = visible_keys(mask, mask_at, start, mask_s, j, keys, MASK)
            k = read_tile(key_base, start, key_s, j, seen, SIZE, BLOCK)
            s = masked_scores(
                product(q, tl.trans(k)), i[:, None], j[None, :], head, first, start, queries,
                keys, scale, mask, mask_at, mask_l, mask_s, bias, bias_at, bias_l, bias_s,
                key_terms, slopes, window, offset, CAUSAL, MASK,
            )  # fmt: skip
            if number == 0:
                top = tl.maximum(top, tl.max(tl.where(s != s, INFINITY, s), 1))
            else:
                w, v = WEIGHTS(s, safe[:, None], c[:, None])
                total += tl.sum(w, 1)
                slope += tl.sum(STEEPNESS(w, v), 1)
        if number == 0:
            safe = tl.where((top > -INFINITY) & (top < INFINITY), top, 0.0)
        else:
            better = c - (c - WANTED(total, c)) * total / slope
            moved = c - better > 1.2e-7 * c
            c = tl.where(moved, better, c)
            active = tl.max(tl.where(moved, 1, 0), 0)
        number += 1
    c = tl.where(top == INFINITY, float("nan"), c)
    at = head * queries + first + i
    tl.store(tops + at, safe, mask=inside)
    tl.store(thresholds + at, c, mask=inside)
