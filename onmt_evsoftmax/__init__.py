"""Sparse attention for OpenNMT-py: ev-softmax, sparsemax and entmax, right where masks are.

``normalizers`` has the functions, one file per family, and the registry that everything else takes
them from by name; ``attention`` has softmax(QKᵀ)V for each of them. The names below are imported
when first used, so that a command that needs no torch starts without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention as evsoftmax_attention
    from onmt_evsoftmax.attention.sparse_attention import sparse_attention as sparse_attention
    from onmt_evsoftmax.normalizers.entmax import entmax as entmax
    from onmt_evsoftmax.normalizers.entmax import entmax15 as entmax15
    from onmt_evsoftmax.normalizers.entmax import sparsemax as sparsemax
    from onmt_evsoftmax.normalizers.evidential import posthoc_evidential as posthoc_evidential
    from onmt_evsoftmax.normalizers.evsoftmax import evsoftmax as evsoftmax
    from onmt_evsoftmax.normalizers.evsoftmax import log_evsoftmax as log_evsoftmax
    from onmt_evsoftmax.normalizers.hourglass import sparsehourglass as sparsehourglass
    from onmt_evsoftmax.normalizers.registry import Normalizer as Normalizer
    from onmt_evsoftmax.normalizers.registry import Parameter as Parameter
    from onmt_evsoftmax.normalizers.registry import get_loss as get_loss
    from onmt_evsoftmax.normalizers.registry import get_normalizer as get_normalizer
    from onmt_evsoftmax.normalizers.registry import normalizer_names as normalizer_names
    from onmt_evsoftmax.normalizers.registry import register_normalizer as register_normalizer
    from onmt_evsoftmax.normalizers.softmax import softmax as softmax

__version__ = "0.1.0"

_HOME = {
    "attention.sparse_attention": ("evsoftmax_attention", "sparse_attention"),
    "normalizers.entmax": ("entmax", "entmax15", "sparsemax"),
    "normalizers.evidential": ("posthoc_evidential",),
    "normalizers.evsoftmax": ("evsoftmax", "log_evsoftmax"),
    "normalizers.hourglass": ("sparsehourglass",),
    "normalizers.registry": (
        "Normalizer",
        "Parameter",
        "get_loss",
        "get_normalizer",
        "normalizer_names",
        "register_normalizer",
    ),
    "normalizers.softmax": ("softmax",),
}

__all__ = [name for names in _HOME.values() for name in names]


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _HOME.items():
        if name in names:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
