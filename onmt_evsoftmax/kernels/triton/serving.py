"""What the kernels serve, said without importing Triton: for whoever chooses a backend."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_evsoftmax.kernels.triton import SMALLEST_CAPABILITY, available, interpreted
from onmt_evsoftmax.kernels.triton.operators import (
    ATTENTION_DTYPES,
    ATTENTION_NORMALIZERS,
    ROW_DTYPES,
    ROW_NORMALIZERS,
)
from onmt_evsoftmax.kernels.triton.tiles import largest_head


def _device_blocker(tensor: Tensor) -> str | None:
    if not available():
        return "Triton is not installed (pip install triton)"
    if not tensor.is_cuda and not (tensor.is_cpu and interpreted()):
        return f"the Triton kernels compute on a GPU, and the tensors are on {tensor.device}"
    return None


def rows_blocker(normalizer: str, scores: Tensor) -> str | None:
    """Why the row kernels cannot serve this call, or None."""
    if normalizer not in ROW_NORMALIZERS:
        return f"{normalizer} has no Triton kernel"
    if scores.dtype not in ROW_DTYPES or scores.dim() == 0:
        return f"the Triton kernels do not take {scores.dtype} in {scores.dim()} dimensions"
    return _device_blocker(scores)


def attention_blocker(
    normalizer: str, query: Tensor, value: Tensor, bias: Tensor | None = None
) -> str | None:
    """Why the attention kernels cannot serve this call, or None."""
    if normalizer not in ATTENTION_NORMALIZERS:
        return f"{normalizer} attention has no Triton kernel"
    if query.dtype not in ATTENTION_DTYPES:
        return f"the Triton kernels compute in float32, and query is {query.dtype}"
    if bias is not None and bias.requires_grad:
        return "the Triton kernels have no gradient for a bias"
    blocker = _device_blocker(query)
    if blocker is not None:
        return blocker
    capability = torch.cuda.get_device_capability(query.device) if query.is_cuda else (0, 0)
    if query.is_cuda and capability < SMALLEST_CAPABILITY:
        needed, has = (".".join(map(str, pair)) for pair in (SMALLEST_CAPABILITY, capability))
        return f"Triton attention needs compute capability {needed}, and this GPU has {has}"
    largest = largest_head(float32=query.dtype == torch.float32, capability=capability[0])
    if max(query.size(-1), value.size(-1)) > largest:
        return f"a head has more than {largest} dimensions, too many for {query.dtype}"
    return None
