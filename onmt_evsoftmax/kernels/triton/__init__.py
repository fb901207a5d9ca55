"""Kernels for GPUs, in Triton: rows and attention.

Triton is optional (torch's CUDA builds bring it) and takes time to import, so nothing here imports
it before a kernel is asked for. With ``TRITON_INTERPRET=1``, set before the first import of Triton,
its interpreter runs the same kernels on CPU tensors, which is how they are tested: nothing in this
folder has run on a GPU yet (``docs/gpu.md`` says what was checked instead).
"""

from __future__ import annotations

import importlib.util
import os

__all__ = ["SMALLEST_CAPABILITY", "available", "interpreted"]

#: Attention needs tensor cores that today's Triton compiles for; rows run on any GPU.
SMALLEST_CAPABILITY = (8, 0)


# Found now: torch.compile could not follow how.
_spec = importlib.util.find_spec("triton")
_AVAILABLE = _spec is not None and _spec.origin is not None  # not just a folder of that name
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def available() -> bool:
    """Whether Triton is installed; it is not imported."""
    return _AVAILABLE


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU, on CPU tensors."""
    return _INTERPRETED
