r"""The normalizers: scores in, probabilities out, right also where entries are masked.

Every function here is ``f(scores, mask=None, dim=-1, …)`` and keeps one contract.

- ``mask`` is boolean, broadcastable to ``scores``, and **True means the entry takes part** (the
  convention of ``torch.nn.functional.scaled_dot_product_attention``). Masked entries enter no mean,
  sum or maximum; their probability and gradient are exactly 0 whatever their score is. A score of
  ``-inf`` counts as masked.
- A row with nothing valid gives zeros. A row with ``nan`` or ``+inf`` among its valid entries gives
  ``nan`` in that row only.
- Half precision is computed in float32 and returned in the input's type.
- ``return_support=True`` also returns a boolean mask of the entries with non-zero probability. It
  is not ``p > 0``: a supported entry may be too small for the floating-point type.
- Derivatives are taken backward, to any order; forward mode (``torch.func.jvp``) there is none.

Below, K is the number of valid entries of a row and v̄ their mean.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.normalizers import masked as rows

#: Below this, entmax is softmax to float32's precision and its threshold cannot be resolved.
SMALLEST_ALPHA = 1.01

#: A Tensor, or the pair (probabilities, support) with ``return_support=True``.
Normalized = Any

_HALF = (torch.float16, torch.bfloat16)


def softmax(
    scores: Tensor, mask: Tensor | None = None, dim: int = -1, *, return_support: bool = False
) -> Normalized:
    """p ∝ exp(v) over the valid entries."""
    return _normalize(rows.Exponential, scores, mask, dim, None, return_support=return_support)


def evsoftmax(
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    eps: float = 0.0,
    return_support: bool = False,
) -> Normalized:
    """Evidential softmax: p ∝ (1{v ≥ v̄} + eps) · exp(v).

    With ``eps = 0`` (exact) entries below the mean get probability 0; with ``eps > 0`` every valid
    entry keeps some mass, which is the paper's form for training by likelihood (eps = 1e-6 there).
    """
    _check_eps(eps)
    return _normalize(rows.Exponential, scores, mask, dim, eps, return_support=return_support)


def log_evsoftmax(
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    eps: float = 1e-6,
    return_support: bool = False,
) -> Normalized:
    """log of :func:`evsoftmax`, computed in log space: finite at any gap when ``eps > 0``.

    Masked entries are ``-inf``, and so are dropped ones when ``eps = 0``. The gradient of entry i
    is δ_i − p for every eps, 0 included, where it is the limit that the paper derives.
    """
    _check_eps(eps)
    mask = _check(scores, mask, dim)
    if scores.size(dim) == 0:
        return _result(scores, _nothing(scores), return_support)
    wide = _widen(scores)
    hidden = rows.find_hidden(wide, mask)
    shifted = rows.shift(wide, hidden, dim)
    kept = shifted >= rows.mean(shifted, hidden, dim)
    log_p = torch.log_softmax(shifted + rows.log_weight(kept, eps).to(shifted.dtype), dim)
    log_p = log_p if hidden is None else torch.where(hidden, -math.inf, log_p)
    support = shifted > -math.inf if eps > 0 else kept
    return _result(log_p.to(scores.dtype), support, return_support)


def sparsemax(
    scores: Tensor, mask: Tensor | None = None, dim: int = -1, *, return_support: bool = False
) -> Normalized:
    """Euclidean projection of the scores onto the simplex (Martins & Astudillo, 2016)."""
    return _normalize(rows.Entmax, scores, mask, dim, 2.0, return_support=return_support)


def entmax15(
    scores: Tensor, mask: Tensor | None = None, dim: int = -1, *, return_support: bool = False
) -> Normalized:
    """1.5-entmax (Peters, Niculae & Martins, 2019)."""
    return _normalize(rows.Entmax, scores, mask, dim, 1.5, return_support=return_support)


def entmax(
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    alpha: float | Tensor = 1.5,
    return_support: bool = False,
) -> Normalized:
    """alpha-entmax; alpha = 2 is sparsemax, and alpha → 1 is softmax.

    ``alpha`` is a number, or a tensor that broadcasts over the rows (size 1 along ``dim``) and
    receives a gradient: for one alpha per head of scores ``(batch, heads, queries, keys)`` give
    ``(heads, 1, 1)``. A tensor is clamped from below at 1.01, where entmax and softmax meet.
    """
    if isinstance(alpha, Tensor):
        one_per_row = list(scores.shape)
        one_per_row[dim] = 1
        alpha = alpha.to(_widen(scores).dtype).clamp(min=SMALLEST_ALPHA).expand(one_per_row)
    elif not alpha >= SMALLEST_ALPHA:
        raise ValueError(f"alpha must be at least {SMALLEST_ALPHA}, not {alpha}; 1 is softmax")
    return _normalize(rows.Entmax, scores, mask, dim, alpha, return_support=return_support)


def sparsehourglass(
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    q: float = 1.0,
    return_support: bool = False,
) -> Normalized:
    """Sparsemax of the scores times (1 + Kq) / (|Σv| + Kq) (Laha et al., 2018).

    ``q`` trades scale invariance (q → 0) for translation invariance (q → ∞, which is sparsemax).
    """
    if not q > 0:
        raise ValueError(f"q must be positive, not {q}; at 0 a row that sums to 0 has no value")
    mask = _check(scores, mask, dim)
    wide = _widen(scores)
    hidden = rows.find_hidden(wide, mask)
    if hidden is not None:
        wide = torch.where(hidden, 0.0, wide)
    mass = q * rows.count(hidden, wide, dim)
    # A row with nothing valid sums to 0 and has mass 0: any finite scale will do for it.
    size = wide.sum(dim, keepdim=True).abs() + mass
    scale = (1 + mass) / torch.where(size == 0, 1.0, size)
    p, support = sparsemax(
        wide * scale, None if hidden is None else ~hidden, dim, return_support=True
    )
    return _result(p.to(scores.dtype), support, return_support)


def posthoc_evidential(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    return_support: bool = False,
) -> Normalized:
    """Post-hoc evidential sparsification of a softmax layer (Itkina et al., 2020).

    ``features`` (…, J) enter the last layer ``weight`` (K, J), ``bias`` (K), laid out as in
    ``nn.Linear``; the result is (…, K): p ∝ 1{m ≠ 0} · exp(w) with evidential weights w = v − v̄ and
    belief masses m by Dempster's rule. A row of equal scores, where no class has mass, is uniform.
    Off ties this equals ``evsoftmax(features @ weight.T + bias)``, the paper's Theorem 3.1.
    """
    scores = torch.nn.functional.linear(features, weight, bias)
    mask = _check(scores, mask, -1)
    wide = _widen(scores)
    with torch.no_grad():
        believed = log_belief_mass(wide, mask) > -math.inf
        # All scores equal: no evidence for or against anything, so everything valid is kept.
        support = torch.where(believed.any(-1, keepdim=True), believed, wide > -math.inf)
        support = support if mask is None else support & mask
    return _result(softmax(wide, support).to(scores.dtype), support, return_support)


def log_belief_mass(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logarithm of the unnormalised belief mass of each class (…, K); ``-inf`` means no mass.

    m_k = e^{−w⁻_k} (e^{w⁺_k} − 1 + ∏_{l≠k} (1 − e^{−w⁻_l})) with w = v − v̄, w⁺ = max(0, w) and
    w⁻ = max(0, −w). Products are sums of logarithms, so that ten thousand classes do not underflow.
    """
    hidden = rows.find_hidden(scores, _check(scores, mask, -1))
    shifted = rows.shift(scores, hidden, -1)
    w = shifted - rows.mean(shifted, hidden, -1)
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


