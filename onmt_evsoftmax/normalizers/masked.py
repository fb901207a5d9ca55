r"""The masked row, which all normalizers share, and the contract that they keep.

Every normalizer is ``f(scores, mask=None, dim=-1, *, return_support=False, …)``.

- ``mask`` is boolean, broadcastable to ``scores``, and **True means the entry takes part** (the
  convention of ``torch.nn.functional.scaled_dot_product_attention``). Masked entries enter no mean,
  sum or maximum; their probability and gradient are exactly 0 whatever their score is, and whatever
  the others are. A score of ``-inf`` counts as masked.
- A row with nothing valid gives zeros. A row with ``nan`` or ``+inf`` among its valid entries gives
  ``nan`` in that row only.
- The largest valid entry is in the support. Scores are compared as they are given: equal ones are
  treated alike, so a row of equal scores is uniform, and an entry that differs from a threshold
  only by rounding may fall on either side of it. (Attention computes its own scores, and promises
  more: see :mod:`onmt_evsoftmax.attention`.)
- Half precision is computed in float32 and returned in the input's type.
- ``return_support=True`` also returns a boolean mask of the entries with non-zero probability. It
  is not ``p > 0``: a supported entry may be too small for the floating-point type.
- Derivatives of any order, backward and forward (``torch.func.jvp``, ``jacfwd``, ``hessian``).
- ``torch.compile`` and ``torch.vmap`` see one operation. While a model is traced or exported
  (``torch.jit.trace``, ``torch.export``, ONNX), torch's own operations compute everything.

A *row* is what lies along ``dim``; K is the number of its valid entries and v̄ their mean. An entry
is *hidden* when it is masked or ``-inf``. Below, tensors are float32 or float64, and ``hidden`` has
the rank of the scores with whole rows, so that everything broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from onmt_evsoftmax import kernels

HALF = (torch.float16, torch.bfloat16)


class RowFunction(Protocol):
    """What every normalizer is to a type checker."""

    __name__: str

    @overload
    def __call__(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        dim: int = -1,
        *,
        return_support: Literal[False] = False,
        **parameters: Any,
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        dim: int = -1,
        *,
        return_support: Literal[True],
        **parameters: Any,
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def __call__(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        dim: int = -1,
        *,
        return_support: bool,
        **parameters: Any,
    ) -> Any: ...


def row_function(function: Callable[..., Any]) -> RowFunction:
    """Say to type checkers that the function keeps the contract; nothing changes when it runs."""
    return cast(RowFunction, function)


# --- before and after -----------------------------------------------------------------------------


def fits(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether a tensor of ``shape`` broadcasts to ``whole``.

    ``torch.broadcast_shapes`` says it too, but takes longer than the kernels for a small batch.
    """
    offset = len(whole) - len(shape)
    return offset >= 0 and all(
        size == 1 or size == whole_size
        for size, whole_size in zip(shape, whole[offset:], strict=True)
    )


def check(scores: Tensor, mask: Tensor | None, dim: int) -> Tensor | None:
    """Refuse what would be silently wrong; return the mask with the rank of scores, whole rows."""
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, not {scores.dtype}")
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = takes part), not {mask.dtype}")
    if mask.shape == scores.shape:
        return mask
    if not fits(mask.shape, scores.shape):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to scores {tuple(scores.shape)}"
        )
    mask = mask.reshape((1,) * (scores.dim() - mask.dim()) + mask.shape)
    shape = list(mask.shape)
    shape[dim] = scores.size(dim)
    return mask.expand(shape)


def widen(scores: Tensor) -> Tensor:
    """Half precision to float32; float32 and float64 as they are."""
    return scores.float() if scores.dtype in HALF else scores


def normalize(
    function: Any,
    kernel: tuple[str, Any] | None,
    scores: Tensor,
    mask: Tensor | None,
    dim: int,
    parameter: Any,
    return_support: bool,
) -> Any:
    """Apply one of the Functions, (scores, parameter, mask, dim, want_support) → (p, support).

    ``kernel`` is the row kernel that it will try, with its parameter, if there is one.
    """
    mask = check(scores, mask, dim)
    if scores.size(dim) == 0:
        return result(scores, torch.zeros_like(scores, dtype=torch.bool), return_support)
    # A kernel computes half precision in float32 by itself; torch must be told to.
    wide = scores
    if scores.dtype in HALF and not (kernel and kernels.serves(kernel[0], scores, kernel[1])):
        wide = scores.float()
    p, support = apply(function, wide, parameter, mask, dim, return_support)
    return result(p if wide is scores else p.to(scores.dtype), support, return_support)


def result(p: Tensor, support: Tensor | None, return_support: bool) -> Any:
    """What a normalizer returns."""
    return (p, support) if return_support else p


# --- the row --------------------------------------------------------------------------------------


