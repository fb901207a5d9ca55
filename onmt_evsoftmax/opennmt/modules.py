"""What goes into OpenNMT-py's attention: a normalizer in softmax's place, and a fused forward pass.

:class:`AttentionNormalizer` replaces the softmax module and turns a matrix of scores into
probabilities. :class:`FusedAttention` computes the same attention without the matrix, where nobody
reads it, and one step of decoding by the kernel for one query. It hands the call to OpenNMT-py's
own code, which makes the matrix, whenever it must: when a recorder watches the normalizer, when the
matrix is read, and for masks it does not know.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import Positions, fusion_blocker, sparse_attention
from onmt_evsoftmax.attention.fused import single_query
from onmt_evsoftmax.kernels.triton.serving import device_blocker
from onmt_evsoftmax.normalizers.module import NormalizerModule
from onmt_evsoftmax.opennmt import versions

#: OpenNMT-py fills excluded scores with −1e18 or −inf; no real score comes near this.
EXCLUDED = -1e17

#: Who reads the matrix that an attention returns.
NOBODY, EVALUATION, ALWAYS = "nobody", "evaluation", "always"


def included(scores: Tensor) -> Tensor:
    """Mask (True = takes part) from scores with filled keys; a NaN score takes part and shows."""
    return ~(scores <= EXCLUDED)


class AttentionNormalizer(nn.Module):
    """Scores in, probabilities out; the mask is read off the fill, so excluded keys do nothing."""

    def __init__(self, normalizer: nn.Module) -> None:
        super().__init__()
        self.normalizer = normalizer

    def forward(self, scores: Tensor) -> Tensor:
        """``scores`` (…, queries, keys), excluded keys at −1e18 or −inf; same shape out."""
        ours = isinstance(self.normalizer, NormalizerModule) and (
            self.normalizer.record.package is None and scores.dtype == torch.float32
        )
        if ours and not (torch.is_grad_enabled() and scores.requires_grad):
            # Our own normalizers exclude -inf without a mask: one operation instead of two, which
            # can be measured in decoding, where a step is short.
            p: Tensor = self.normalizer(torch.threshold(scores, EXCLUDED, -math.inf))
        else:
            p = self.normalizer(scores, included(scores))
        return p


def fuse(attention: Any, reader: str) -> None:
    """Make ``attention``, whose normalizer is in its place, compute without the matrix.

    Calling it again changes the reader.
    """
    if not isinstance(attention, FusedAttention):
        base: Any = type(attention)
        attention.__class__ = _fused_type(base)
    attention.reader = reader


@functools.cache
def _fused_type(base: Any) -> type[Any]:
    return type(f"Fused{base.__name__}", (FusedAttention, base), {})


def _unpickled(base: Any) -> Any:
    return object.__new__(_fused_type(base))


class FusedAttention:
    """Comes before ``MultiHeadedAttention`` in the class of a fused module.

    It computes what OpenNMT-py's own does: project, split the heads, attend, join them, project;
    relative positions, ALiBi and rotary positions included.
    """

    reader: str

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle (and copy) by the base class: the fused class is made on demand, in no module."""
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
        step = self._decode(key, value, query, mask, options) if self.layer_cache[0] else None
        if step is not None:
            return step
        known = read_mask(mask) if self._may_fuse(query, options) else None
        if known is None:
            theirs: tuple[Tensor, Tensor] = super().forward(  # type: ignore[misc]
                key, value, query, mask, *rest, **options
            )
            return theirs
        mask, is_causal = known
        queries, keys, values = (
            self._heads(versions.run_layer(self, layer, tensor))
            for layer, tensor in (
                (self.linear_query, query),
                (self.linear_keys, key),
                (self.linear_values, value),
            )
        )
        queries, keys = versions.rotate(self, queries, keys)
        context = sparse_attention(
            queries,
            keys,
            values,
            mask,
            self.dropout.p if self.training else 0.0,
            is_causal,
            normalizer=self.softmax.normalizer,
            positions=self._positions(),
        )
        joined = context.transpose(1, 2).flatten(2)
        output = versions.run_layer(self, self.final_linear, joined)
        return output, context.new_empty(*context.shape[:3], 0)

    def _decode(
        self: Any,
        key: Tensor,
        value: Tensor,
        query: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor] | None:
        """One step with a cache: the context and the matrix of one row, or None: it must be theirs.

        The cache changes only if the step is taken.
        """
        cache = self.layer_cache[1]
        plain = query.size(1) == 1 and query.is_cpu and kernels.available()
        if not plain or not self._has_kernel(options) or cache.get("key_pad_mask") is not None:
            return None
        queries = self._heads(self.linear_query(query))
        if self.attn_type == "self":
            keys = self._heads(self.linear_keys(query))
            values = self._heads(self.linear_values(query))
            queries, keys = versions.rotate(self, queries, keys, options.get("step") or 0)
            if cache["keys"].numel():
                keys = torch.cat((cache["keys"], keys), 2)
                values = torch.cat((cache["values"], values), 2)
        elif cache["keys"].numel():
            keys, values = cache["keys"], cache["values"]
        else:
            keys, values = (
                self._heads(self.linear_keys(key)),
                self._heads(self.linear_values(value)),
            )
        positions = self._positions(keys.size(2) - 1)
        included = None if mask is None else ~mask[:, :, -1]
        found = single_query(queries, keys, values, included, self.softmax.normalizer, positions)
        if found is None:
            return None
        cache["keys"], cache["values"] = keys, values
        context, p = found
        return self.final_linear(context.transpose(1, 2).flatten(2)), p

    def _heads(self: Any, tensor: Tensor) -> Tensor:
        """(batch, length, size) → (batch, heads, length, size per head)."""
        return tensor.view(*tensor.shape[:2], -1, self.dim_per_head).transpose(1, 2)

    def _positions(self: Any, offset: int = 0) -> Positions | None:
        """What places add to the scores; OpenNMT-py has one table for both keys and values."""
        if self.relative_positions_embeddings is not None:
            table = self.relative_positions_embeddings.weight
            return Positions(table, table, offset=offset)
        slopes = versions.alibi_slopes(self)
        return None if slopes is None else Positions(slopes=slopes, offset=offset)

    def _has_kernel(self: Any, options: dict[str, Any]) -> bool:
        """Whether a kernel may stand for the normalizer that is in its place."""
        softmax = self.softmax
        return (
            # Not if somebody has put another module there, or watches this one.
            type(softmax) is AttentionNormalizer
            and not (softmax._forward_hooks or softmax._forward_pre_hooks)
            and not options.get("sliding_window")
            # Parameters may act in training only.
            and fusion_blocker(softmax.normalizer, kernels_needed=False) is None
        )

    def _may_fuse(self: Any, query: Tensor, options: dict[str, Any]) -> bool:
        return (
            not self.layer_cache[0]
            and (self.reader == NOBODY or (self.reader == EVALUATION and self.training))
            and (query.is_cpu or (kernels.chosen() != "torch" and device_blocker(query) is None))
            # 3.5.1 asks self-attention for the matrix, too, and drops it.
            and (self.reader == NOBODY or not options.get("return_attn"))
            and self._has_kernel(options)
        )


def read_mask(mask: Tensor | None) -> tuple[Tensor | None, bool] | None:
    """OpenNMT-py's mask (batch, 1, queries or 1, keys), True = excluded, as (included, is_causal).

    ``included`` is (batch, 1, 1, keys), True = takes part. None for a mask that is neither padding
    nor padding and the future; looking at one mask per batch costs little beside the scores of all
    heads.
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
