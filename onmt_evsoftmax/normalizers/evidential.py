"""Post-hoc evidential sparsification: a softmax model whose unsupported classes are dropped."""

from __future__ import annotations

from functools import partial

from onmt_evsoftmax.normalizers import functional
from onmt_evsoftmax.normalizers.registry import Normalizer

RECORDS = (
    Normalizer(
        name="posthoc",
        function=functional.evsoftmax,  # off ties, and by the paper's Theorem 3.1, the same
        log_function=partial(functional.log_evsoftmax, eps=0.0),
        title="post-hoc evidential",
        colour="#cc79a7",
        formula="p ∝ 1{m ≠ 0} · exp(v), m by Dempster's rule",
        trained_as="softmax",
        uses=frozenset({"test-time"}),
        order=70,
        row_kernel="evsoftmax",
        attention_kernel="evsoftmax",
    ),
)
