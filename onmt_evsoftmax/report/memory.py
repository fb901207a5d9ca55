"""Memory that a program frees stays with it.

A training step frees and takes the same large tensors. By default glibc gives their memory back to
the system and gets it again page by page: a tenth of the time of a training on a CPU, and more or
less of it from one run to the next. What the user has set stays.
"""

from __future__ import annotations

import ctypes
import os

#: Where a user tells glibc what to do.
CHOSEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
#: Numbers of glibc's options for `mallopt`, and bytes; of the first, the most it takes.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 32 << 20), (-1, 1 << 30)


def keep_freed() -> bool:
    """Let glibc keep what is freed; False if the user decides that, or there is no glibc."""
    if any(os.environ.get(name) for name in CHOSEN):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, or another system
        return False
    return all(set_option(*option) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
