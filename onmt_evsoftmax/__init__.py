"""Sparse attention for OpenNMT-py: ev-softmax, sparsemax and entmax, right where masks are.

``onmt_evsoftmax.functional`` has the functions, ``losses`` what trains them, ``normalizers`` the
registry that everything else takes them from by name.
"""

from onmt_evsoftmax.functional import (
    entmax,
    entmax15,
    evsoftmax,
    log_evsoftmax,
    posthoc_evidential,
    softmax,
    sparsehourglass,
    sparsemax,
)
from onmt_evsoftmax.normalizers import (
    get_loss,
    get_normalizer,
    normalizer_names,
    register_normalizer,
)

__version__ = "0.1.0"

__all__ = [
    "entmax",
    "entmax15",
    "evsoftmax",
    "get_loss",
    "get_normalizer",
    "log_evsoftmax",
    "normalizer_names",
    "posthoc_evidential",
    "register_normalizer",
    "softmax",
    "sparsehourglass",
    "sparsemax",
]
