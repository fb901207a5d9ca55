"""The attention kernels as functions of tensors; `attention_operators` has them as operators.

Shapes: query (batch, heads, L, E), key (batch, heads, S, E), value (batch, heads, S, V). ``mask``,
boolean, True = this key takes part, and ``bias``, added to the scores, are None or broadcast to
(batch, heads, L, S), their last dimension in full; a mask that is the same for every query should
have size 1 or stride 0 there, which is faster. Everything else is float32. Results are laid out in
memory as (batch, L, heads, V), as torch's own attention does, so that joining the heads copies
nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from onmt_evsoftmax.kernels import library

#: Of query, key, value, alpha, relative keys and relative values.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

CHUNK = 64  # queries of one piece of work, as in ``c/kernels.h``


def like_query(query: Tensor, length: int, size: int) -> Tensor:
    """An empty (batch, heads, length, size), in memory (batch, length, heads, size)."""
    batch, heads = query.shape[:2]
    return query.new_empty(batch, length, heads, size).transpose(1, 2)


def of_rows(query: Tensor) -> tuple[Tensor, Tensor]:
    """Empty, (batch, heads, L): the level, in double beside large scores, and the bar of rows.

    ``c/kernels.h`` says what they are for each normalizer; backward needs them.
    """
    shape = query.shape[:3]
    return query.new_empty(shape, dtype=torch.float64), query.new_empty(shape)


def _readable(tensor: Tensor) -> Tensor:
    """The tensor with the entries of a row adjacent in memory, and not marked as negated."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) == 1 else tensor.contiguous()


def _steps(tensor: Tensor | None) -> list[int]:
    """Strides (batch, head, query) of a mask or bias; 0 where it broadcasts."""
    if tensor is None:
        return [0, 0, 0]
    pairs = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    return [0 if size == 1 else stride for size, stride in pairs]


class Terms(NamedTuple):
    """What a call has beside query, key, value, mask and bias; None does not act.

    (batch, heads): ``alpha``, of alpha-entmax only and needed there, and ``slopes``, what a step of
    distance takes from a score (ALiBi). (2w + 1, E) and (2w + 1, V): Shaw's relative keys and
    values. ``offset`` is the place of the first query among the keys.
    """

    alpha: Tensor | None = None
    relative_keys: Tensor | None = None
    relative_values: Tensor | None = None
    slopes: Tensor | None = None
    offset: int = 0

    def readable(self) -> Terms:
        """As the C functions read them."""
        keys, values, slopes = (
            None if t is None else t.float().contiguous()
            for t in (self.relative_keys, self.relative_values, self.slopes)
        )
        alpha = None if self.alpha is None else self.alpha.double().contiguous()
        return Terms(alpha, keys, values, slopes, self.offset)

    @property
    def window(self) -> int:
        """The distance from which on they are all alike; 0 without relative positions."""
        return 0 if self.relative_keys is None else self.relative_keys.size(0) // 2


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _run(
    backward: bool,
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    terms: Terms,
    rest: Sequence[Tensor | None],
    more: Sequence[Tensor | None],
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
    level: Tensor,
    bar: Tensor,
    splits: int,
) -> None:
    """Call the C function.

    ``rest`` is out and the gradients of out, query, key and value; ``more`` the gradients of alpha,
    relative keys and relative values.
    """
    if 0 in query.shape[:2]:  # no head at all, whose alphas the kernel would miss
        return
    sizes = [*query.shape[:3], key.size(2), query.size(3), value.size(3), splits]
    # What the kernel writes is readable as it was made, and so no copy.
    mask, bias, *tensors = (
        None if t is None else _readable(t) for t in (mask, bias, query, key, value, *rest)
    )
    strides: list[int] = []
    for tensor in tensors:
        # Gradients of keys and values may have the splits as a dimension in front.
        strides += [0, 0, 0] if tensor is None else tensor.stride()[-4:-1]
    strides += [*_steps(mask), *_steps(bias)]
    strides += [0 if t is None or t.dim() == 4 else t.stride(0) for t in tensors[6:]]
    alpha, relative_keys, relative_values, slopes, offset = terms.readable()
    grad_alpha, *grad_relative = more
    library.call(
        "attention",
        backward,
        library.NORMALIZERS[normalizer],
        (ctypes.c_int64 * 7)(*sizes),
        (ctypes.c_int64 * 32)(*strides),
        (ctypes.c_void_p * 8)(*map(_address, tensors)),
        _address(mask),
        _address(bias),
        causal,
        scale,
        dropout_p,
        0 if seed is None else int(seed),
        level.data_ptr(),
        bar.data_ptr(),
        (ctypes.c_int64 * 2)(terms.window, offset),
        (ctypes.c_void_p * 5)(
            *map(_address, (slopes, relative_keys, relative_values, *grad_relative))
        ),
        (ctypes.c_void_p * 2)(*map(_address, (alpha, grad_alpha))),
        torch.get_num_threads(),
    )


