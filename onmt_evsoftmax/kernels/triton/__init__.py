"""Kernels for GPUs, in Triton: rows and attention.

Triton is optional (torch's CUDA builds bring it) and takes time to import, so nothing here imports
it before a kernel is asked for. With ``TRITON_INTERPRET=1``, set before the first import of Triton,
its interpreter runs the same kernels on CPU tensors, which is how they are tested: nothing in this
folder has run on a GPU yet (``docs/gpu.md`` says what was checked instead).
"""

from __future__ import annotations

import functools
import importlib.util
import os

__all__ = ["SMALLEST_CAPABILITY", "available", "interpreted"]

#: Attention needs tensor cores that today's Triton compiles for; rows run on any GPU.
SMALLEST_CAPABILITY = (8, 0)


@functools.cache
def available() -> bool:
    """Whether Triton is installed; it is not imported."""
    spec = importlib.util.find_spec("triton")
    return spec is not None and spec.origin is not None  # not just a folder of that name


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