def _normalize(
    function: type[rows.Exponential] | type[rows.Entmax],
    scores: Tensor,
    mask: Tensor | None,
    dim: int,
    parameter: Any,
    *,
    return_support: bool,
) -> Normalized:
    mask = _check(scores, mask, dim)
    if scores.size(dim) == 0:
        return _result(scores, _nothing(scores), return_support)
    # A kernel computes half precision in float32 by itself; torch must be told to.
    wide = scores
    if scores.dtype in _HALF and not (function.kernel(parameter) and kernels.serves(scores)):
        wide = scores.float()
    p, support = rows.apply(function, wide, parameter, mask, dim, return_support)
    return _result(p if wide is scores else p.to(scores.dtype), support, return_support)


def _result(p: Tensor, support: Tensor | None, return_support: bool) -> Normalized:
    return (p, support) if return_support else p


def _nothing(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores, dtype=torch.bool)


def _check(scores: Tensor, mask: Tensor | None, dim: int) -> Tensor | None:
    """Refuse what would be silently wrong; return the mask with the rank of scores, whole rows."""
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, not {scores.dtype}")
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = takes part), not {mask.dtype}")
    if mask.shape == scores.shape:
        return mask
    if not rows.fits(mask.shape, scores.shape):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to scores {tuple(scores.shape)}"
        )
    mask = mask.reshape((1,) * (scores.dim() - mask.dim()) + mask.shape)
    shape = list(mask.shape)
    shape[dim] = scores.size(dim)
    return mask.expand(shape)


def _check_eps(eps: float) -> None:
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps must be 0 (exact) or positive and finite, not {eps}")


def _widen(scores: Tensor) -> Tensor:
    """Half precision to float32; float32 and float64 as they are."""
    return scores.float() if scores.dtype in _HALF else scores
