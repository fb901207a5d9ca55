"""The entmax family: sparsemax (alpha = 2), entmax-1.5, and entmax of any alpha from 1 on.

With δ = alpha − 1, p_i = exp_δ(v_i − λ), where exp_δ(u) = (1 + δu)₊^(1/δ) tends to exp(u) for
δ → 0 and λ makes the sum 1. Written like this, nothing is lost to rounding near alpha = 1, which is
softmax. The Jacobian is diag(s) − s sᵀ / Σs with s = p^(2 − alpha).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from onmt_evsoftmax import kernels
from onmt_evsoftmax.normalizers import losses, masked
from onmt_evsoftmax.normalizers.module import NormalizerModule
from onmt_evsoftmax.normalizers.registry import Normalizer, Parameter, number_parser

#: Passes of root finding: by Newton's method alone, and at most.
NEWTON_PASSES, MOST_PASSES = 10, 120
#: Halvings of the interval, where the number of passes must be fixed.
BISECTIONS = 26

#: What has a kernel of its own; there is one for every alpha up to 2, too.
_KERNELS = {2.0: "sparsemax", 1.5: "entmax15"}


def _kernel(alpha: float | Tensor) -> tuple[str, float | Tensor]:
    """The row kernel, and its parameter."""
    if not isinstance(alpha, Tensor) and alpha in _KERNELS:
        return _KERNELS[alpha], 0.0
    return "entmax", alpha


@masked.both_ways
class EntmaxFunction(torch.autograd.Function):
    """(scores, alpha, mask, dim, want_support) → (p, support)."""

    @staticmethod
    def forward(
        scores: Tensor, alpha: float | Tensor, mask: Tensor | None, dim: int, want_support: bool
    ) -> tuple[Tensor, Tensor | None]:
        kernel, parameter = _kernel(alpha)
        fast = kernels.rows_forward(kernel, scores, mask, dim, parameter, want_support)
        if fast is not None:
            return fast
        hidden = masked.find_hidden(scores, mask)
        shifted = masked.shift(scores, hidden, dim)
        sound = shifted.detach().amax(dim, keepdim=True) == 0.0  # else: empty, nan or +inf
        # Finite also where hidden, so that no derivative of a traced model is 0 · ∞.
        lowest = torch.finfo(shifted.dtype).min / 1024
        bounded = torch.where(sound, shifted, 0.0).clamp(min=lowest)
        if isinstance(alpha, Tensor):
            delta: float | Tensor = torch.where(alpha >= 1.0, alpha - 1.0, math.nan)
        else:
            delta = alpha - 1.0
        offset = _find_offset(bounded, delta, dim)
        p, _, inside = _exponential(bounded - offset, delta)
        p = p / p.sum(dim, keepdim=True)
        support = sound & inside if hidden is None else sound & inside & ~hidden
        return masked.clear(torch.where(sound, p, math.nan), hidden), support

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        _, alpha, _, ctx.dim, _ = inputs
        learned = isinstance(alpha, Tensor)
        ctx.alpha = None if learned else alpha
        masked.save(ctx, output, *([alpha] if learned else []))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        p, *learned = ctx.saved_tensors
        alpha = learned[0] if learned else ctx.alpha
        grad, dim = grads[0], ctx.dim
        kernel, parameter = _kernel(alpha)
        fast = kernels.rows_backward(kernel, p, grad, dim, parameter)
        if fast is not None:
            return *fast, None, None, None
        slope = _slope(p, alpha)
        grad_scores = torch.where(p.isnan(), p, masked.along_simplex(slope, grad, dim))
        grad_alpha = None
        if learned and ctx.needs_input_grad[1]:
            grad_alpha = (grad * _along_alpha(p, slope, alpha, dim)).sum(dim, keepdim=True)
        return grad_scores, grad_alpha, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, None]:
        p, *learned = ctx.saved_tensors
        alpha = forward_ad.unpack_dual(learned[0]).primal if learned else ctx.alpha
        slope = _slope(p, alpha)
        moved = torch.zeros_like(p)
        if tangents[0] is not None:
            moved = torch.where(p.isnan(), p, masked.along_simplex(slope, tangents[0], ctx.dim))
        if learned and tangents[1] is not None:
            moved = moved + _along_alpha(p, slope, alpha, ctx.dim) * tangents[1]
        return moved, None


# --- formulas -------------------------------------------------------------------------------------


def _exponential(u: Tensor, delta: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp_δ(u), its derivative exp_δ(u)^(1 − δ), and where it is positive."""
    scaled = delta * u
    inside = scaled > -1.0
    if isinstance(delta, float) and delta > 0.05:
        base = torch.where(inside, 1.0 + scaled, 1.0)
        slope = torch.where(inside, base ** (1.0 / delta - 1.0), 0.0)
        return slope * base, slope, inside
    log_p = _over(torch.log1p(torch.where(inside, scaled, 0.0)), delta, u)
    p = torch.where(inside, torch.exp(log_p), 0.0)
    return p, torch.where(inside, torch.exp(log_p * (1.0 - delta)), 0.0), inside


