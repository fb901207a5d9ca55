"""What the kernels serve, said without importing Triton: for whoever chooses a backend."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_evsoftmax.kernels.attention_task import Saved, Task
from onmt_evsoftmax.kernels.triton import SMALLEST_CAPABILITY, available, interpreted, normalizers
from onmt_evsoftmax.kernels.triton.tiles import largest_head
from onmt_evsoftmax.normalizers.registry import Normalizer, own_records

ROW_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ATTENTION_DTYPES = ROW_DTYPES[:3]
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
    kernel: str,
    dtype: torch.dtype,
    head: int,
    positions: bool = False,
    query: Tensor | None = None,
) -> str | None:
    """Why the attention kernels cannot serve heads of this size, with position terms or without.

    Where ``query`` is or, before there is any call, on this machine's GPU.
    """
    if kernel not in normalizers.NAMES:
        return f"{kernel} has no Triton kernel"
    if dtype not in ATTENTION_DTYPES:
        return f"the Triton kernels compute in float32, and query is {dtype}"
    if query is not None and (elsewhere := device_blocker(query)):
        return elsewhere
    if not available():
        return NOT_INSTALLED
    capability = (0, 0)  # of the interpreter
    if query is None or query.is_cuda:
        properties = torch.cuda.get_device_properties(None if query is None else query.device)
        capability = (properties.major, properties.minor)
        if capability < SMALLEST_CAPABILITY:
            needed, has = (".".join(map(str, pair)) for pair in (SMALLEST_CAPABILITY, capability))
            return f"Triton attention needs compute capability {needed}, and this GPU has {has}"
    float32 = dtype == torch.float32
    largest = largest_head(float32=float32, positions=positions, capability=capability[0])
    if head <= largest:
        return None
    terms = " with position terms" if positions else ""
    return f"a head has more than {largest} dimensions, too many for {dtype}{terms}"


def saved_rows(task: Task) -> Saved:
    """Of tops, thresholds, inverses and masses, which attention keeps for the backward pass.

    They are (B, H, L), and masses (B, H, L, distances): probabilities by distance, where there are
    relative values, else (B, H, L, 0).
    """
    rows, values = tuple(task.query.shape[:3]), task.relative_values
    masses = (*rows, 0 if values is None else values.size(0))
    return *((rows, torch.float32),) * 3, (masses, torch.float32)
