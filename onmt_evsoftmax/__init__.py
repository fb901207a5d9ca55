"""Sparse attention for OpenNMT-py: ev-softmax, sparsemax and entmax, right where masks are.

``normalizers.functional`` has the functions, ``losses`` what trains them, ``normalizers`` the
registry that everything else takes them from by name. The names below are imported when first used,
so that a command that needs no torch starts without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention as evsoftmax_attention
    from onmt_evsoftmax.normalizers.functional import entmax as entmax
    from onmt_evsoftmax.normalizers.functional import entmax15 as entmax15
    from onmt_evsoftmax.normalizers.functional import evsoftmax as evsoftmax
    from onmt_evsoftmax.normalizers.functional import log_evsoftmax as log_evsoftmax
    from onmt_evsoftmax.normalizers.functional import posthoc_evidential as posthoc_evidential
    from onmt_evsoftmax.normalizers.functional import softmax as softmax
    from onmt_evsoftmax.normalizers.functional import sparsehourglass as sparsehourglass
    from onmt_evsoftmax.normalizers.functional import sparsemax as sparsemax
    from onmt_evsoftmax.normalizers.registry import get_loss as get_loss
    from onmt_evsoftmax.normalizers.registry import get_normalizer as get_normalizer
    from onmt_evsoftmax.normalizers.registry import normalizer_names as normalizer_names
    from onmt_evsoftmax.normalizers.registry import register_normalizer as register_normalizer

__version__ = "0.1.0"

_HOME = {
    "attention.sparse_attention": ("evsoftmax_attention",),
    "normalizers.functional": (
        "entmax",
        "entmax15",
        "evsoftmax",
        "log_evsoftmax",
        "posthoc_evidential",
        "softmax",
        "sparsehourglass",
        "sparsemax",
    ),
    "normalizers.registry": (
        "get_loss",
        "get_normalizer",
        "normalizer_names",
        "register_normalizer",
    ),
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
