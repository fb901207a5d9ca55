"""What the kernels serve, said without importing Triton: for whoever chooses a backend."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_evsoftmax.kernels.triton import SMALLEST_CAPABILITY, available, interpreted, normalizers
from onmt_evsoftmax.kernels.triton.operators import ATTENTION_DTYPES, ROW_DTYPES
from onmt_evsoftmax.kernels.triton.tiles import largest_head
from onmt_evsoftmax.normalizers.registry import Normalizer, own_records

NOT_INSTALLED = "Triton is not installed (pip install triton)"


def served(field: str) -> dict[str, Normalizer]:
    """Every kernel that our records name as ``row_kernel`` or ``attention_kernel``, with a record.

    No attention kernel takes a parameter of heads.
    """
    found: dict[str, Normalizer] = {}
    for record in own_records():
        name = getattr(record, field)
        if name in normalizers.NAMES and not (
            field == "attention_kernel" and record.attention_parameter
        ):
            found.setdefault(name, record)
    return found


def device_blocker(tensor: Tensor) -> str | None:
    """Why the kernels cannot run where this tensor is, or None."""
    if not available():
        return NOT_INSTALLED
    if not tensor.is_cuda and not (tensor.is_cpu and interpreted()):
        return f"the Triton kernels compute on a GPU, and the tensors are on {tensor.device}"
    return None


def rows_blocker(kernel: str, scores: Tensor) -> str | None:
    """Why the row kernels cannot serve this call, or None."""
    if kernel not in normalizers.NAMES:
        return f"{kernel} has no Triton kernel"
    if scores.dtype not in ROW_DTYPES or scores.dim() == 0:
        return f"the Triton kernels do not take {scores.dtype} in {scores.dim()} dimensions"
    return device_blocker(scores)


def attention_blocker(
    kernel: str, query: Tensor, value: Tensor, positions: bool = False
) -> str | None:
    """Why the attention kernels cannot serve this call, or None."""
    head = max(query.size(-1), value.size(-1))
    device = query.device if query.is_cuda else None
    return (
        (None if kernel in normalizers.NAMES else f"{kernel} has no Triton kernel")
        or _dtype_blocker(query.dtype)
        or device_blocker(query)
        or _tile_blocker(query.dtype, head, positions, device)
    )


def model_blocker(
    kernel: str, dtype: torch.dtype, head: int, positions: bool = False
) -> str | None:
    """Why attention of a model on this machine's GPU would not be served, before any call."""
    if not available():
        return NOT_INSTALLED
    if kernel not in normalizers.NAMES:
        return f"{kernel} has no Triton kernel"
    device = torch.device("cuda", torch.cuda.current_device())
    return _dtype_blocker(dtype) or _tile_blocker(dtype, head, positions, device)


def _dtype_blocker(dtype: torch.dtype) -> str | None:
    if dtype in ATTENTION_DTYPES:
        return None
    return f"the Triton kernels compute in float32, and query is {dtype}"


def _tile_blocker(
    dtype: torch.dtype, head: int, positions: bool, device: torch.device | None
) -> str | None:
    """A GPU that is too old, or heads for which it has no tile; None stands for the interpreter."""
    capability = (0, 0)
    if device is not None:
        properties = torch.cuda.get_device_properties(device)
        capability = (properties.major, properties.minor)
        if capability < SMALLEST_CAPABILITY:
            needed, has = (".".join(map(str, pair)) for pair in (SMALLEST_CAPABILITY, capability))
            return f"Triton attention needs compute capability {needed}, and this GPU has {has}"
    largest = largest_head(
        float32=dtype == torch.float32, positions=positions, capability=capability[0]
    )
    if head <= largest:
        return None
    terms = " with position terms" if positions else ""
    return f"a head has more than {largest} dimensions, too many for {dtype}{terms}"
