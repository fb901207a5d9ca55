"""Row normalizers on a GPU, as functions of tensors along the last dimension.

They take float16 and bfloat16 (computed in float32), float32 and float64, and keep the contract of
:mod:`onmt_evsoftmax.normalizers.masked`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onmt_evsoftmax.kernels.triton import interpreted, rows_kernels
from onmt_evsoftmax.kernels.triton.normalizers import Kernel, load

#: The longest row that is one tile, and the tile of longer ones, where there are registers for it.
LONGEST_TILE, TILE_OF_LONG_ROWS = 16384, 4096

#: When Newton's step is below rounding, relative to c.
_TOLERANCE = {tl.float32: 1.2e-7, tl.float64: 2.5e-16}


class Tile(NamedTuple):
    """How the rows of one length are computed."""

    long: bool  # in several passes over the row
    rows: int  # of one program
    columns: int
    warps: int


def longest_tile(kernel: Kernel, float64: bool) -> int:
    """The longest row that is one tile: powers of any alpha, and float64, take more registers."""
    if kernel.per_row:
        return LONGEST_TILE // (8 if float64 else 4)
    if not float64:
        return LONGEST_TILE
    # By what spills on none of the targets; sm_100 has a little less room for a computed threshold.
    return LONGEST_TILE // (2 if kernel.threshold is None else 4)


def tile_for(columns: int, kernel: Kernel, float64: bool = False) -> Tile:
    """The tile for rows of this length: the only table there is, nothing is tuned at run time."""
    longest = longest_tile(kernel, float64)
    if columns > longest:
        return Tile(True, 1, min(TILE_OF_LONG_ROWS, longest // 2), 8)
    width = max(16, triton.next_power_of_2(columns))
    warps = 4 if width <= 2048 else 8 if width <= 4096 else 16
    return Tile(False, max(1, (1024 if float64 else 2048) // width), width, warps)


def rows_forward(
    normalizer: str,
    scores: Tensor,
    mask: Tensor | None = None,
    parameter: float = 0.0,
    alpha: Tensor | None = None,
    want_support: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Probabilities of ``scores`` (…, K), and their support, if wanted.

    ``mask`` (True = takes part) and ``alpha`` (size 1 in the last dimension; of a normalizer with
    one per row) have the rank of the scores and broadcast over them, which is not materialised.
    ``parameter`` is that of all rows; 0 stands for its default.
    """
    functions = load(normalizer)
    columns = scores.size(-1)
    p = torch.empty_like(scores, dtype=_stored(scores), memory_format=torch.contiguous_format)
    support = p.new_empty(p.shape, dtype=torch.uint8) if want_support else None
    if p.numel() == 0:
        return p.to(scores.dtype), None if support is None else support.bool()
    scores = scores.resolve_neg()
    if scores.stride(-1) != 1:
        scores = scores.contiguous()
    if mask is not None:
        mask = mask.view(torch.uint8).expand(scores.shape)
    alpha = _of_every_row(functions, alpha, parameter, scores)
    sizes, scores, mask, alpha, strides = _layout(scores, mask, alpha)
    tile = tile_for(columns, functions, scores.dtype == torch.float64)
    kernel = rows_kernels.rows_forward_long if tile.long else rows_kernels.rows_forward_tile
    rows = scores.numel() // columns
    wide = tl.float64 if scores.dtype == torch.float64 else tl.float32
    with _device(scores):
        kernel[(triton.cdiv(rows, tile.rows),)](
            scores, mask, alpha, p, support, rows, columns, *sizes[1:], *strides[0], *strides[1],
            0 if mask is None else mask.stride(-1), *strides[2], WEIGH=functions.weigh,
            THRESHOLD=functions.threshold, STEEPNESS=functions.steepness,
            WANTED=functions.wanted, GAP=functions.gap, PARAMETER=parameter, WIDE=wide,
            TOLERANCE=_TOLERANCE[wide], ROWS=tile.rows, COLUMNS=tile.columns,
            num_warps=tile.warps, enable_fp_fusion=True,
        )  # fmt: skip
    return p.to(scores.dtype), None if support is None else support.view(torch.bool)


