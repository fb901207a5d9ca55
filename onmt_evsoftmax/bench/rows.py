"""Row normalizers against ``torch.softmax``, and the entmax library beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import entmax as entmax_library
import torch
from torch import Tensor

from onmt_evsoftmax.bench.timing import NO_TARGET, Result, Target, compare, ratios
from onmt_evsoftmax.normalizers import functional

SHAPES = ((16384, 32), (16384, 64), (16384, 256), (32768, 1024), (1024, 32000))
PEER = "torch.softmax"
LIBRARY = {
    "entmax library: sparsemax": entmax_library.sparsemax,
    "entmax library: entmax15": entmax_library.entmax15,
}


def target(name: str, columns: int) -> Target:
    """What the ratios (forward, both passes) should not exceed."""
    if columns > 1024 or name.startswith("entmax library"):
        return NO_TARGET
    wide = columns >= 256
    return {
        "evsoftmax": (0.85, 0.95) if columns <= 256 else (0.95, 1.05),
        "evsoftmax, masked": (0.95, 1.0) if columns <= 256 else NO_TARGET,
        "sparsemax": (0.9, 0.9) if wide else (1.2, 1.2),
        "entmax15": (1.1, 1.1) if wide else (1.8, 1.8),
        "entmax, an alpha for every row": (4.0, 4.0),
    }[name]


def cases() -> list[tuple[int, int]]:
    """(rows, columns) of every case."""
    return list(SHAPES)


def measure(case: tuple[int, int], seconds: float, seed: int) -> Iterator[Result]:
    """All normalizers on one shape; float32, a mask that hides a fifth at random."""
    rows, columns = case
    name = f"{rows}×{columns}"
    generator = torch.Generator().manual_seed(seed)
    scores, grad = (torch.randn(rows, columns, generator=generator) for _ in range(2))
    mask = torch.rand(rows, columns, generator=generator) < 0.8
    alpha = torch.linspace(1.2, 1.8, rows).unsqueeze(1)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        PEER: lambda v: torch.softmax(v, -1),
        "evsoftmax": functional.evsoftmax,
        "evsoftmax, masked": lambda v: functional.evsoftmax(v, mask),
        "sparsemax": functional.sparsemax,
        "entmax15": functional.entmax15,
        "entmax, an alpha for every row": lambda v: functional.entmax(
            v, alpha=alpha.requires_grad_(v.requires_grad)
        ),
    }
    # The library takes so much longer that it would use up the time of all others.
    slow = {PEER: functions[PEER], **LIBRARY}
    for group, share, least in ((functions, seconds, 7), (slow, 0.0, 3)):
        times = compare(group, (scores,), grad, share, least)
        yield from ratios(times, PEER, "rows", name, lambda of: target(of, columns))