def hidden_entries(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Which entries take no part (True = hidden; broadcastable to scores)."""
    infinite = scores == -math.inf
    return infinite if mask is None else infinite | ~mask


def find_hidden(scores: Tensor, mask: Tensor | None) -> Tensor | None:
    """The same, or None if all take part, after a look whether there is any ``-inf`` at all.

    That saves time but makes control flow depend on values: only for a Function's forward, which
    never sees vmap's tensors.
    """
    if may_look(scores) and scores.amin() > -math.inf:
        return None if mask is None else ~mask
    return hidden_entries(scores, mask)


def may_look(tensor: Tensor) -> bool:
    """Whether a shortcut may depend on values: if there are any, and a look costs no sync."""
    return (
        tensor.device.type == "cpu"
        and tensor.numel() > 0
        and not (kernels.tracing() or kernels.transformed(tensor))
    )


def shift(scores: Tensor, hidden: Tensor | None, dim: int) -> Tensor:
    """Scores minus the largest valid one of their row: ≤ 0, ``-inf`` where hidden.

    Sums are then taken of numbers near 0: an offset common to the row costs no precision, a row of
    equal scores is exactly 0 and so is its mean, and the largest entry is never below the mean.
    A row with nothing valid, or with nan or +inf among its valid entries, is not finite.
    """
    if hidden is not None:
        scores = torch.where(hidden, -math.inf, scores)
    if scores.size(dim) == 0:
        return scores
    return scores - scores.detach().amax(dim, keepdim=True)


def mean(shifted: Tensor, hidden: Tensor | None, dim: int) -> Tensor:
    """Mean over the valid entries of each row, keeping ``dim`` with size 1."""
    if hidden is None:
        return shifted.mean(dim, keepdim=True)
    if kernels.exporting():
        finite = torch.where(hidden, 0.0, shifted)
    else:  # several times faster, but ONNX does not know it
        finite = torch.threshold(shifted, torch.finfo(shifted.dtype).min, 0.0)
    return finite.sum(dim, keepdim=True) / count(hidden, shifted, dim)


def count(hidden: Tensor | None, like: Tensor, dim: int) -> Tensor | int:
    """K: the number of valid entries of each row."""
    size = like.size(dim)
    return size if hidden is None else size - hidden.sum(dim, keepdim=True, dtype=torch.int32)


def clear(p: Tensor, hidden: Tensor | None) -> Tensor:
    """Make hidden entries 0 also in rows that are not finite (which includes: nothing valid)."""
    return p if hidden is None or is_sound(p) else torch.where(hidden, 0.0, p)


def is_sound(tensor: Tensor) -> bool:
    """Whether a look says that there is no nan."""
    return may_look(tensor) and not tensor.sum().isnan()


# --- derivatives and transformations --------------------------------------------------------------


def along_simplex(slope: Tensor, vector: Tensor, dim: int) -> Tensor:
    """J · vector for the Jacobian J = diag(s) − s sᵀ / Σs that all normalizers have.

    It is symmetric: the same formula is the derivative backward and forward.
    """
    total = slope.sum(dim, keepdim=True)
    share = slope / total.masked_fill(total == 0, 1.0)
    moved = slope * (vector - (share * vector).sum(dim, keepdim=True))
    return torch.where(slope == 0, 0.0, moved)  # in a row with nan, 0 · nan would be nan


def both_ways(function: Any) -> Any:
    """Give a Function with ``tangent`` a twin that has it as ``jvp``, and the rule for vmap.

    A twin, because ``torch.compile`` refuses a Function with a ``jvp``.
    """

    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        # torch switches forward mode off here, and so would lose the derivative of a derivative.
        with forward_ad._set_fwd_grad_enabled(True):
            return function.tangent(ctx, *tangents)

    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return _batched(function, info.batch_size, in_dims, inputs)

    function.vmap = staticmethod(vmap)
    function.twin = type(function.__name__, (function,), {"jvp": staticmethod(jvp)})
    return function


def save(ctx: Any, output: tuple[Tensor, Tensor | None], *others: Tensor) -> None:
    """What the derivatives of a Function need, for both directions."""
    p, support = output
    ctx.save_for_backward(p, *others)
    ctx.save_for_forward(p, *others)
    if support is not None:
        ctx.mark_non_differentiable(support)
    ctx.set_materialize_grads(True)


def _batched(function: Any, size: int, in_dims: tuple[int | None, ...], inputs: Any) -> Any:
    """A batch dimension in front changes no row."""
    scores, parameter, mask, dim, want_support = inputs
    rank = scores.dim() - (in_dims[0] is not None)
    front = [
        _batch_first(tensor, axis, size, rank) if isinstance(tensor, Tensor) else tensor
        for tensor, axis in zip((scores, parameter, mask), in_dims[:3], strict=True)
    ]
    p, support = apply(function, *front, dim % rank + 1, want_support)
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
    if kernels.exporting():  # what is recorded must be torch's own operations
        return function.forward(*arguments)
    if torch.compiler.is_compiling():
        return function.apply(*arguments)
    if torch._C._are_functorch_transforms_active() or kernels.forward_mode():
        return getattr(function, "twin", function).apply(*arguments)
    if torch.is_grad_enabled():
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.requires_grad:
                return super(torch.autograd.Function, function).apply(*arguments)
    return function.forward(*arguments)
