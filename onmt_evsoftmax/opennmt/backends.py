"""How attention is computed: the one place where that is chosen, and reported.

Today there is one way, PyTorch's own operations on the matrix of scores that OpenNMT-py computes.
A faster one is added here: as another branch of :func:`build` that returns what it replaces and its
name. Where somebody reads the attention (:mod:`record`, ``-attn_debug``), the matrix is needed.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from onmt_evsoftmax.opennmt.modules import AttentionNormalizer
from onmt_evsoftmax.opennmt.settings import KINDS, Settings


def available() -> list[str]:
    """Names of the ways that work here."""
    return ["eager"]


def build(settings: Settings, kind: str, attention: Any) -> tuple[nn.Module, str]:
    """What goes into ``attention`` in its softmax's place, and the backend's name."""
    if kind in KINDS:
        normalizer = settings.normalizer(kind, heads=attention.head_count)
    else:
        normalizer = settings.normalizer("global")
    return AttentionNormalizer(normalizer), "eager"
