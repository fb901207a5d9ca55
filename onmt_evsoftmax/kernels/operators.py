"""The kernels as torch operators, for what traces through: shapes, checks, gradients, batching.

Those of ``torch.ops.onmt_evsoftmax`` are the C kernels, on CPU tensors; the same operators of
``torch.ops.onmt_evsoftmax_triton`` the kernels for GPUs, on CUDA tensors, and on CPU tensors where
Triton's interpreter stands in for a GPU. Importing this registers them; Triton itself is imported
when one is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onmt_evsoftmax.kernels import attention, library, rows
from onmt_evsoftmax.kernels.attention_task import Gradients, Saved, Task, laid_out
from onmt_evsoftmax.kernels.triton import interpreted, normalizers, serving
from onmt_evsoftmax.kernels.triton.tiles import MAX_HEAD

_SCHEMAS = (
    "rows_forward(str normalizer, Tensor scores, Tensor? mask, float parameter, Tensor? alpha,"
    " bool want_support) -> (Tensor, Tensor)",
    "rows_backward(str normalizer, Tensor p, Tensor grad, float parameter=0.0, Tensor? alpha=None,"
    " bool want_alpha=False) -> (Tensor, Tensor)",
)
_ATTENTION = (
    "str normalizer, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? bias,"
    " Tensor? alpha, Tensor? relative_keys, Tensor? relative_values, Tensor? slopes, Tensor? seed,"
    " int offset, bool causal, float scale, float dropout_p, bool skip_empty"
)
#: Fields of a task, all of them and up to the last that is a tensor.
_FIELDS, _TENSORS = len(Task._fields), 1 + Task._fields.index("seed")


class Kernels(NamedTuple):
    """One set of kernels, as functions of tensors."""

    namespace: str
    devices: tuple[str, ...]
    modules: Callable[[], tuple[Any, Any]]  # of rows and of attention
    names: Callable[[], list[str]]  # of normalizers with row kernels
    attention_names: Callable[[], list[str]]
    row_dtypes: tuple[torch.dtype, ...]
    attention_dtypes: tuple[torch.dtype, ...]
    most_dimensions: int  # of rows
    takes_alpha: Callable[[str], bool]  # whether there is one for every row, or head
    accepts: Callable[[str, float], bool]  # whether the parameter may have that value
    saved: tuple[str, ...]  # what attention keeps of every row for the backward pass, …
    saved_rows: Callable[[Task], Saved]  # … its shapes and types
    #: Whether masks are read as they lie: their last dimension must be there in full, and every
    #: head has its own keys.
    plain: bool


def _for_gpus() -> tuple[Any, Any]:
    from onmt_evsoftmax.kernels.triton import attention, rows

    return rows, attention


KERNELS = (
    Kernels(
        namespace="onmt_evsoftmax",
        devices=("CPU",),
        modules=lambda: (rows, attention),
        names=lambda: list(library.NORMALIZERS),
        attention_names=lambda: list(library.NORMALIZERS),
        row_dtypes=tuple(rows.DTYPES),
        attention_dtypes=(torch.float32,),
        most_dimensions=rows.MAX_RANK,
        takes_alpha=lambda name: library.RANGES[name][0] > 1,
        accepts=library.accepts,
        saved=("level", "bar"),
        saved_rows=attention.saved_rows,
        plain=True,
    ),
    Kernels(
        namespace="onmt_evsoftmax_triton",
        devices=("CUDA", "CPU") if interpreted() else ("CUDA",),
        modules=_for_gpus,
        names=lambda: list(normalizers.NAMES),
        attention_names=lambda: list(filter(normalizers.attends, normalizers.NAMES)),
        row_dtypes=serving.ROW_DTYPES,
        attention_dtypes=serving.ATTENTION_DTYPES,
        most_dimensions=64,
        takes_alpha=lambda name: normalizers.load(name).per_row,
        accepts=lambda name, parameter: True,
        saved=("tops", "thresholds", "inverses", "masses"),
        saved_rows=serving.saved_rows,
        plain=False,
    ),
)


# --- checks ---------------------------------------------------------------------------------------
# Anybody can call an operator, and a kernel reads whatever it is pointed to.


def _check_name(name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"normalizer must be one of {', '.join(known)}, not {name!r}")


def _check_fits(
    name: str,
    tensor: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype | None = None,
    whole: bool = False,
) -> None:
    """It must have the rank of ``shape`` and broadcast to it, if ``whole`` not in the last."""
    if tensor is None:
        return
    pairs = zip(tensor.shape, shape, strict=False)
    if (
        tensor.dtype != (dtype or tensor.dtype)
        or tensor.dim() != len(shape)
        or any(size not in (1, full) for size, full in pairs)
        or (whole and tensor.size(-1) != shape[-1])
    ):
        typed, full = f"be {dtype} and " if dtype else "", ", all of its last dimension"
        raise ValueError(
            f"{name} must {typed}broadcast to {shape}{full if whole else ''}; it is "
            f"{tensor.dtype} {tuple(tensor.shape)}"
        )


def _check_rows(
    kernels: Kernels,
    normalizer: str,
    scores: Tensor,
    mask: Tensor | None,
    parameter: float,
    alpha: Tensor | None,
) -> None:
    _check_name(normalizer, kernels.names())
    most = kernels.most_dimensions
    if scores.dtype not in kernels.row_dtypes or not 0 < scores.dim() <= most:
        raise TypeError(
            f"rows must be of {', '.join(map(str, kernels.row_dtypes))} in 1 to {most} dimensions, "
            f"not of {scores.dtype} in {scores.dim()}"
        )
    _check_fits("mask", mask, tuple(scores.shape), torch.bool, kernels.plain)
    if alpha is not None and not kernels.takes_alpha(normalizer):
        raise ValueError(f"{normalizer} has no alpha")
    _check_fits("alpha", alpha, (*scores.shape[:-1], 1))
    if not kernels.accepts(normalizer, parameter):
        raise ValueError(f"the {normalizer} kernel does not take the parameter {parameter}")


def _check_attention(kernels: Kernels, task: Task) -> None:
    _check_name(task.normalizer, kernels.attention_names())
    query, key, value = task[1:4]
    tensors = (query, key, value)
    fit = (
        all(t.dim() == 4 and t.dtype == query.dtype and t.size(3) <= MAX_HEAD for t in tensors)
        and query.dtype in kernels.attention_dtypes
        and query.size(0) == key.size(0)
        and key.shape[:3] == value.shape[:3]
        and query.size(3) == key.size(3)
        and (
            query.size(1) == key.size(1)
            or (not kernels.plain and key.size(1) > 0 and query.size(1) % key.size(1) == 0)
        )
    )
    if not fit:
        heads = "H" if kernels.plain else "H / G"
        raise ValueError(
            f"query, key and value must be (B, H, L, E), (B, {heads}, S, E) and (B, {heads}, S, V) "
            f"of one type, {' or '.join(map(str, kernels.attention_dtypes))}, E and V up to "
            f"{MAX_HEAD}; they are {[(t.dtype, tuple(t.shape)) for t in tensors]}"
        )
    scores = (*query.shape[:3], key.size(2))
    _check_fits("mask", task.mask, scores, torch.bool, kernels.plain)
    _check_fits("bias", task.bias, scores, torch.float32 if kernels.plain else None, kernels.plain)
    _check_terms(kernels, task)


def _check_terms(kernels: Kernels, task: Task) -> None:
    heads = task.query.shape[:2]
    tables = (task.relative_keys, task.relative_values)
    distances = {t.size(0) for t in tables if t is not None and t.dim()}
    shapes = (
        ("alpha", task.alpha, heads),
        ("slopes", task.slopes, heads),
        ("relative_keys", task.relative_keys, (*distances, task.query.size(3))),
        ("relative_values", task.relative_values, (*distances, task.value.size(3))),
    )
    for name, tensor, shape in shapes:
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be of shape {tuple(shape)}, not {tuple(tensor.shape)}")
    if any(size % 2 == 0 or size < 3 for size in distances):
        raise ValueError(f"relative positions need an odd number of rows, 3 or more: {distances}")
    if task.relative_values is not None and task.relative_keys is None:
        raise ValueError("relative_values need relative_keys, if only of zeros")
    if (task.alpha is not None) != kernels.takes_alpha(task.normalizer):
        raise ValueError("alpha is for the entmax kernel, which needs it")
    if task.alpha is not None and task.alpha.numel():
        least, most = (bound.item() for bound in task.alpha.aminmax())
        if not (kernels.accepts(task.normalizer, least) and kernels.accepts(task.normalizer, most)):
            raise ValueError(f"the {task.normalizer} kernel takes no alpha from {least} to {most}")
    dropped = task.dropout_p
    if not 0.0 <= dropped <= 1.0 or (dropped > 0 and task.seed is None):
        raise ValueError(f"dropout_p must be from 0 to 1, with a seed, not {dropped}")


# --- rows -----------------------------------------------------------------------------------------
# An operator returns tensors: what is not wanted, or not there, is empty.


def _rows_forward(
    kernels: Kernels,
    normalizer: str,
    scores: Tensor,
    mask: Tensor | None,
    parameter: float,
    alpha: Tensor | None,
    want_support: bool,
) -> tuple[Tensor, Tensor]:
    _check_rows(kernels, normalizer, scores, mask, parameter, alpha)
    module, _ = kernels.modules()
    p, support = module.rows_forward(normalizer, scores, mask, parameter, alpha, want_support)
    return p, p.new_empty(0, dtype=torch.bool) if support is None else support


def _rows_backward(
    kernels: Kernels,
    normalizer: str,
    p: Tensor,
    grad: Tensor,
    parameter: float = 0.0,
    alpha: Tensor | None = None,
    want_alpha: bool = False,
) -> tuple[Tensor, Tensor]:
    _check_rows(kernels, normalizer, p, None, parameter, alpha)
    if p.shape != grad.shape or p.dtype != grad.dtype:
        raise ValueError(
            f"probabilities {p.dtype} {tuple(p.shape)} and their gradient {grad.dtype} "
            f"{tuple(grad.shape)} must be alike"
        )
    module, _ = kernels.modules()
    grad_scores, of_alpha = module.rows_backward(normalizer, p, grad, parameter, alpha, want_alpha)
    return grad_scores, p.new_empty(0) if of_alpha is None else of_alpha.to(_wide(p))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _fake_rows_forward(
    normalizer: str,
    scores: Tensor,
    mask: Tensor | None,
    parameter: float,
    alpha: Tensor | None,
    want_support: bool,
) -> tuple[Tensor, Tensor]:
    p = torch.empty_like(scores, memory_format=torch.contiguous_format)
    return p, scores.new_empty(scores.shape if want_support else 0, dtype=torch.bool)


def _fake_rows_backward(
    normalizer: str,
    p: Tensor,
    grad: Tensor,
    parameter: float = 0.0,
    alpha: Tensor | None = None,
    want_alpha: bool = False,
) -> tuple[Tensor, Tensor]:
    of_alpha = p.new_empty(*p.shape[:-1], 1, dtype=_wide(p)) if want_alpha else p.new_empty(0)
    return torch.empty_like(p, memory_format=torch.contiguous_format), of_alpha


def _remember_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.normalizer, ctx.parameter = inputs[0], inputs[3]
    ctx.save_for_backward(output[0], inputs[4])
    ctx.mark_non_differentiable(output[1])


def _differentiate_rows(operators: Any, ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    p, alpha = ctx.saved_tensors
    want_alpha = alpha is not None and ctx.needs_input_grad[4]
    grad_scores, found = operators.rows_backward(
        ctx.normalizer, p, grads[0], ctx.parameter, alpha, want_alpha
    )
    of_alpha = found.sum_to_size(alpha.shape).to(alpha.dtype) if want_alpha else None
    return None, grad_scores, None, None, of_alpha, None


def _batch_rows(operator: Any, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    """The vmap rule of both operators: a batch is one more dimension in front of all tensors."""
    places = [at for at, given in enumerate(inputs) if isinstance(given, Tensor)]
    rank = max(inputs[at].dim() + (in_dims[at] is None) for at in places)
    given = list(inputs)
    for at in places:
        tensor, axis = inputs[at], in_dims[at]
        tensor = tensor.unsqueeze(0) if axis is None else tensor.movedim(axis, 0)
        tensor = tensor.reshape(len(tensor), *(1,) * (rank - tensor.dim()), *tensor.shape[1:])
        given[at] = tensor.expand(info.batch_size, *tensor.shape[1:])
    found = operator(*given)
    return found, tuple(0 if len(tensor) else None for tensor in found)


# --- attention ------------------------------------------------------------------------------------


def _attention_forward(kernels: Kernels, *arguments: Any) -> tuple[Tensor, ...]:
    task = Task(*arguments)
    _check_attention(kernels, task)
    return kernels.modules()[1].attention_forward(task)


def _attention_backward(kernels: Kernels, grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    task, results = Task(*arguments[:_FIELDS]), arguments[_FIELDS:]
    _check_attention(kernels, task)
    result = (*task.query.shape[:3], task.value.size(3)), task.query.dtype
    for name, tensor, (shape, dtype) in zip(
        ("grad", "out", *kernels.saved),
        (grad, *results),
        (result, result, *kernels.saved_rows(task)),
        strict=True,
    ):
        if (tensor.shape, tensor.dtype) != (shape, dtype):
            raise ValueError(
                f"{name} must be {dtype} {tuple(shape)}, as attention_forward returned it, not "
                f"{tensor.dtype} {tuple(tensor.shape)}"
            )
    grads: Gradients = kernels.modules()[1].attention_backward(grad, task, *results)
    return tuple(grad.new_empty(0) if g is None else g for g in grads)


def _fake_attention_forward(kernels: Kernels, *arguments: Any) -> tuple[Tensor, ...]:
    task = Task(*arguments)
    query, saved = task.query, kernels.saved_rows(task)
    out = laid_out(query, query.size(2), task.value.size(3))
    return out, *(query.new_empty(shape, dtype=dtype) for shape, dtype in saved)


def _fake_attention_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    task = Task(*arguments[:_FIELDS])
    terms = (task.alpha, task.relative_keys, task.relative_values)
    return (
        *(laid_out(t, t.size(2), t.size(3)) for t in task[1:4]),
        *(grad.new_empty(0) if t is None else torch.empty_like(t) for t in terms),
    )


def remember_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save a task and its results for the backward pass."""
    ctx.normalizer, *tensors = inputs[:_TENSORS]
    ctx.numbers = inputs[_TENSORS:]
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(*output[1:])


