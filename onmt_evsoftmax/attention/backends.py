"""The backends that compute attention, in the order in which ``auto`` tries them.

Another one is a pair of functions, ``blocker(call)`` and ``run(call)``, and a line in
:data:`BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onmt_evsoftmax.attention import blocks, explicit, fused, reasons
from onmt_evsoftmax.attention.call import Call, Choice
from onmt_evsoftmax.kernels.triton import serving
from onmt_evsoftmax.normalizers.registry import Normalizer


class Backend(NamedTuple):
    """One way to compute attention."""

    blocker: Callable[[Call], str | None]  # why it cannot compute a call, or None
    run: Callable[[Call], Tensor]
    worth: Callable[[Call], bool] = lambda call: True  # ``auto`` takes it only then
    shares_heads: bool = False  # whether ``run`` takes fewer heads of key and value than of query


BACKENDS = {
    "fused": Backend(fused.blocker, fused.run),
    "triton": Backend(fused.gpu_blocker, fused.run_on_gpu, shares_heads=True),
    # Slower than the explicit backend, but without its memory.
    "blocks": Backend(blocks.blocker, blocks.run, blocks.is_worth_it),
    "explicit": Backend(explicit.blocker, explicit.run),
}


def compute(call: Call, backend: str) -> Tensor:
    """The call by that backend, or ``auto``; ValueError, with the reason, if it is impossible."""
    names = [backend]
    if backend == "auto":
        names = [name for name, found in BACKENDS.items() if found.worth(call)]
    for name in names:
        chosen = BACKENDS[name]
        obstacle = chosen.blocker(call)
        if obstacle is None:
            return chosen.run(call if chosen.shares_heads else call.repeated())
    raise ValueError(f"{name} attention is not possible here: {obstacle}")


def fusion_blocker(
    normalizer: str | Normalizer | Callable[..., Any],
    head_size: int = 0,
    *,
    kernels_needed: bool = True,
) -> str | None:
    """Why attention with this normalizer cannot be fused, as far as it is known before a call.

    ``kernels_needed`` is False where another device than the CPU may compute.
    """
    return (
        reasons.of_normalizer(Choice.of(normalizer))
        or reasons.of_head(head_size)
        or (reasons.of_library() if kernels_needed else None)
    )


def gpu_fusion_blocker(
    normalizer: str | Normalizer | Callable[..., Any],
    head_size: int,
    dtype: torch.dtype,
    positions: bool = False,
) -> str | None:
    """The same on this machine's GPU, for queries of this type; with position terms or without."""
    choice = Choice.of(normalizer)
    return (
        reasons.of_normalizer(choice)
        or reasons.of_gpu_choice(choice)
        or serving.attention_blocker(choice.attention_kernel, dtype, head_size, positions)
    )