def attention_forward(
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    alpha: Tensor | None,
    relative_keys: Tensor | None,
    relative_values: Tensor | None,
    slopes: Tensor | None,
    offset: int,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, level, bar); the latter two, which backward needs, are (batch, heads, L)."""
    terms = Terms(alpha, relative_keys, relative_values, slopes, offset)
    out = like_query(query, query.size(2), value.size(3))
    level, bar = of_rows(query)
    options = (causal, scale, dropout_p, seed, level, bar)
    rest = (out, None, None, None, None)
    none = (None, None, None)
    _run(False, normalizer, query, key, value, mask, bias, terms, rest, none, *options, splits=1)
    return out, level, bar


def attention_backward(
    grad: Tensor,
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    alpha: Tensor | None,
    relative_keys: Tensor | None,
    relative_values: Tensor | None,
    slopes: Tensor | None,
    out: Tensor,
    level: Tensor,
    bar: Tensor,
    offset: int,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
) -> Gradients:
    """Gradients of query, key, value, alpha, relative keys and values; empty for None."""
    level, bar = level.contiguous(), bar.contiguous()
    terms = Terms(alpha, relative_keys, relative_values, slopes, offset)
    grad_query = like_query(query, query.size(2), query.size(3))
    # Fewer heads than threads: the queries of a head are split, and what each part finds is added.
    heads = query.size(0) * query.size(1)
    parts = torch.get_num_threads() // max(heads, 1)
    splits = max(1, min(parts, query.size(2) // CHUNK))
    grad_key = like_query(key, key.size(2), key.size(3))
    grad_value = like_query(key, key.size(2), value.size(3))
    if splits > 1:
        grad_key = grad_key.new_empty(splits, *grad_key.shape)
        grad_value = grad_value.new_empty(splits, *grad_value.shape)
    grad_alpha = None if alpha is None else alpha.new_zeros(heads * splits, dtype=torch.float64)
    grad_tables = [
        None if t is None else t.new_zeros(heads * splits, *t.shape, dtype=torch.float32)
        for t in (relative_keys, relative_values)
    ]
    rest = (out, grad, grad_query, grad_key, grad_value)
    options = (causal, scale, dropout_p, seed, level, bar)
    more = (grad_alpha, *grad_tables)
    _run(
        True, normalizer, query, key, value, mask, bias, terms, rest, more, *options, splits=splits
    )
    if splits > 1:
        grad_key = like_query(key, key.size(2), key.size(3)).copy_(grad_key.sum(0))
        grad_value = like_query(key, key.size(2), value.size(3)).copy_(grad_value.sum(0))
    if alpha is not None and grad_alpha is not None:
        grad_alpha = grad_alpha.view(heads, splits).sum(1).view(query.shape[:2]).to(alpha.dtype)
    tables = (None if t is None else t.sum(0) for t in grad_tables)
    return grad_query, grad_key, grad_value, *gradients_of_terms(query, grad_alpha, *tables)


def single_query(
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    alpha: Tensor | None,
    relative_keys: Tensor | None,
    relative_values: Tensor | None,
    slopes: Tensor | None,
    offset: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """(out, probabilities (batch, heads, 1, S)) of one query per head, without a gradient."""
    query, key, value = _readable(query), _readable(key), _readable(value)
    mask = None if mask is None else _readable(mask)
    terms = Terms(alpha, relative_keys, relative_values, slopes, offset).readable()
    out = like_query(query, 1, value.size(3))
    probabilities = query.new_empty(*query.shape[:3], key.size(2))
    tensors = (query, key, value, out)
    strides = [step for tensor in tensors for step in tensor.stride()[:3]]
    sizes = (*query.shape[:2], key.size(2), query.size(3), value.size(3))
    library.call(
        "single",
        library.NORMALIZERS[normalizer],
        (ctypes.c_int64 * 5)(*sizes),
        (ctypes.c_int64 * 14)(*strides, *_steps(mask)[:2]),
        (ctypes.c_void_p * 4)(*map(_address, tensors)),
        _address(mask),
        scale,
        (ctypes.c_int64 * 2)(terms.window, offset),
        (ctypes.c_void_p * 3)(
            *map(_address, (terms.slopes, terms.relative_keys, terms.relative_values))
        ),
        _address(terms.alpha),
        probabilities.data_ptr(),
        torch.get_num_threads(),
    )
    return out, probabilities


def gradients_of_terms(query: Tensor, *terms: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """An operator returns tensors: what there is not is empty."""
    alpha, keys, values = (query.new_empty(0) if t is None else t for t in terms)
    return alpha, keys, values


def gradients_of_inputs(
    grads: Sequence[Tensor], tensors: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """What an autograd function of :func:`attention_forward` returns; ``tensors`` from query on."""
    terms = (g if t is not None else None for g, t in zip(grads[3:], tensors[5:8], strict=True))
    return (None, *grads[:3], None, None, *terms, *[None] * 6)
