"""The attention kernels, as Triton compiles them; :mod:`.attention` launches them.

Of every row three numbers are kept for the backward pass: the largest score, the threshold (or c of
a normalizer that searches it, see :mod:`.normalizers`), and 1 / sum of the weights. With them a
tile of probabilities is computed again from its scores. Nothing is added to memory that another
program writes: results do not depend on the order of programs.

WEIGHTS and SLOPE are the functions of the normalizer. MEAN: its threshold is the mean of the row,
known before, and the largest score is found on the way.
"""

import triton
import triton.language as tl

from onmt_evsoftmax.kernels.triton.attention_tile import (
    beyond,
    by_distance,
    distance,
    dropout_factor,
    masked_scores,
    product,
    read_tile,
    row_keys,
    visible_keys,
    write_ends,
    write_tile,
)  # fmt: skip
from onmt_evsoftmax.kernels.triton.numerics import INFINITY

LENGTHS = ["queries", "keys", "blocks", "window", "offset"]


@triton.jit(do_not_specialize=LENGTHS)
def attention_forward(
    query, key, value, mask, bias, key_terms, slopes, out, tops, thresholds, inverses, masses,
    seed, heads, heads_per_key, queries, keys, blocks, scale, least, factor, window, offset,
    query_b, query_h, query_l, key_b, key_h, key_s, value_b, value_h, value_s, mask_b, mask_h,
    mask_l, mask_s, bias_b, bias_h, bias_l, bias_s, out_b, out_h, out_l,
    WEIGHTS: tl.constexpr, MEAN: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """Attention of M queries.

    With MEAN the largest score is found online. Rounding may have put a threshold above all scores
    of its row, as where they are equal; the bar is therefore never above the running maximum, and
    what was kept below the bar as it finally is, is multiplied by 0.

    ``masses`` (rows, distances): what relative values are multiplied with. Here the two columns for
    all keys beyond the window are written; ``near_distances`` writes the others.
    """
    program = tl.program_id(0)
    # Of a causal head, the blocks with the most keys first.
    block, head = blocks - 1 - program % blocks, (program // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    i, j = tl.arange(0, M), tl.arange(0, N)
    first = block * M
    inside = first + i < queries
    rows = head * queries + first + i
    key_base = key + b * key_b + h // heads_per_key * key_h
    value_base = value + b * value_b + h // heads_per_key * value_h
    mask_at, bias_at = b * mask_b + h * mask_h, b * bias_b + h * bias_h
    q = read_tile(query + b * query_b + h * query_h, first, query_l, i, inside, SIZE, BLOCK)
    threshold = tl.load(thresholds + rows, mask=inside, other=INFINITY)
    if MEAN:
        top = tl.full((M,), -INFINITY, tl.float32)
        bar = threshold
    else:
        top = tl.load(tops + rows, mask=inside, other=0.0)
        bar = tl.where((threshold == threshold) & inside, threshold, 1.0)
    row_key = i
    if seed is not None:
        row_key = row_keys(seed, head, queries, first + i)
    total = tl.zeros((M,), tl.float32)
    result = tl.zeros((M, VALUE_BLOCK), tl.float32)
    if masses is not None:
        left, right = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, first + M)
    for start in range(0, end, N):
        seen = visible_keys(mask, mask_at, start, mask_s, j, keys, MASK)
        k = read_tile(key_base, start, key_s, j, seen, SIZE, BLOCK)
        s = masked_scores(
            product(q, tl.trans(k)), i[:, None], j[None, :], head, first, start, queries, keys,
            scale, mask, mask_at, mask_l, mask_s, bias, bias_at, bias_l, bias_s, key_terms, slopes,
            window, offset, CAUSAL, MASK,
        )  # fmt: skip
        if MEAN:
            most = tl.maximum(top, tl.max(s, 1))
            bar = tl.minimum(threshold, most)
            safe = tl.where(most == -INFINITY, 0.0, most)
            w, _ = WEIGHTS(s, safe[:, None], bar[:, None])
            shrink = tl.where(top >= bar, tl.exp(top - safe), 0.0)
            top = most
            total = total * shrink + tl.sum(w, 1)
            result = result * shrink[:, None]
            if masses is not None:
                left, right = left * shrink, right * shrink
        else:
            w, _ = WEIGHTS(s, top[:, None], bar[:, None])
            total += tl.sum(w, 1)
        needed = 1
        if SKIP:
            needed = tl.max(tl.max(tl.where(w > 0, 1, 0), 1), 0)
        if needed != 0:
            v = read_tile(value_base, start, value_s, j, seen, VALUE_SIZE, VALUE_BLOCK)
            if seed is not None:
                w = w * dropout_factor(row_key[:, None], (start + j)[None, :], least, factor)
            if masses is not None:
                more = beyond(w, distance(i[:, None], j[None, :], first, start, offset), window)
                left, right = left + more[0], right + more[1]
            result += product(w.to(v.dtype), v)
    broken = threshold != threshold
    inverse = tl.div_rn(tl.full((M,), 1.0, tl.float32), tl.where(total > 0, total, 1.0))
    inverse = tl.where(broken, float("nan"), tl.where(total > 0, inverse, 0.0))
    result = tl.where(broken[:, None], float("nan"), result * inverse[:, None])
    if MEAN:
        bar = tl.where(broken, -INFINITY, bar)
        top = tl.where(broken | (top == -INFINITY), 0.0, top)
        tl.store(tops + rows, top, mask=inside)
    tl.store(thresholds + rows, bar, mask=inside)
    tl.store(inverses + rows, inverse, mask=inside)
    if masses is not None:
        write_ends(masses, rows, inside, left * inverse, right * inverse, window)
    write_tile(
        out + b * out_b + h * out_h, first, out_l, i, inside, result, VALUE_SIZE, VALUE_BLOCK
    )


@triton.jit
def probabilities(s, top, bar, inverse, WEIGHTS: tl.constexpr, SLOPE: tl.constexpr):
    """(p, slope) of a tile; the Jacobian of a row is diag(slope) - slope slopeᵀ / sum(slope)."""
    w, v = WEIGHTS(s, top, bar)
    seen = s != -INFINITY
    p = tl.where(seen, w * inverse, 0.0)
    return p, tl.where(seen, SLOPE(p, v, inverse), 0.0)


@triton.jit(do_not_specialize=LENGTHS)
def attention_grad_query(
    query, key, value, mask, bias, key_terms, slopes, value_terms, out, grad, grad_query,
    grad_terms, tops, thresholds, inverses, deltas, seed, heads, heads_per_key, queries, keys,
    blocks, scale, least, factor, window, offset,
    query_b, query_h, query_l, key_b, key_h, key_s, value_b, value_h, value_s, mask_b, mask_h,
    mask_l, mask_s, bias_b, bias_h, bias_l, bias_s, out_b, out_h, out_l, grad_b, grad_h, grad_l,
    grad_query_b, grad_query_h, grad_query_l,
    WEIGHTS: tl.constexpr, SLOPE: tl.constexpr, MEAN: tl.constexpr, SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """Gradient of M queries, and delta = sum(slope dP) / sum(slope) of their rows, which the kernel
    for keys and values needs. Where the slope is p (MEAN), delta = out · dout is known
    beforehand; the others add up slope dP k and slope k and subtract in the end.

    ``grad_terms`` (rows, distances): the gradient of ``key_terms``, as ``masses`` in the forward
    pass."""
    program = tl.program_id(0)
    block, head = blocks - 1 - program % blocks, (program // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    i, j = tl.arange(0, M), tl.arange(0, N)
    first = block * M
    inside = first + i < queries
    rows = head * queries + first + i
    key_base = key + b * key_b + h // heads_per_key * key_h
    value_base = value + b * value_b + h // heads_per_key * value_h
    mask_at, bias_at = b * mask_b + h * mask_h, b * bias_b + h * bias_h
    q = read_tile(query + b * query_b + h * query_h, first, query_l, i, inside, SIZE, BLOCK)
    g = read_tile(grad + b * grad_b + h * grad_h, first, grad_l, i, inside, VALUE_SIZE, VALUE_BLOCK)
    top = tl.load(tops + rows, mask=inside, other=0.0)
    bar = tl.load(thresholds + rows, mask=inside, other=1.0)
    inverse = tl.load(inverses + rows, mask=inside, other=0.0)
    row_key = i
    if seed is not None:
        row_key = row_keys(seed, head, queries, first + i)
    delta = tl.zeros((M,), tl.float32)
    if MEAN:
        o = read_tile(out + b * out_b + h * out_h, first, out_l, i, inside, VALUE_SIZE, VALUE_BLOCK)
        delta = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    else:
        mass = tl.zeros((M,), tl.float32)
        shares = tl.zeros((M, BLOCK), tl.float32)
    if grad_terms is not None:
        left, right = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
        if not MEAN:
            left_mass, right_mass = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    result = tl.zeros((M, BLOCK), tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, first + M)
    for start in range(0, end, N):
        seen = visible_keys(mask, mask_at, start, mask_s, j, keys, MASK)
        k = read_tile(key_base, start, key_s, j, seen, SIZE, BLOCK)
        s = masked_scores(
            product(q, tl.trans(k)), i[:, None], j[None, :], head, first, start, queries, keys,
            scale, mask, mask_at, mask_l, mask_s, bias, bias_at, bias_l, bias_s, key_terms, slopes,
            window, offset, CAUSAL, MASK,
        )  # fmt: skip
        _, slope = probabilities(s, top[:, None], bar[:, None], inverse[:, None], WEIGHTS, SLOPE)
        needed = 1
        if SKIP:
            needed = tl.max(tl.max(tl.where(slope == 0, 0, 1), 1), 0)
        if needed != 0:
            v = read_tile(value_base, start, value_s, j, seen, VALUE_SIZE, VALUE_BLOCK)
            dp = product(g, tl.trans(v))
            apart = distance(i[:, None], j[None, :], first, start, offset)
            if value_terms is not None:
                real = inside[:, None] & (start + j < keys)[None, :]
                dp += by_distance(
                    value_terms, head * queries + first, i[:, None], apart, real, window
                )
            if seed is not None:
                dp = dp * dropout_factor(row_key[:, None], (start + j)[None, :], least, factor)
            if MEAN:
                ds = tl.where(slope == 0, 0.0, slope * (dp - delta[:, None]))
                result += product(ds.to(k.dtype), k)
            else:
                ds = tl.where(slope == 0, 0.0, slope * dp)
                delta += tl.sum(ds, 1)
                mass += tl.sum(slope, 1)
                result += product(ds.to(k.dtype), k)
                shares += product(slope.to(k.dtype), k)
            if grad_terms is not None:
                more = beyond(ds, apart, window)
                left, right = left + more[0], right + more[1]
                if not MEAN:
                    more = beyond(slope, apart, window)
                    left_mass, right_mass = left_mass + more[0], right_mass + more[1]
    if not MEAN:
        delta = tl.div_rn(delta, tl.where(mass == 0, 1.0, mass))
        result -= delta[:, None] * shares
    if grad_terms is not None:
        if not MEAN:
            left, right = left - delta * left_mass, right - delta * right_mass
        write_ends(grad_terms, rows, inside, left, right, window)
    tl.store(deltas + rows, delta, mask=inside)
    write_tile(
        grad_query + b * grad_query_b + h * grad_query_h,
        first,
        grad_query_l,
        i,
        inside,
        result * scale,
        SIZE,
        BLOCK,
    )


@triton.jit(do_not_specialize=LENGTHS)
def attention_grad_key_value(
    query, key, value, mask, bias, key_terms, slopes, value_terms, grad, grad_key, grad_value,
    tops, thresholds, inverses, deltas, seed, heads, heads_per_key, queries, keys, blocks, scale,
    least, factor, window, offset,
    query_b, query_h, query_l, key_b, key_h, key_s, value_b, value_h, value_s, mask_b, mask_h,
    mask_l, mask_s, bias_b, bias_h, bias_l, bias_s, grad_b, grad_h, grad_l, grad_key_b,
    grad_key_h, grad_key_s, grad_value_b, grad_value_h, grad_value_s,
    WEIGHTS: tl.constexpr, SLOPE: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """Gradients of N keys and values, over all queries of all heads that share them. Tiles are
    (N, M) here, so that probabilities enter the products as they are."""
    program = tl.program_id(0)
    block, group = program % blocks, (program // blocks).to(tl.int64)
    key_heads = heads // heads_per_key
    b, key_head = group // key_heads, group % key_heads
    i, j = tl.arange(0, M), tl.arange(0, N)
    start = block * N
    inside = start + j < keys
    k = read_tile(key + b * key_b + key_head * key_h, start, key_s, j, inside, SIZE, BLOCK)
    v = read_tile(
        value + b * value_b + key_head * value_h,
        start,
        value_s,
        j,
        inside,
        VALUE_SIZE,
        VALUE_BLOCK,
    )
    of_key = tl.zeros((N, BLOCK), tl.float32)
    of_value = tl.zeros((N, VALUE_BLOCK), tl.float32)
    begin = 0
    if CAUSAL:
        begin = start // M * M
    for member in range(0, heads_per_key):
        h = key_head * heads_per_key + member
        query_base = query + b * query_b + h * query_h
        grad_base = grad + b * grad_b + h * grad_h
        mask_at, bias_at = b * mask_b + h * mask_h, b * bias_b + h * bias_h
        head = b * heads + h
        for first in range(begin, queries, M):
            real = first + i < queries
            rows = head * queries + first + i
            q = read_tile(query_base, first, query_l, i, real, SIZE, BLOCK)
            s = masked_scores(
                product(k, tl.trans(q)), i[None, :], j[:, None], head, first, start, queries, keys,
                scale, mask, mask_at, mask_l, mask_s, bias, bias_at, bias_l, bias_s, key_terms,
                slopes, window, offset, CAUSAL, MASK,
            )  # fmt: skip
            top = tl.load(tops + rows, mask=real, other=0.0)
            bar = tl.load(thresholds + rows, mask=real, other=1.0)
            inverse = tl.load(inverses + rows, mask=real, other=0.0)
            p, slope = probabilities(
                s, top[None, :], bar[None, :], inverse[None, :], WEIGHTS, SLOPE
            )
            needed = 1
            if SKIP:
                needed = tl.max(tl.max(tl.where(slope == 0, 0, 1), 1), 0)
            if needed != 0:
                delta = tl.load(deltas + rows, mask=real, other=0.0)
                g = read_tile(grad_base, first, grad_l, i, real, VALUE_SIZE, VALUE_BLOCK)
                dp = product(v, tl.trans(g))
                apart = distance(i[None, :], j[:, None], first, start, offset)
                if value_terms is not None:
                    both = real[None, :] & inside[:, None]
                    dp += by_distance(
                        value_terms, head * queries + first, i[None, :], apart, both, window
                    )
                if seed is not None:
                    row_key = row_keys(seed, head, queries, first + i)
                    kept = dropout_factor(row_key[None, :], (start + j)[:, None], least, factor)
                    p = p * kept
                    dp = dp * kept
                of_value += product(p.to(g.dtype), g)
                ds = tl.where(slope == 0, 0.0, slope * (dp - delta[None, :]))
                of_key += product(ds.to(q.dtype), q)
    write_tile(
        grad_key + b * grad_key_b + key_head * grad_key_h,
        start,
        grad_key_s,
        j,
        inside,
        of_key * scale,
        SIZE,
        BLOCK,
    )
    write_tile(
        grad_value + b * grad_value_b + key_head * grad_value_h,
        start,
        grad_value_s,
        j,
        inside,
        of_value,
        VALUE_SIZE,
        VALUE_BLOCK,
    )
