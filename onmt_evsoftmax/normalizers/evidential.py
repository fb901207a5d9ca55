"""Post-hoc evidential sparsification (Itkina et al., 2020), and the belief masses behind it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers import masked
from onmt_evsoftmax.normalizers.evsoftmax import evsoftmax, log_evsoftmax
from onmt_evsoftmax.normalizers.registry import Normalizer
from onmt_evsoftmax.normalizers.softmax import softmax


@overload
def posthoc_evidential(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    return_support: Literal[False] = False,
) -> Tensor: ...


@overload
def posthoc_evidential(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    return_support: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def posthoc_evidential(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    return_support: bool = False,
) -> Any:
    """The probabilities of a softmax layer without the classes that no evidence speaks for.

    ``features`` (…, J) enter the last layer ``weight`` (K, J), ``bias`` (K), laid out as in
    ``nn.Linear``; the result is (…, K): p ∝ 1{m ≠ 0} · exp(w) with evidential weights w = v − v̄ and
    belief masses m by Dempster's rule. A row of equal scores, where no class has mass, is uniform.
    Off ties this equals ``evsoftmax(features @ weight.T + bias)``, the paper's Theorem 3.1.
    """
    scores = torch.nn.functional.linear(features, weight, bias)
    mask = masked.check(scores, mask, -1)
    wide = masked.widen(scores)
    with torch.no_grad():
        believed = log_belief_mass(wide, mask) > -math.inf
        # All scores equal: no evidence for or against anything, so everything valid is kept.
        support = torch.where(believed.any(-1, keepdim=True), believed, wide > -math.inf)
        support = support if mask is None else support & mask
    return masked.result(softmax(wide, support).to(scores.dtype), support, return_support)


def log_belief_mass(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logarithm of the unnormalised belief mass of each class (…, K); ``-inf`` means no mass.

    m_k = e^{−w⁻_k} (e^{w⁺_k} − 1 + ∏_{l≠k} (1 − e^{−w⁻_l})) with w = v − v̄, w⁺ = max(0, w) and
    w⁻ = max(0, −w). Products are sums of logarithms, so that ten thousand classes do not underflow.
    """
    hidden = masked.hidden_entries(scores, masked.check(scores, mask, -1))
    shifted = masked.shift(scores, hidden, -1)
    w = shifted - masked.mean(shifted, hidden, -1)
    # log(1 − e^{−w⁻}): 0 for a hidden class (w = -inf), which so leaves the product, and -inf for
    # a class that nothing contradicts, which makes the product of all others 0.
    log_doubt = torch.log(-torch.expm1(w.clamp(max=0.0)))
    certain = log_doubt == -math.inf
    finite = torch.where(certain, 0.0, log_doubt)
    others_certain = certain.sum(-1, keepdim=True) - certain.long()
    log_others = finite.sum(-1, keepdim=True) - finite
    log_others = torch.where(others_certain > 0, -math.inf, log_others)
    # log(e^{w⁺} − 1) = w⁺ + log(1 − e^{−w⁺}) does not overflow; it is -inf where w ≤ 0.
    positive = w.clamp(min=0.0)
    log_evidence = positive + torch.log(-torch.expm1(-positive))
    return w.clamp(max=0.0) + torch.logaddexp(log_evidence, log_others)


RECORDS = (
    Normalizer(
        name="posthoc",
        function=evsoftmax,  # on scores, the same off ties: the paper's Theorem 3.1
        log_function=partial(log_evsoftmax, eps=0.0),
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
