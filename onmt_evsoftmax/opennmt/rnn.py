"""Attention of RNN decoders: ``GlobalAttention`` takes any normalizer and respects its mask.

OpenNMT-py writes the normalization inline, with two choices. Its second choice is a function the
module looks up by name at every call; that look-up is the seam.
"""

from __future__ import annotations

import contextvars
from typing import Any

from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import get_normalizer
from onmt_evsoftmax.opennmt.modules import AttentionNormalizer
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.opennmt.settings import STOCK

# The normalizer of the attention whose forward is running, and the source lengths of the decoder
# around it (its copy attention is called without them, and would attend to padding).
_normalizer: contextvars.ContextVar[nn.Module | None] = contextvars.ContextVar(
    "normalizer", default=None
)
_source_lengths: contextvars.ContextVar[Tensor | None] = contextvars.ContextVar(
    "source_lengths", default=None
)


def patch_global_attention(module: Any) -> None:
    """``onmt.modules.global_attention``: any name of the registry is an ``attn_func``."""

    @around(module.GlobalAttention)
    def __init__(
        original: Any,
        self: Any,
        dim: int,
        coverage: bool = False,
        attn_type: str = "dot",
        attn_func: str = STOCK,
    ) -> None:
        original(self, dim, coverage, attn_type, STOCK)
        if attn_func != STOCK:
            self.attn_func = attn_func
            self.normalizer = AttentionNormalizer(get_normalizer(attn_func))

    @around(module.GlobalAttention)
    def forward(
        original: Any,
        self: Any,
        src: Tensor,
        enc_out: Tensor,
        src_len: Tensor | None = None,
        coverage: Tensor | None = None,
    ) -> Any:
        if self.attn_func == STOCK:
            return original(self, src, enc_out, src_len, coverage)
        token = _normalizer.set(self.normalizer)
        try:
            lengths = _source_lengths.get() if src_len is None else src_len
            return original(self, src, enc_out, lengths, coverage)
        finally:
            _normalizer.reset(token)

    @around(module)
    def sparsemax(original: Any, scores: Tensor, dim: int) -> Any:
        normalizer = _normalizer.get()
        return original(scores, dim) if normalizer is None else normalizer(scores)


def patch_decoder(module: Any) -> None:
    """``onmt.decoders.decoder``: the copy attention learns the source lengths, too."""

    @around(module.RNNDecoderBase)
    def forward(
        original: Any,
        self: Any,
        tgt: Tensor,
        enc_out: Tensor,
        src_len: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        token = _source_lengths.set(src_len)
        try:
            return original(self, tgt, enc_out, src_len=src_len, **kwargs)
        finally:
            _source_lengths.reset(token)
