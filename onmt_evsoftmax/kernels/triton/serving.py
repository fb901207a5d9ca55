"""What the kernels serve, said without importing Triton: for whoever chooses a backend."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_evsoftmax.kernels.triton import SMALLEST_CAPABILITY, available, interpreted, normalizers
from onmt_evsoftmax.kernels.triton.operators import ATTENTION_DTYPES, ROW_DTYPES
from onmt_evsoftmax.kernels.triton.tiles import largest_head
from onmt_evsoftmax.normalizers.registry import Normalizer, own_records


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
        return "Triton is not installed (pip install triton)"
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
    if kernel not in normalizers.NAMES:
        return f"{kernel} has no Triton kernel"
    if query.dtype not in ATTENTION_DTYPES:
        return f"the Triton kernels compute in float32, and query is {query.dtype}"
    blocker = device_blocker(query)
    if blocker is not None:
        return blocker
    capability = (0, 0)
    if query.is_cuda:
        properties = torch.cuda.get_device_properties(query.device)
        capability = (properties.major, properties.minor)
        if capability < SMALLEST_CAPABILITY:
            needed, has = (".".join(map(str, pair)) for pair in (SMALLEST_CAPABILITY, capability))
            return f"Triton attention needs compute capability {needed}, and this GPU has {has}"
    largest = largest_head(
        float32=query.dtype == torch.float32, positions=positions, capability=capability[0]
    )
    if max(query.size(-1), value.size(-1)) > largest:
        terms = " with position terms" if positions else ""
        return f"a head has more than {largest} dimensions, too many for {query.dtype}{terms}"
    return None
