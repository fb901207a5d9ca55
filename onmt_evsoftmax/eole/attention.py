"""eole's multi-headed attention with another normalizer in the place of softmax.

eole computes attention in one of three ways: by its own steps, by torch's fused softmax attention,
or by flash attention on its cache. Only the first can have another normalizer, so the other two are
shut for a sparse layer, and the log says so. In its own steps eole adds position biases and hides
padding, the future and empty slots of the cache by the smallest float32; here those take no part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.eole.config import NEEDS, settings_of
from onmt_evsoftmax.opennmt.settings import STOCK


def _with_softmax(compute: Any, normalizer: Callable[..., Tensor]) -> Callable[..., Any]:
    """The function ``compute`` with another ``F.softmax``: nothing that other threads would see."""

    def softmax(scores: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        return normalizer(scores, scores > torch.finfo(scores.dtype).min, dim)

    names = {**compute.__globals__, "F": SimpleNamespace(softmax=softmax)}
    return FunctionType(
        compute.__code__, names, compute.__name__, compute.__defaults__, compute.__closure__
    )


def patch_attention(module: Any) -> None:
    """``eole.modules.multi_headed_attn``: every layer with the normalizer its options name."""
    from eole.utils.logging import logger

    attention = module.MultiHeadedAttention
    build, compute = attention.__init__, attention._compute_attention
    said: list[tuple[Any, str]] = []

    def say(config: Any, kind: str, text: str) -> None:
        """Log ``text`` once for all layers of a model."""
        if not any(config is other and kind == another for other, another in said):
            said.append((config, kind))
            logger.info(text)

    @functools.wraps(build)
    def __init__(self: Any, config: Any, running: Any = None, is_decoder: bool = True) -> None:
        kind = "decoder" if is_decoder else "encoder"
        kind = "context" if isinstance(self, module.ContextMHA) else kind
        settings, changes = settings_of(config, running)
        name = settings.attention[kind]
        if name != STOCK and running is not None:
            running.__dict__["self_attn_backend"] = "pytorch"  # as eole itself overrules it
        build(self, config, running, is_decoder)
        self.normalizer = None if name == STOCK else settings.normalizer(kind)
        if changes:
            say(config, "changes", f"not as the model was trained: {', '.join(changes)}")
        if name != STOCK:
            say(
                config,
                kind,
                f"{kind} attention: {settings.described(name)}; flash attention and torch's "
                "fused attention have only softmax and are off (self_attn_backend: pytorch)",
            )
            config.__dict__[NEEDS] = "onmt_evsoftmax"  # to be saved with the model
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
        arguments = (self, key, value, query, attn_mask)
        if self.normalizer is None:
            result: tuple[Tensor, Tensor | None] = compute(*arguments, return_attn)
            return result
        # Asking for the weights keeps eole off torch's fused attention.
        out, weights = _with_softmax(compute, self.normalizer)(*arguments, return_attn=True)
        return out, weights if return_attn else None

    attention.__init__ = __init__
    attention._compute_attention = _compute_attention
