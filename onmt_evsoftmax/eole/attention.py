"""eole's multi-headed attention with another normalizer in the place of softmax.

eole computes attention in one of three ways: by its own steps, by torch's fused softmax attention,
or by flash attention on its cache. Only the first can have another normalizer, so the other two are
shut for a sparse layer, and that is said. In its own steps eole adds position biases and hides
padding, the future and empty slots of the cache by the smallest float32; here those are −∞, which
takes no part in any mean.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.eole.config import NEEDS, STOCK, normalizer_of
from onmt_evsoftmax.normalizers.registry import get_record


class _Functional:
    """``torch.nn.functional`` as eole's attention sees it, with ``softmax`` replaced in a call."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.function: Callable[..., Tensor] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def softmax(self, scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.function is None:
            result: Tensor = self.original.softmax(scores, *args, **kwargs)
            return result
        hidden = scores <= torch.finfo(scores.dtype).min
        return self.function(scores.masked_fill(hidden, -math.inf), None, -1)


def patch_attention(module: Any) -> None:
    """``eole.modules.multi_headed_attn``: every layer with the normalizer its options name."""
    functional = module.F = _Functional(module.F)
    attention = module.MultiHeadedAttention
    build, compute = attention.__init__, attention._compute_attention

    @functools.wraps(build)
    def __init__(self: Any, config: Any, running: Any = None, is_decoder: bool = True) -> None:
        kind = "decoder" if is_decoder else "encoder"
        name = normalizer_of(config, "context" if isinstance(self, module.ContextMHA) else kind)
        if name != STOCK and getattr(running, "self_attn_backend", "") == "flash":
            from eole.utils.logging import logger

            logger.warning(f"self_attn_backend: pytorch instead of flash, which has no {name}")
            running.__dict__["self_attn_backend"] = "pytorch"  # as eole itself overrules it
        build(self, config, running, is_decoder)
        self.normalizer = name
        if name != STOCK:  # to be saved with the model
            config.__dict__[NEEDS] = "onmt_evsoftmax"
            config.__pydantic_fields_set__.add(NEEDS)

    @functools.wraps(compute)
    def _compute_attention(
        self: Any,
        key: Tensor,
        value: Tensor,
        query: Tensor,
        attn_mask: Tensor | None = None,
        return_attn: bool | None = False,
    ) -> tuple[Tensor, Tensor | None]:
        if self.normalizer == STOCK:
            result: tuple[Tensor, Tensor | None] = compute(
                self, key, value, query, attn_mask, return_attn
            )
            return result
        functional.function = get_record(self.normalizer).function
        try:  # asking for the weights keeps eole off torch's fused attention
            out, weights = compute(self, key, value, query, attn_mask, return_attn=True)
        finally:
            functional.function = None
        return out, weights if return_attn else None

    attention.__init__ = __init__
    attention._compute_attention = _compute_attention
