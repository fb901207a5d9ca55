"""The function behind every ``attn_implementation`` of ours, called by transformers' modules."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from onmt_evsoftmax.attention.sparse_attention import sparse_attention
from onmt_evsoftmax.normalizers.registry import get_record

#: transformers' own softmax attention, for kinds of attention that are left alone.
STOCK = "sdpa"
#: The ``attn_implementation`` of a model whose kinds of attention have different normalizers.
BY_KIND = "normalizer_by_kind"
#: Where :func:`~onmt_evsoftmax.transformers.use` writes the normalizer of one attention module.
ATTRIBUTE = "attention_normalizer"

#: Models hide keys by adding −10,000 (the oldest ones) up to the smallest float. A key that is
#: hidden must not enter a mean, so from here on down a mask's number is taken for −∞.
HIDDEN = -10_000.0

#: Arguments that change the scores or the keys in ways this function does not know.
REFUSED = {
    "s_aux": "attention sinks",
    "head_mask": "head masks",
    "cache": "continuous batching",
    "indices": "indexed keys",
    "block_indices": "indexed keys",
}


class Recorded(NamedTuple):
    """What one module attended to: both (batch, heads, queries, keys), before dropout."""

    weights: Tensor  # float32, or float64 in a float64 model
    support: Tensor  # boolean, True where the normalizer kept the key


_records: ContextVar[dict[nn.Module, Recorded] | None] = ContextVar("records", default=None)


@contextmanager
def record_attention() -> Iterator[dict[nn.Module, Recorded]]:
    """Collect the attention of every module that runs inside, the last call of each."""
    found: dict[nn.Module, Recorded] = {}
    token = _records.set(found)
    try:
        yield found
    finally:
        _records.reset(token)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    *,
    implementation: str,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention (batch, queries, heads, size) and, with ``output_attentions``, its weights.

    ``query`` is (batch, heads, queries, size); ``key`` and ``value`` may have fewer heads. The
    boolean ``attention_mask``, (batch, 1, queries, keys), is True where a key takes part; without
    one, a causal module sees keys up to its query, and another sees all. ``position_bias`` is added
    to the scores. Weights are those before dropout.
    """
    _refuse(module, options)
    if attention_mask is None and implementation not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise RuntimeError(
            f"{type(module).__name__} got no mask, because none is registered for "
            f"attn_implementation={implementation!r}: import onmt_evsoftmax.transformers again"
        )
    name = _normalizer(module, implementation)
    records = None if torch.compiler.is_compiling() else _records.get()
    wanted = bool(options.get("output_attentions")) or records is not None
    if name == STOCK and not wanted and softcap is None:
        extra = {} if position_bias is None else {"position_bias": position_bias}
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **extra
        )
        return result
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    length = query.shape[2]
    causal = bool(length > 1 and attention_mask is None and is_causal)
    if causal and key.shape[2] > length:  # the first step of a static cache, whose rest is empty
        key, value = key[:, :, :length], value[:, :, :length]
        if position_bias is not None:
            position_bias = position_bias[..., :length]
    normalizer: Any = "softmax" if name == STOCK else name
    kept: list[Recorded] = []
    if wanted or softcap is not None:
        normalizer = _explicit(get_record(normalizer).function, softcap, kept)
    out = sparse_attention(
        query,
        key,
        value,
        _mask(module, attention_mask, position_bias, softcap),
        dropout,
        causal,
        scaling,
        enable_gqa=key.shape[1] != query.shape[1],
        normalizer=normalizer,
    )
    if records is not None:
        records[module] = kept[0]
    weights = kept[0].weights.to(query.dtype) if wanted else None
    return out.transpose(1, 2).contiguous(), weights


def _normalizer(module: nn.Module, implementation: str) -> str:
    if implementation != BY_KIND:
        return implementation
    name: str | None = getattr(module, ATTRIBUTE, None)
    if name is None:
        raise RuntimeError(
            f"{type(module).__name__} does not know its normalizer: choose it with "
            "onmt_evsoftmax.transformers.use(model, normalizer, kinds)"
        )
    return name


def _refuse(module: nn.Module, options: dict[str, Any]) -> None:
    for option, what in REFUSED.items():
        if options.get(option) is not None:
            raise ValueError(
                f"{type(module).__name__} uses {what} ({option}), which the normalizers of "
                f"onmt_evsoftmax do not support: use attn_implementation={STOCK!r} or 'eager'"
            )


def _mask(
    module: nn.Module, mask: Tensor | None, bias: Tensor | None, softcap: float | None
) -> Tensor | None:
    """Mask and bias as one: boolean, True = takes part, or added to the scores, −∞ = does not."""
    if mask is not None:
        if mask.dim() != 4 or not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise TypeError(
                f"{type(module).__name__} passes a mask of shape {tuple(mask.shape)} and type "
                f"{mask.dtype}; needed is (batch, heads, queries, keys), boolean or added"
            )
        if mask.is_floating_point():
            mask = mask.masked_fill(mask <= HIDDEN, -math.inf)
            bias = mask if bias is None else bias + mask
        elif bias is not None:
            bias = torch.where(mask, bias, -math.inf)
    if bias is None:
        return mask
    if softcap is not None:
        raise ValueError(f"{type(module).__name__}: softcap cannot be combined with a bias")
    return bias


def _explicit(
    function: Callable[..., Any], softcap: float | None, kept: list[Recorded]
) -> Callable[..., Tensor]:
    """A normalizer that caps its scores, as Gemma 2 does, and keeps what it computes."""

    def normalize(scores: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        weights, support = function(scores, mask, dim, return_support=True)
        kept.append(Recorded(weights, support))
        return weights

    return normalize


def implementation(name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function registered under ``name``."""
    return functools.partial(attend, implementation=name)
