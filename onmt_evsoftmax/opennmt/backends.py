"""How attention is computed: the one place where that is chosen, and reported.

OpenNMT-py computes the matrix of scores; what is built here normalizes its rows, with the compiled
row kernels where there are any for the tensor at hand and with torch otherwise. A way that needs no
matrix is added here as another branch of :func:`build`; where somebody reads the attention
(:mod:`record`, ``-attn_debug``), the matrix is needed.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from onmt_evsoftmax import kernels
from onmt_evsoftmax.opennmt.modules import AttentionNormalizer
from onmt_evsoftmax.opennmt.settings import KINDS, Settings

# Normalizers whose rows the kernels compute; sparsehourglass is sparsemax of rescaled scores.
_WITH_KERNELS = ("evsoftmax", "sparsemax", "entmax15", "sparsehourglass")


def available() -> list[str]:
    """Names of the ways that work here."""
    return [f"{kernels.backend()} kernels on CPU", "torch"] if kernels.available() else ["torch"]


def build(settings: Settings, kind: str, attention: Any) -> tuple[nn.Module, str]:
    """What goes into ``attention`` in its softmax's place, and the backend's name."""
    if kind in KINDS:
        name, heads = settings.attention[kind], attention.head_count
    else:
        name, heads, kind = settings.global_attention, None, "global"
    backend = available()[0] if name in _WITH_KERNELS else "torch"
    return AttentionNormalizer(settings.normalizer(kind, heads=heads)), backend