def _over(x: Tensor, delta: float | Tensor, limit: Tensor) -> Tensor:
    """x / δ, which tends to ``limit`` for δ → 0."""
    if not isinstance(delta, Tensor):
        return x / delta if delta else limit
    flat = delta == 0.0
    return torch.where(flat, limit, x / torch.where(flat, 1.0, delta))


def _find_offset(v: Tensor, delta: float | Tensor, dim: int) -> Tensor:
    """λ of rows v whose largest entry is 0: Σ exp_δ(v − λ) = 1, kept as size 1 along ``dim``."""
    rows = v.detach()
    rate = delta.detach() if isinstance(delta, Tensor) else delta
    low = torch.zeros_like(rows.narrow(dim, 0, 1))
    # λ is at most (1 − K^(−δ)) / δ.
    high = torch.log(low + rows.size(dim))
    high = torch.minimum(high, _over(low + 1.0, rate, high))
    if masked.may_look(v):
        return _climb(rows, rate, low, high, dim)
    # Where nobody can look whether it has arrived: bisection, and three steps of Newton's method.
    # torch differentiates these in an exported model, where they make derivatives right as well.
    offset = low
    for turn in range(BISECTIONS):
        half = offset + high * 0.5 ** (turn + 1)
        total = _exponential(rows - half, rate)[0].sum(dim, keepdim=True)
        offset = torch.where(total >= 1.0, half, offset)
    for _ in range(3):
        p, slope, _ = _exponential(v - offset, delta)
        offset = offset + (p.sum(dim, keepdim=True) - 1.0) / slope.sum(dim, keepdim=True)
    return offset


def _climb(v: Tensor, delta: float | Tensor, low: Tensor, high: Tensor, dim: int) -> Tensor:
    """λ between ``low`` and ``high``, found in as few passes as it takes.

    Newton's method on the norm (Σ exp_δ(v − λ))^δ, which is convex in λ if alpha ≤ 2, climbs from
    ``low`` without overshooting. If it has not arrived after a few passes, or alpha is larger, it
    takes turns with bisection.
    """
    steep = bool((delta > 1.0).any()) if isinstance(delta, Tensor) else delta > 1.0
    at = offset = low
    tolerance = 2 * torch.finfo(v.dtype).eps
    for turn in range(MOST_PASSES):
        p, slope, _ = _exponential(v - at, delta)
        total = p.sum(dim, keepdim=True)
        log_total = torch.log(total)
        step = total * _over(-torch.expm1(-delta * log_total), delta, log_total)
        left = total >= 1.0
        after = at + step / slope.sum(dim, keepdim=True)
        low, high = torch.where(left, at, low), torch.where(left, high, at)
        offset = torch.minimum(torch.where(left, after, offset), high)
        arrived = (offset - low <= tolerance * (1.0 + low)) | ((total - 1.0).abs() <= tolerance)
        if arrived.all():
            break
        at = (low + high) / 2 if turn % 2 and (steep or turn > NEWTON_PASSES) else offset
    return offset


def _slope(p: Tensor, alpha: float | Tensor) -> Tensor:
    """p^(2 − alpha) on the support, 0 elsewhere."""
    inside = p > 0
    safe = p.masked_fill(~inside, 1.0)
    return (safe ** (2.0 - alpha)).masked_fill(~inside, 0.0)


