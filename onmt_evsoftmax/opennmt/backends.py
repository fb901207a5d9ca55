"""How attention is computed: the one place where that is chosen, and reported.

OpenNMT-py computes the matrix of scores, and what is built here normalizes its rows, with the
compiled row kernels where there are any for the tensor at hand and with torch otherwise. Where
nobody reads the matrix (:mod:`record`, ``-attn_debug``, copy attention and others do), ev-softmax
attention needs none: :mod:`fused`. ``attention_backend`` forces either.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from torch import nn

from onmt_evsoftmax import kernels
from onmt_evsoftmax.normalizers.registry import get_record
from onmt_evsoftmax.opennmt import fused
from onmt_evsoftmax.opennmt.modules import AttentionNormalizer
from onmt_evsoftmax.opennmt.settings import KINDS, Settings


def available() -> list[str]:
    """Names of the ways that work here."""
    return [f"{kernels.backend()} kernels on CPU", "torch"] if kernels.available() else ["torch"]


@dataclass(frozen=True)
class Built:
    """What goes into an attention in its softmax's place, and how it will be computed."""

    module: nn.Module
    backend: str
    # Who reads the matrix, if the attention is fused where nobody does.
    reader: str | None = None
    # Why it is not fused, in words.
    obstacle: str | None = None


def build(settings: Settings, kind: str, attention: Any, reader: str = fused.ALWAYS) -> Built:
    """A new normalizer for ``attention``; ``reader`` is who reads the matrix that it returns."""
    if kind in KINDS:
        name, heads = settings.attention[kind], attention.head_count
    else:
        name, heads, kind = settings.global_attention, None, "global"
    backend = available()[0] if get_record(name).row_kernel else "torch"
    normalizer = settings.normalizer(kind, heads=heads)
    module = AttentionNormalizer(normalizer)
    if kind == "global":
        return Built(module, backend)
    if settings.backend == "explicit":
        return Built(module, backend, obstacle="attention_backend is explicit")
    forced = settings.backend == "fused"
    obstacle = fused.why_not(normalizer, attention, reader, forced=forced)
    return Built(module, backend, None if obstacle else reader, obstacle)


def put(built: Built, kind: str, attention: Any, settings: Settings) -> None:
    """Put what was built into ``attention``."""
    if kind not in KINDS:
        attention.normalizer = built.module
        return
    attention.softmax = built.module
    if isinstance(attention, fused.FusedAttention):
        attention.reader = fused.ALWAYS  # until the next line says otherwise
    if built.reader is not None:
        fused.fuse(attention, built.reader, forced=settings.backend == "fused")


def reader_of(model: nn.Module, kind: str, options: Namespace) -> str:
    """Who reads the matrix that an attention of this kind returns.

    OpenNMT-py drops those of encoders, and of self-attention in a decoder with an encoder. The
    others it passes on: to the search, which may want them, and in training to what is asked below.
    """
    if kind == "encoder" or (kind == "decoder" and getattr(model, "encoder", None) is not None):
        return fused.NOBODY
    asked = ("copy_attn", "coverage_attn", "lambda_align", "lambda_coverage")
    if any(getattr(options, name, None) for name in asked):
        return fused.ALWAYS
    return fused.EVALUATION
