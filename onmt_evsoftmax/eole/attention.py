"""eole's multi-headed attention with another normalizer than softmax, and with distances.

eole computes attention in one of three ways: by its own steps, by torch's fused softmax attention,
or by flash attention on its cache. Only the first can have another normalizer or distances, so the
other two are shut for such a layer, and the log says so. In its own steps eole adds position biases
and hides padding, the future and empty slots of the cache by the smallest float32; here those take
no part.
"""

from __future__ import annotations

from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.eole.config import DISTANCES, NEEDS, settings_of
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.opennmt.settings import STOCK


def _replaced(compute: Any, **names: Any) -> Any:
    """The function ``compute`` with other globals: nothing that other threads would see."""
    return FunctionType(
        compute.__code__,
        {**compute.__globals__, **names},
        compute.__name__,
        compute.__defaults__,
        compute.__closure__,
    )


def _with_normalizer(layer: Any) -> dict[str, Any]:
    """An ``F`` whose softmax is the layer's normalizer."""

    def softmax(scores: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        weights: Tensor = layer.normalizer(scores, scores > torch.finfo(scores.dtype).min, dim)
        return weights

    return {} if layer.normalizer is None else {"F": SimpleNamespace(softmax=softmax)}


def _with_positions(compute: Any, layer: Any) -> dict[str, Any]:
    """Distances from where the queries stand in the cache.

    eole 0.6.4 takes the cache's last slot for the query's, though the slots after it are empty.
    """
    positions = layer.cached_positions

    def gen_relative_positions(length: int, limit: int, cache: bool, device: Any) -> Tensor:
        keys = torch.arange(length, device=device)
        queries = positions if cache else keys
        return (keys - queries[:, None]).clamp(-limit, limit) + limit

    def compute_bias(queries: int, *arguments: Any, **keys: Any) -> Tensor:
        buckets: Tensor = compute.__globals__["compute_bias"](queries, *arguments, **keys)
        return buckets if layer.kcache is None else buckets[positions]

    return {"gen_relative_positions": gen_relative_positions, "compute_bias": compute_bias}


def patch_attention(module: Any) -> None:
    """``eole.modules.multi_headed_attn``: every layer with the normalizer its options name."""
    from eole.utils.logging import logger

    said: list[tuple[Any, str]] = []

    def say(config: Any, kind: str, text: str) -> None:
        """Log ``text`` once for all layers of a model."""
        if not any(config is other and kind == another for other, another in said):
            said.append((config, kind))
            logger.info(text)

    @around(module.MultiHeadedAttention)
    def __init__(
        original: Any, self: Any, config: Any, running: Any = None, is_decoder: bool = True
    ) -> None:
        kind = "decoder" if is_decoder else "encoder"
        kind = "context" if isinstance(self, module.ContextMHA) else kind
        settings, changes = settings_of(config, running)
        name = settings.attention[kind]
        reach = None if kind == "context" else getattr(config, DISTANCES, None)
        if (name != STOCK or reach) and running is not None:
            running.__dict__["self_attn_backend"] = "pytorch"  # as eole itself overrules it
        if reach:
            self.position_encoding_type = module.PositionEncodingType.Relative
            self.n_positions = reach
        original(self, config, running, is_decoder)
        heads = self.heads // self.parallel_gpu
        self.normalizer = None if name == STOCK else settings.normalizer(kind, heads)
        self.query_scale = self.cached_positions = None
        if reach:
            # eole scales the scores of the keys only; OpenNMT-py scales the query, so both.
            self.query_scale = self.dim_per_head**-0.5 if self.scale is None else self.scale
            self.scale = 1.0
        if changes:
            say(config, "changes", f"not as the model was trained: {', '.join(changes)}")
        if name != STOCK or reach:
            described = settings.described(name) + (
                f" with distances up to {reach}" if reach else ""
            )
            say(
                config,
                kind,
                f"{kind} attention: {described}; flash attention and torch's "
                "fused attention do not have it and are off (self_attn_backend: pytorch)",
            )
            config.__dict__[NEEDS] = "onmt_evsoftmax"  # to be saved with the model
            config.__pydantic_fields_set__.add(NEEDS)

    @around(module.MultiHeadedAttention)
    def _compute_attention(
        compute: Any,
        self: Any,
        key: Tensor,
        value: Tensor,
        query: Tensor,
        attn_mask: Tensor | None = None,
        return_attn: bool | None = False,
    ) -> Any:
        if self.normalizer is None and self.query_scale is None:
            return compute(self, key, value, query, attn_mask, return_attn)
        if self.query_scale is not None:
            query = query * self.query_scale
        # Asking for the weights keeps eole off torch's fused attention.
        names = _with_normalizer(self) | _with_positions(compute, self)
        out, weights = _replaced(compute, **names)(self, key, value, query, attn_mask, True)
        return out, weights if return_attn else None

    @around(module.SelfMHA)
    def forward(original: Any, self: Any, *arguments: Any, **keys: Any) -> Any:
        self.cached_positions = keys.get("cache_slice")
        return original(self, *arguments, **keys)


def patch_initialization(module: Any) -> None:
    """``eole.models.model``: what normalizers learn starts where they say, not at random."""

    @around(module.BaseModel)
    def init_weights(original: Any, self: Any, running: Any) -> None:
        parameters = dict(self.named_parameters())
        mine = [tensor for name, tensor in parameters.items() if ".normalizer." in name]
        before = [tensor.detach().clone() for tensor in mine]
        original(self, running)
        with torch.no_grad():
            for tensor, value in zip(mine, before, strict=True):
                tensor.copy_(value)