def _along_alpha(p: Tensor, slope: Tensor, alpha: Tensor, dim: int) -> Tensor:
    """dp / dalpha = p h − s Σ p h / Σ s with h = d log exp_δ(u) / dδ, in float64 as it cancels."""
    p, slope, delta = p.double(), slope.double(), alpha.double() - 1.0
    log_p = torch.where(p > 0, p, 1.0).log()
    x = torch.expm1(delta * log_p)  # δu
    u = _over(x, delta, log_p)
    near = x.abs() < 0.01
    far = torch.where(near, -0.5, x)
    terms = ((-1) ** (n + 1) * (n + 1) / (n + 2) * x**n for n in range(6))
    series = sum(terms, torch.zeros_like(x))
    h = u * u * torch.where(near, series, (far / (1.0 + far) - torch.log1p(far)) / (far * far))
    change = p * h
    share = slope / slope.sum(dim, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    return (change - share * change.sum(dim, keepdim=True)).to(alpha.dtype)


# --- functions ------------------------------------------------------------------------------------


@masked.row_function
def sparsemax(
    scores: Tensor, mask: Tensor | None = None, dim: int = -1, *, return_support: bool = False
) -> Any:
    """Euclidean projection of the scores onto the simplex (Martins & Astudillo, 2016)."""
    return entmax(scores, mask, dim, alpha=2.0, return_support=return_support)


@masked.row_function
def entmax15(
    scores: Tensor, mask: Tensor | None = None, dim: int = -1, *, return_support: bool = False
) -> Any:
    """1.5-entmax (Peters, Niculae & Martins, 2019)."""
    return entmax(scores, mask, dim, alpha=1.5, return_support=return_support)


@masked.row_function
def entmax(
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    alpha: float | Tensor = 1.5,
    return_support: bool = False,
) -> Any:
    """alpha-entmax: alpha = 1 is softmax, 2 is sparsemax, and below 1 there is none.

    ``alpha`` is a number, or a tensor that broadcasts over the rows (size 1 along ``dim``) and
    receives a gradient: for one alpha per head of scores ``(batch, heads, queries, keys)`` give
    ``(heads, 1, 1)``. A tensor with an alpha below 1 is refused too; where its values cannot be
    looked at (on a GPU, compiled, under vmap) its rows are ``nan``.
    """
    if isinstance(alpha, Tensor):
        if masked.may_look(alpha):
            _check_alpha(alpha.amin().item(), alpha.amax().item())
        one_per_row = list(scores.shape)
        one_per_row[dim] = 1
        if not masked.fits(alpha.shape, torch.Size(one_per_row)):
            raise ValueError(
                f"alpha of shape {tuple(alpha.shape)} does not fit the rows of scores "
                f"{tuple(scores.shape)}: it must broadcast to {tuple(one_per_row)}"
            )
        alpha = alpha.to(masked.widen(scores).dtype).expand(one_per_row)
    else:
        _check_alpha(alpha, alpha)
    kernel = _kernel(alpha)
    return masked.normalize(EntmaxFunction, kernel, scores, mask, dim, alpha, return_support)


def _check_alpha(least: float, most: float) -> None:
    for alpha in (least, most):
        if not 1.0 <= alpha < math.inf:
            raise ValueError(f"alpha must be finite and at least 1 (softmax), not {alpha:g}")


class Entmax(NormalizerModule):
    """alpha-entmax; ``alpha="learn"`` trains alpha = 1 + sigmoid(a), one per head, from 1.5 on.

    With ``heads`` the scores must be (…, heads, queries, keys); without, one alpha serves all.
    """

    def __init__(self, alpha: float | str = 1.5, heads: int | None = None) -> None:
        alpha = parse_alpha(alpha) if isinstance(alpha, str) else alpha
        learned = alpha == "learn"
        super().__init__(ENTMAX, **({} if learned else {"alpha": alpha}))
        shape = () if heads is None else (heads, 1, 1)
        self.pre_alpha = nn.Parameter(torch.zeros(shape)) if learned else None

    @property
    def alpha(self) -> float | Tensor:
        """The number, or the learned values: a tensor of shape (heads, 1, 1) or ()."""
        if self.pre_alpha is None:
            return float(self.chosen["alpha"])
        return 1.0 + torch.sigmoid(self.pre_alpha)

    def options(self) -> dict[str, Any]:
        return {"alpha": self.alpha}


# --- losses ---------------------------------------------------------------------------------------


def entmax_loss(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float | Tensor = 1.5,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Fenchel–Young loss of alpha-entmax: (p − y)·v + H(p) − H(y), H the Tsallis entropy.

    A smoothed target y gives the Fenchel–Young label smoothing of Peters & Martins (2021).
    ``alpha`` may be a scalar tensor, which receives a gradient.
    """
    rows, index, valid = losses.as_rows(logits, target, ignore_index, label_smoothing)
    # A shift changes nothing but keeps large logits from cancelling; -inf is a class ruled out.
    rows = rows - rows.detach().amax(-1, keepdim=True)
    rows = rows.clamp(min=torch.finfo(rows.dtype).min)
    p = entmax(rows, alpha=alpha)
    classes = rows.size(-1)
    expected = (1.0 - label_smoothing) * losses.at(rows, index) + label_smoothing * rows.mean(-1)
    loss = (p * rows).sum(-1) - expected + _tsallis(p, alpha)
    if label_smoothing:
        rest = label_smoothing / classes
        smoothed = rows.new_tensor([1.0 - label_smoothing + rest] + [rest] * (classes - 1))
        loss = loss - _tsallis(smoothed, alpha)
    return losses.reduce(loss.reshape(target.shape), valid, reduction)


def _tsallis(p: Tensor, alpha: float | Tensor) -> Tensor:
    """Tsallis alpha-entropy Σ (p − p^alpha) / (alpha (alpha − 1)) along the last dimension."""
    # 1 stands in for 0: it adds as little, and its derivatives of any order are finite.
    log_p = p.masked_fill(p == 0, 1.0).log()
    delta = alpha - 1.0
    return -(p * _over(torch.expm1(delta * log_p), delta, log_p)).sum(-1) / alpha


def _loss_of(alpha: float, title: str) -> Callable[..., Tensor]:
    def loss(
        logits: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        return entmax_loss(
            logits,
            target,
            alpha=alpha,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )

    loss.__doc__ = f"{title}: :func:`entmax_loss` with alpha = {alpha:g}."
    return loss


sparsemax_loss = _loss_of(2.0, "Sparsemax loss (Martins & Astudillo, 2016)")
entmax15_loss = _loss_of(1.5, "1.5-entmax (Tsallis) loss (Peters et al., 2019)")


# --- records --------------------------------------------------------------------------------------

_parse_number = number_parser(
    "alpha", "a number of at least 1 (softmax), or learn", lambda alpha: alpha >= 1.0
)


def parse_alpha(text: str) -> float | str:
    """What a user wrote for alpha."""
    return text if text == "learn" else _parse_number(text)


ENTMAX = Normalizer(
    name="entmax",
    function=entmax,
    module=Entmax,
    loss=entmax_loss,
    parameters=(
        Parameter(
            "alpha",
            "a number from 1 (softmax) over 2 (sparsemax) up, or `learn` for one per head, trained",
            parse_alpha,
            1.5,
        ),
    ),
    colour="#0072b2",
    formula="p = (1 + (α − 1)(v − λ))₊^(1 / (α − 1))",
    order=50,
    row_kernel="entmax",
    attention_kernel="entmax",
    attention_parameter="alpha",
    row_target=lambda columns: (4.0, 4.0),
    attention_target=lambda length, kept: (2.0, 2.0) if length >= 512 else (None, None),
)

RECORDS = (
    Normalizer(
        name="sparsemax",
        function=sparsemax,
        loss=sparsemax_loss,
        colour="#d55e00",
        formula="p = (v − τ)₊",
        order=30,
        row_kernel="sparsemax",
        attention_kernel="sparsemax",
        row_target=lambda columns: (0.9, 0.9) if columns >= 256 else (1.2, 1.2),
        attention_target=lambda length, kept: (0.85, 0.75) if length >= 512 else (None, None),
    ),
    Normalizer(
        name="entmax15",
        function=entmax15,
        loss=entmax15_loss,
        title="entmax-1.5",
        colour="#56b4e9",
        formula="p = (v / 2 − τ)₊²",
        order=40,
        row_kernel="entmax15",
        attention_kernel="entmax15",
        row_target=lambda columns: (1.1, 1.1) if columns >= 256 else (1.8, 1.8),
        attention_target=lambda length, kept: (0.95, 0.85) if length >= 512 else (None, None),
    ),
    ENTMAX,
)