def rows_backward(
    normalizer: str,
    p: Tensor,
    grad: Tensor,
    parameter: float = 0.0,
    alpha: Tensor | None = None,
    want_alpha: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(gradient of the scores (…, K), gradient of every row's alpha (…, 1) if wanted)."""
    functions = load(normalizer)
    columns = p.size(-1)
    grad_scores = torch.empty_like(p, dtype=_stored(p), memory_format=torch.contiguous_format)
    grad_alpha = p.new_empty(*p.shape[:-1], 1, dtype=_wide(p)) if want_alpha else None
    if p.numel() == 0:
        return grad_scores.to(p.dtype), None if grad_alpha is None else grad_alpha.zero_()
    p, grad = p.contiguous(), grad.to(p.dtype).resolve_neg()
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    alpha = _of_every_row(functions, alpha, parameter, p)
    sizes, grad, _, alpha, strides = _layout(grad, None, alpha)
    tile = tile_for(columns, functions, p.dtype == torch.float64)
    kernel = rows_kernels.rows_backward_long if tile.long else rows_kernels.rows_backward_tile
    rows = p.numel() // columns
    with _device(p):
        kernel[(triton.cdiv(rows, tile.rows),)](
            p, grad, alpha, grad_scores, grad_alpha, rows, columns, *sizes[1:], *strides[0],
            *strides[2], SLOPE=functions.slope,
            GAP=functions.gap if functions.threshold is None else 0.0,
            WIDE=tl.float64 if p.dtype == torch.float64 else tl.float32, ROWS=tile.rows,
            COLUMNS=tile.columns, num_warps=tile.warps, enable_fp_fusion=True,
        )  # fmt: skip
    return grad_scores.to(p.dtype), grad_alpha


def _of_every_row(
    functions: Kernel, alpha: Tensor | None, parameter: float, rows: Tensor
) -> Tensor | None:
    """Alpha (…, 1), where the kernel has one per row."""
    if alpha is None and functions.per_row:
        alpha = rows.new_full((1,) * rows.dim(), parameter or 1.5, dtype=_wide(rows))
    return None if alpha is None else alpha.to(_wide(rows)).expand(*rows.shape[:-1], 1)


def _wide(tensor: Tensor) -> torch.dtype:
    """What is computed in."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _stored(tensor: Tensor) -> torch.dtype:
    """What kernels write: Triton's interpreter truncates to bfloat16, so torch rounds for it."""
    return torch.float32 if interpreted() and tensor.dtype == torch.bfloat16 else tensor.dtype


def _device(tensor: Tensor) -> Any:
    """Kernels run on torch's current device, which need not be that of the tensors."""
    return torch.cuda.device(tensor.device if tensor.is_cuda else -1)


def _merged(tensors: list[Tensor | None]) -> tuple[list[int], list[list[int]]]:
    """The fewest dimensions, without the last, that step through all tensors alike: (sizes, strides
    of each)."""
    shape = next(t.shape for t in tensors if t is not None)
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in tensors]
    for i, size in enumerate(shape[:-1]):
        if size == 1:
            continue
        steps = [0 if t is None else t.stride(i) for t in tensors]
        if sizes and all(s[-1] == step * size for s, step in zip(strides, steps, strict=True)):
            sizes[-1] *= size
            for s, step in zip(strides, steps, strict=True):
                s[-1] = step
        else:
            sizes.append(size)
            for s, step in zip(strides, steps, strict=True):
                s.append(step)
    return sizes, strides


def _layout(
    scores: Tensor, mask: Tensor | None, alpha: Tensor | None
) -> tuple[list[int], Tensor, Tensor | None, Tensor | None, list[list[int]]]:
    """(three sizes, the tensors, three strides of each); copies what has more dimensions."""
    sizes, strides = _merged([scores, mask, alpha])
    if len(sizes) > 3:
        mask, alpha = (None if t is None else t.contiguous() for t in (mask, alpha))
        scores = scores.contiguous()
        sizes, strides = _merged([scores, mask, alpha])
    missing = 3 - len(sizes)
    strides = [[0] * missing + stride for stride in strides]
    return [1] * missing + sizes, scores, mask, alpha, strides
