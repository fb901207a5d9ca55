"""OpenNMT-py's multi-headed attention without the matrix of attention, where nobody reads that.

A fused module computes what OpenNMT-py's own does (project, split the heads, attend, join, project)
with :func:`~onmt_evsoftmax.evsoftmax_attention`. It hands the call to OpenNMT-py's code,
which makes the matrix, whenever it must: while decoding with a cache (one query: nothing to fuse),
when a recorder watches the normalizer, when the matrix is read, and for masks it does not know.
"""

from __future__ import annotations

import functools
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from onmt_evsoftmax.attention import evsoftmax_attention, fusion_blocker
from onmt_evsoftmax.normalizers.module import NormalizerModule
from onmt_evsoftmax.opennmt.modules import AttentionNormalizer

# Who reads the matrix that a module returns.
NOBODY, EVALUATION, ALWAYS = "nobody", "evaluation", "always"


def why_not(normalizer: nn.Module, attention: Any, reader: str, *, forced: bool) -> str | None:
    """What stands against fusing ``attention``, in words, or None."""
    elsewhere = forced and torch.cuda.is_available()
    blocker = fusion_blocker(normalizer, attention.dim_per_head, kernels_needed=not elsewhere)
    if blocker is not None:
        return blocker
    if reader == ALWAYS:
        return "copy attention, coverage and guided alignment read the matrix of attention"
    if attention.max_relative_positions or getattr(attention, "relative_positions_buckets", 0):
        return "position terms in the scores need the matrix"
    if getattr(attention, "num_kv", 0) or getattr(attention, "parallel_gpu", 1) > 1:
        return "shared keys (num_kv) and tensor parallelism are not fused"
    return None


def fuse(attention: Any, reader: str, *, forced: bool) -> None:
    """Make ``attention``, whose normalizer is in its place, compute without the matrix.

    ``forced`` also on devices other than the CPU.
    """
    if not isinstance(attention, FusedAttention):
        base: Any = type(attention)
        attention.__class__ = _fused_type(base)
    attention.reader, attention.everywhere = reader, forced


@functools.cache
def _fused_type(base: Any) -> type[Any]:
    return type(f"Fused{base.__name__}", (FusedAttention, base), {})


def _unpickled(base: Any) -> Any:
    return object.__new__(_fused_type(base))


class FusedAttention:
    """Comes before ``MultiHeadedAttention`` in the class of a fused module."""

    reader: str
    everywhere: bool

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled (and copied) by its base: its class is made when needed, and has no place."""
        return _unpickled, (type(self).__bases__[1],), self.__dict__

    def forward(
        self: Any,
        key: Tensor,
        value: Tensor,
        query: Tensor,
        mask: Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """Key, value and query (batch, length, size); mask True = **excluded**, as OpenNMT-py's.

        Returns the context (batch, queries, size) and, in place of the matrix nobody reads, an
        empty one: (batch, heads, queries, 0).
        """
        known = None
        if self._may_fuse(query, options):
            known = read_mask(mask)
        if known is None:
            return super().forward(key, value, query, mask, *rest, **options)  # type: ignore[misc]
        included, is_causal = known
        run = getattr(self, "maybe_ckpt", lambda layer, tensor: layer(tensor))
        queries, keys, values = (
            run(layer, tensor).unflatten(-1, (-1, self.dim_per_head)).transpose(1, 2)
            for layer, tensor in (
                (self.linear_query, query),
                (self.linear_keys, key),
                (self.linear_values, value),
            )
        )
        dropout = self.dropout.p if self.training else 0.0
        context = evsoftmax_attention(queries, keys, values, included, dropout, is_causal=is_causal)
        output = run(self.final_linear, context.transpose(1, 2).flatten(2))
        return output, context.new_empty(*context.shape[:3], 0)

    def _may_fuse(self: Any, query: Tensor, options: dict[str, Any]) -> bool:
        return (
            not self.layer_cache[0]
            and (self.reader == NOBODY or (self.reader == EVALUATION and self.training))
            and (query.is_cpu or self.everywhere)
            # 3.5.1 asks self-attention for the matrix, too, and drops it.
            and (self.reader == NOBODY or not options.get("return_attn"))
            and not options.get("sliding_window")
            and _exact_and_unwatched(self.softmax)
        )


def _exact_and_unwatched(softmax: Any) -> bool:
    """Not if somebody watches the normalizer, or has put another in its place, nor with eps."""
    if type(softmax) is not AttentionNormalizer or not _has_kernel(softmax.normalizer):
        return False
    watched = softmax._forward_hooks or softmax._forward_pre_hooks
    return not watched and softmax.normalizer.options().get("eps", 0.0) == 0.0


def _has_kernel(normalizer: nn.Module) -> TypeGuard[NormalizerModule]:
    """Whether the attention kernel computes this normalizer."""
    return isinstance(normalizer, NormalizerModule) and bool(normalizer.record.attention_kernel)


def read_mask(mask: Tensor | None) -> tuple[Tensor | None, bool] | None:
    """OpenNMT-py's mask (batch, 1, queries or 1, keys), True = excluded, as (included, is_causal).

    ``included`` is (batch, 1, 1, keys), True = takes part. None for a mask that is neither padding
    nor padding and the future; a look at one mask per batch costs little beside one score per head.
    """
    if mask is None:
        return None, False
    queries, keys = mask.shape[-2:]
    padding = mask[..., -1:, :]  # the last query sees all but padding
    if queries == 1 or mask.stride(-2) == 0 or torch.equal(mask, padding.expand(mask.shape)):
        return ~padding, False
    if queries != keys:
        return None
    future = torch.ones(keys, keys, dtype=torch.bool, device=mask.device).triu(1)
    return (~padding, True) if torch.equal(mask, padding | future) else None
