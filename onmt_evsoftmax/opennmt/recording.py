"""Reads the attention of a running model, every layer, head and kind; stock softmax models too.

::

    loaded = load_model("model.pt")
    with record_attention(loaded.model) as records:
        loaded.force([["a", "b"]], [["A", "B"]])
    for record in records:
        print(record.kind, record.layer, record.probabilities.shape)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import get_normalizer
from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.modules import AttentionNormalizer, included
from onmt_evsoftmax.opennmt.settings import STOCK
from onmt_evsoftmax.opennmt.sites import attention_sites, disable_fast_paths


@dataclass(frozen=True)
class AttentionRecord:
    """What one attention computed in one call; all tensors are (batch, heads, queries, keys).

    A transformer that is forced makes one record per layer and kind, one that decodes makes one
    per step besides. An RNN decoder with input feeding attends once per target position.
    """

    kind: str
    layer: int
    probabilities: Tensor  # before dropout
    support: Tensor  # True where the probability is not 0 (it may be too small to show)
    mask: Tensor  # True where the key takes part; a query of padding still has its row


@contextmanager
def record_attention(model: nn.Module) -> Iterator[list[AttentionRecord]]:
    """Collect an :class:`AttentionRecord` for every call of every attention inside this block."""
    records: list[AttentionRecord] = []
    with ExitStack() as stack:
        for site in attention_sites(model):
            if site.multi_headed:
                stack.enter_context(_explicit(site.module))
                watched, normalizer = site.module.softmax, site.module.softmax
            else:
                normalizer = stack.enter_context(_with_normalizer(site.module))
                watched = site.module
            seen = _Watch(normalizer)
            stack.callback(normalizer.register_forward_hook(seen.scores).remove)

            def keep(
                module: nn.Module, inputs: Any, output: Any, site: Any = site, seen: _Watch = seen
            ) -> None:
                # GlobalAttention returns (vectors, probabilities (batch, [queries,] keys)).
                p = output if isinstance(output, Tensor) else output[1]
                if not site.multi_headed:
                    p = p.view(p.size(0), 1, -1, p.size(-1))
                records.append(
                    AttentionRecord(
                        site.kind,
                        site.layer,
                        p.detach(),
                        seen.support.view_as(p),
                        seen.mask.view_as(p),
                    )
                )

            stack.callback(watched.register_forward_hook(keep).remove)
        yield records


class _Watch:
    """A hook on a normalizer that works out mask and support from the scores it was given."""

    def __init__(self, normalizer: nn.Module) -> None:
        self.normalizer = normalizer
        self.mask = self.support = torch.empty(0, dtype=torch.bool)

    def scores(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        (scores,) = inputs
        with torch.no_grad():
            self.mask = self.support = included(scores)
            if isinstance(self.normalizer, AttentionNormalizer):
                try:
                    _, self.support = self.normalizer.normalizer(
                        scores, self.mask, return_support=True
                    )
                except TypeError:  # a normalizer of a third party that cannot tell
                    self.support = output > 0


@contextmanager
def _explicit(attention: Any) -> Iterator[None]:
    """Keep a stock attention from taking a path on which no probabilities exist."""
    before = {name: getattr(attention, name) for name in versions.fast_paths(attention)}
    disable_fast_paths(attention)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(attention, name, value)


@contextmanager
def _with_normalizer(attention: Any) -> Iterator[nn.Module]:
    """Give a stock ``GlobalAttention`` a softmax module, since it computes softmax inline."""
    if attention.attn_func != STOCK:
        yield attention.normalizer
        return
    attention.attn_func = "recorded softmax"
    attention.normalizer = AttentionNormalizer(get_normalizer(STOCK))
    try:
        yield attention.normalizer
    finally:
        attention.attn_func = STOCK
        del attention.normalizer