def remembered_attention(ctx: Any) -> tuple[Task, tuple[Tensor, ...]]:
    """The task and its results."""
    saved = ctx.saved_tensors
    task = Task(ctx.normalizer, *saved[: _TENSORS - 1], *ctx.numbers)
    return task, saved[_TENSORS - 1 :]


def gradients_of_attention(grads: Any, task: Task) -> tuple[Tensor | None, ...]:
    """Of all fields of a task, from those that the kernels return."""
    names = ("query", "key", "value", "alpha", "relative_keys", "relative_values")
    of_fields = dict(zip(names, grads, strict=True))
    return tuple(
        of_fields.get(name) if field is not None else None
        for name, field in zip(Task._fields, task, strict=True)
    )


def _remember_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    for name, tensor in (("a bias", Task(*inputs).bias), ("slopes", Task(*inputs).slopes)):
        if tensor is not None and tensor.requires_grad:
            raise ValueError(
                f"the attention kernels have no gradient for {name}: compute explicitly"
            )
    remember_attention(ctx, inputs, output)


def _differentiate_attention(
    operators: Any, ctx: Any, grad: Tensor, *_: Any
) -> tuple[Tensor | None, ...]:
    task, results = remembered_attention(ctx)
    return gradients_of_attention(operators.attention_backward(grad, *task, *results), task)


