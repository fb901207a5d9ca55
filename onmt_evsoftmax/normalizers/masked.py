"""What the normalizers are made of: the masked row, its maximum and mean, and two Functions.

A *row* is what lies along ``dim``. An entry is *hidden* when its mask is False or its score is
``-inf``; the others are *valid*. Tensors here are float32 or float64, and ``hidden`` has the rank
of the scores with whole rows, so that everything broadcasts.
"""

from __future__ import annotations

import math
from typing import Any

import entmax as entmax_library
import torch
from torch import Tensor

from onmt_evsoftmax import kernels

#: Of float32: denormal below, and above a long row of them may not have a sum.
SMALLEST_EPS, LARGEST_EPS = torch.finfo(torch.float32).tiny, 1e30


def fits(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether a tensor of ``shape`` broadcasts to ``whole``.

    ``torch.broadcast_shapes`` says it too, but takes longer than the kernels for a small batch.
    """
    offset = len(whole) - len(shape)
    return offset >= 0 and all(
        size in (1, whole_size) for size, whole_size in zip(shape, whole[offset:], strict=True)
    )


def find_hidden(scores: Tensor, mask: Tensor | None, *, look: bool = False) -> Tensor | None:
    """Which entries take no part (True = hidden; broadcastable to scores), or None if all do.

    ``look`` allows to look whether there is any ``-inf`` at all, which saves time but makes control
    flow depend on values: only for a Function's forward, which never sees vmap's tensors.
    """
    masked = None if mask is None else ~mask
    if look and _looks_possible(scores) and scores.amin() > -math.inf:
        return masked
    infinite = scores == -math.inf
    return infinite if masked is None else infinite | masked


def _looks_possible(tensor: Tensor) -> bool:
    """Whether a shortcut may depend on values: not while compiling, and not if it costs a sync."""
    return tensor.device.type == "cpu" and tensor.numel() > 0 and not torch.compiler.is_compiling()


def shift(scores: Tensor, hidden: Tensor | None, dim: int) -> Tensor:
    """Scores minus the largest valid one of their row: ≤ 0, ``-inf`` where hidden.

    Sums are then taken of numbers near 0: an offset common to the row costs no precision, a row of
    equal scores is exactly 0 and so is its mean, and the largest entry is never below the mean.
    A row with nothing valid, or with nan or +inf among its valid entries, is not finite.
    """
    if hidden is not None:
        scores = torch.where(hidden, -math.inf, scores)
    return scores - scores.detach().amax(dim, keepdim=True)


def mean(shifted: Tensor, hidden: Tensor | None, dim: int) -> Tensor:
    """Mean over the valid entries of each row, keeping ``dim`` with size 1."""
    if hidden is None:
        return shifted.mean(dim, keepdim=True)
    # threshold() replaces -inf by 0 several times faster than where().
    total = torch.threshold(shifted, torch.finfo(shifted.dtype).min, 0.0).sum(dim, keepdim=True)
    return total / count(hidden, shifted, dim)


def count(hidden: Tensor | None, like: Tensor, dim: int) -> Tensor | int:
    """K: the number of valid entries of each row."""
    size = like.size(dim)
    return size if hidden is None else size - hidden.sum(dim, keepdim=True, dtype=torch.int32)


def _clear(p: Tensor, hidden: Tensor | None) -> Tensor:
    """Make hidden entries 0 also in rows that are not finite (which includes: nothing valid)."""
    if hidden is None or (_looks_possible(p) and not p.sum().isnan()):
        return p
    return torch.where(hidden, 0.0, p)


class Exponential(torch.autograd.Function):
    """softmax (``eps is None``) and evsoftmax.

    (scores, eps, mask, dim, want_support) → (p, support), which may be None if it is not wanted.
    """

    @staticmethod
    def kernel(eps: float | None) -> str | None:
        """The kernel that computes the same, if there is one.

        It multiplies with eps in float32, and adds up; in logarithms any eps will do.
        """
        within = eps is not None and (eps == 0 or SMALLEST_EPS <= eps <= LARGEST_EPS)
        return "evsoftmax" if within else None

    @staticmethod
    def forward(
        scores: Tensor, eps: float | None, mask: Tensor | None, dim: int, want_support: bool
    ) -> tuple[Tensor, Tensor | None]:
        kernel = Exponential.kernel(eps)
        if kernel is not None:
            fast = kernels.rows_forward(
                kernel, scores, mask, dim, eps=eps or 0.0, want_support=want_support
            )
            if fast is not None:
                return fast
        hidden = find_hidden(scores, mask, look=True)
        logits = shift(scores, hidden, dim)
        if eps is None:
            support = logits > -math.inf
        else:
            support = logits >= mean(logits, hidden, dim)
            if eps > 0:
                logits = logits + log_weight(support, eps).to(logits.dtype)
                support = logits > -math.inf
            else:
                logits = torch.where(support, logits, -math.inf)
        return _clear(torch.softmax(logits, dim), hidden), support

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        ctx.save_for_backward(output[0])
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])
        ctx.dim = inputs[3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (p,) = ctx.saved_tensors
        grad_scores = kernels.rows_backward("evsoftmax", p, grads[0], ctx.dim)
        if grad_scores is None:
            grad_scores = torch._softmax_backward_data(grads[0], p, ctx.dim, p.dtype)
        return grad_scores, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return _batched(Exponential, info.batch_size, in_dims, inputs)


def log_weight(kept: Tensor, eps: float) -> Tensor:
    """log(1{kept} + eps), the logarithm of what evsoftmax multiplies exp(v) with."""
    return torch.where(kept, math.log1p(eps), math.log(eps) if eps > 0 else -math.inf)


class Entmax(torch.autograd.Function):
    """The entmax family: (scores, alpha, mask, dim, want_support) → (p, support).

    Root finding by the library ``entmax``, or, for alpha 2 and 1.5, by a kernel.
    """

    @staticmethod
    def kernel(alpha: float | Tensor) -> str | None:
        """The kernel that computes the same, if there is one."""
        return None if isinstance(alpha, Tensor) else {2.0: "sparsemax", 1.5: "entmax15"}.get(alpha)

    @staticmethod
    def forward(
        scores: Tensor, alpha: float | Tensor, mask: Tensor | None, dim: int, want_support: bool
    ) -> tuple[Tensor, Tensor | None]:
        kernel = Entmax.kernel(alpha)
        if kernel is not None:
            fast = kernels.rows_forward(kernel, scores, mask, dim, want_support=want_support)
            if fast is not None:
                return fast
        hidden = find_hidden(scores, mask, look=True)
        shifted = shift(scores, hidden, dim)
        # The threshold lies within 1 / (alpha − 1) of the maximum: what is far below has no part in
        # it, and clamped there it cannot overflow. The library cannot take a row of nan.
        sound = shifted.amax(dim, keepdim=True) == 0.0
        lowest = torch.as_tensor(-2.0 / (alpha - 1.0)).to(shifted)
        bounded = torch.where(sound, shifted, 0.0).maximum(lowest)
        if not isinstance(alpha, Tensor) and alpha == 2.0:
            p = entmax_library.sparsemax(bounded, dim)
        elif not isinstance(alpha, Tensor) and alpha == 1.5:
            p = entmax_library.entmax15(bounded, dim)
        else:
            p = entmax_library.entmax_bisect(bounded, alpha, dim)
        # With alpha near 1 a supported probability may underflow: compare with the threshold
        # −max(p)^(alpha−1), which is where the largest entry (0 after the shift) puts it.
        threshold = -(p.amax(dim, keepdim=True) ** (alpha - 1.0))
        support = sound & ((p > 0) | (bounded * (alpha - 1.0) > threshold))
        return _clear(torch.where(sound, p, math.nan), hidden), support

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        _, alpha, _, ctx.dim, _ = inputs
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])
        if isinstance(alpha, Tensor):
            ctx.save_for_backward(output[0], alpha)
        else:
            ctx.alpha = alpha
            ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        p, *saved = ctx.saved_tensors
        alpha = saved[0] if saved else ctx.alpha
        grad, dim = grads[0], ctx.dim
        kernel = Entmax.kernel(alpha)
        fast = None if kernel is None else kernels.rows_backward(kernel, p, grad, dim)
        if fast is not None:
            return fast, None, None, None, None
        # Jacobian: diag(s) − s sᵀ / Σs with s = p^(2−alpha) on the support.
        inside = p > 0
        safe = p.masked_fill(~inside, 1.0)
        curve = (safe ** (2.0 - alpha)).masked_fill(~inside, 0.0)
        curve_sum = curve.sum(dim, keepdim=True)
        share = curve / curve_sum.masked_fill(curve_sum == 0, 1.0)
        grad_scores = curve * (grad - (share * grad).sum(dim, keepdim=True))
        grad_scores = torch.where(p.isnan(), p, grad_scores)
        if not (saved and ctx.needs_input_grad[1]):
            return grad_scores, None, None, None, None
        # Correia, Niculae & Martins (2019), proposition 1.
        p_log_p = p * safe.log()
        d_alpha = (p - share) / (alpha - 1.0) ** 2
        d_alpha = d_alpha - (p_log_p - share * p_log_p.sum(dim, keepdim=True)) / (alpha - 1.0)
        return grad_scores, (grad * d_alpha).sum(dim, keepdim=True), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return _batched(Entmax, info.batch_size, in_dims, inputs)


def _batched(
    function: type[torch.autograd.Function], size: int, in_dims: tuple[int | None, ...], inputs: Any
) -> Any:
    """The vmap rule of both Functions: a batch dimension in front changes no row."""
    scores, parameter, mask, dim, want_support = inputs
    rank = scores.dim() - (in_dims[0] is not None)
    front = [
        _batch_first(tensor, axis, size, rank) if isinstance(tensor, Tensor) else tensor
        for tensor, axis in zip((scores, parameter, mask), in_dims[:3], strict=True)
    ]
    p, support = function.apply(*front, dim % rank + 1, want_support)
    return (p, support), (0, None if support is None else 0)


def _batch_first(tensor: Tensor, axis: int | None, size: int, rank: int) -> Tensor:
    """Move the batch dimension to the front, and pad the rest to ``rank`` dimensions."""
    tensor = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return tensor.reshape(size, *(1,) * (rank - tensor.dim() + 1), *tensor.shape[1:])


def apply(function: Any, *arguments: Any) -> Any:
    """``function.apply``, without what that costs where nothing needs it.

    ``torch.autograd.Function.apply`` inspects the signature of ``forward`` at every call, which
    takes longer than the kernels do for a small batch of rows.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    if torch.is_grad_enabled():
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.requires_grad:
                return super(torch.autograd.Function, function).apply(*arguments)
    return function.forward(*arguments)
