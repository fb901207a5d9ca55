"""normalizer(QKᵀ)V for every normalizer: one function, one list of backends.

Besides the contract of the normalizers (:mod:`onmt_evsoftmax.normalizers.masked`), attention
promises one thing about the scores that it computes itself: if all keys that a query may attend to
are equal, they get equal weights, in every backend. This takes care, since a matrix product may
give equal keys scores that differ in their last bits, and ev-softmax would then drop some. Other
scores that differ only by rounding are different scores: on which side of a threshold they fall
may depend on the backend.
"""

from onmt_evsoftmax.attention.backends import BACKENDS, fusion_blocker, gpu_fusion_blocker
from onmt_evsoftmax.attention.positions import Positions
from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention, sparse_attention

__all__ = [
    "BACKENDS",
    "Positions",
    "evsoftmax_attention",
    "fusion_blocker",
    "gpu_fusion_blocker",
    "sparse_attention",
]
