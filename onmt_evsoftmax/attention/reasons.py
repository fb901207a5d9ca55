"""Why a backend cannot compute attention: each reason worded once."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention.call import Call, Choice
from onmt_evsoftmax.attention.positions import Positions
from onmt_evsoftmax.kernels.triton import serving
from onmt_evsoftmax.normalizers.masked import fits
from onmt_evsoftmax.normalizers.registry import own_records


def of_normalizer(choice: Choice) -> str | None:
    """A fused attention is made for one normalizer, with its default parameters but one."""
    record = choice.record
    if record is None or record.attention_kernel is None:
        fused = [record.name for record in own_records() if record.attention_kernel]
        return f"{choice.name} has no fused attention (only {', '.join(fused)})"
    for parameter in record.parameters:
        if parameter.name == record.attention_parameter:
            continue  # see `of_parameter`
        value = choice.parameters.get(parameter.name, parameter.default)
        if value != parameter.default:
            return (
                f"fused {record.name} is made for {parameter.name} = {parameter.default:g}, not "
                f"{value:g}"
            )
    return None


def of_library() -> str | None:
    """The kernels must be there."""
    if kernels.available():
        return None
    return "the kernels are not compiled or ONMT_EVSOFTMAX_BACKEND is torch"


def of_head(size: int) -> str | None:
    """The kernel is made for heads up to a certain size."""
    if size <= kernels.MAX_HEAD:
        return None
    return f"heads of {size} dimensions are more than {kernels.MAX_HEAD}"


def of_bias(call: Call) -> str | None:
    """A kernel returns no gradient for what is added to the scores."""
    bias = call.mask
    if bias is None or not bias.requires_grad or not torch.is_grad_enabled():
        return None
    return "the bias needs a gradient, which is as large as the attention matrix"


def of_positions(positions: Positions | None) -> str | None:
    """The kernels return no gradient of slopes, and take a table of one row for none at all."""
    if positions is None:
        return None
    keys, values, slopes, _ = positions
    if slopes is not None and slopes.requires_grad and torch.is_grad_enabled():
        return "slopes that need a gradient are not fused"
    if any(table is not None and table.size(0) == 1 for table in (keys, values)):
        return "relative positions with one row for all distances are not fused"
    return _of_func()


def of_parameter(call: Call) -> str | None:
    """A parameter that differs between heads, where it can be looked at."""
    parameter = least = most = call.choice.kernel_parameter()
    if parameter is None:
        return None
    if blocker := _of_func():
        return blocker
    assert call.choice.record is not None
    kernel, name = call.choice.record.attention_kernel, call.choice.record.attention_parameter
    if isinstance(parameter, Tensor):
        if kernels.transformed(parameter) or not parameter.is_cpu:
            return f"the values of {name} cannot be looked at"
        if not fits(parameter.shape, torch.Size((*call.leading, 1, 1))):
            return f"{name} of shape {tuple(parameter.shape)} is not one number for every head"
        least, most = (bound.item() for bound in parameter.detach().aminmax())
    if all(kernel and kernels.accepts(kernel, float(bound)) for bound in (least, most)):
        return None
    return f"fused {call.choice.name} is not made for {name} from {least:g} to {most:g}"


def _of_func() -> str | None:
    """``torch.func`` batches what has a batch dimension, which these do not."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return "position terms and parameters of heads are not fused under torch.func"
    return None


def of_gpu(call: Call) -> str | None:
    """Triton, a GPU that it multiplies matrices on, and a tile for heads of this size."""
    query, head = call.query, max(call.query.size(-1), call.value.size(-1))
    return of_gpu_choice(call.choice) or serving.attention_blocker(
        call.choice.attention_kernel, query.dtype, head, call.positions is not None, query
    )


def of_gpu_choice(choice: Choice) -> str | None:
    """No attention kernel for GPUs takes a parameter of heads."""
    if kernels.chosen() == "torch":
        return "ONMT_EVSOFTMAX_BACKEND is torch"
    if choice.kernel_parameter() is None:
        return None
    assert choice.record is not None
    parameter = choice.record.attention_parameter
    return f"there is no Triton attention for {choice.record.name} of any {parameter}"


def of_transformation() -> str | None:
    """What torch does around the call."""
    if kernels.exporting():
        return "a kernel of this package cannot be exported"
    if kernels.forward_mode():
        return "fused attention has no forward-mode derivative"
    return None