# --- registration ---------------------------------------------------------------------------------


def _register(kernels: Kernels) -> torch.library.Library:
    found = torch.library.Library(kernels.namespace, "DEF")
    operators = getattr(torch.ops, kernels.namespace)
    saved = "".join(f", Tensor {name}" for name in ("out", *kernels.saved))
    results = ", ".join(["Tensor"] * (1 + len(kernels.saved)))
    for schema in (
        *_SCHEMAS,
        f"attention_forward({_ATTENTION}=False) -> ({results})",
        f"attention_backward(Tensor grad, {_ATTENTION}{saved}) -> ({', '.join(['Tensor'] * 6)})",
    ):
        found.define(schema)
    for function, fake in (
        (_rows_forward, _fake_rows_forward),
        (_rows_backward, _fake_rows_backward),
        (_attention_forward, partial(_fake_attention_forward, kernels)),
        (_attention_backward, _fake_attention_backward),
    ):
        name = function.__name__[1:]
        for device in kernels.devices:
            found.impl(name, partial(function, kernels), device)
        torch.library.register_fake(f"{kernels.namespace}::{name}", fake, lib=found)
    for name, differentiate, remember in (
        ("rows_forward", _differentiate_rows, _remember_rows),
        ("attention_forward", _differentiate_attention, _remember_attention),
    ):
        torch.library.register_autograd(
            f"{kernels.namespace}::{name}",
            partial(differentiate, operators),
            setup_context=remember,
            lib=found,
        )
    for name in ("rows_forward", "rows_backward"):
        rule = partial(_batch_rows, getattr(operators, name))
        torch.library.register_vmap(f"{kernels.namespace}::{name}", rule, lib=found)
    return found


#: Kept: operators go with the object that registered them.
_libraries = [_register(kernels) for kernels in KERNELS]
