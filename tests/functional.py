"""The functions and losses of all families under one roof."""

from onmt_evsoftmax.normalizers.entmax import (
    entmax,
    entmax15,
    entmax15_loss,
    entmax_loss,
    sparsemax,
    sparsemax_loss,
)
from onmt_evsoftmax.normalizers.evidential import log_belief_mass, posthoc_evidential
from onmt_evsoftmax.normalizers.evsoftmax import (
    evsoftmax,
    evsoftmax_kl,
    evsoftmax_loss,
    log_evsoftmax,
)
from onmt_evsoftmax.normalizers.hourglass import sparsehourglass
from onmt_evsoftmax.normalizers.softmax import log_softmax, softmax, softmax_loss

__all__ = [
    "entmax",
    "entmax15",
    "entmax15_loss",
    "entmax_loss",
    "evsoftmax",
    "evsoftmax_kl",
    "evsoftmax_loss",
    "log_belief_mass",
    "log_evsoftmax",
    "log_softmax",
    "posthoc_evidential",
    "softmax",
    "softmax_loss",
    "sparsehourglass",
    "sparsemax",
    "sparsemax_loss",
]
