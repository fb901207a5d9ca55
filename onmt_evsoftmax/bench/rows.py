"""Row normalizers against ``torch.softmax``, and the entmax library beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import entmax as entmax_library
import torch
from torch import Tensor

from onmt_evsoftmax.bench.timing import NO_TARGET, Result, compare, ratios
from onmt_evsoftmax.normalizers.registry import Normalizer, Target, own_records

Function = Callable[..., Tensor]

SHAPES = ((16384, 32), (16384, 64), (16384, 256), (32768, 1024), (1024, 32000))
PEER = "torch.softmax"
LIBRARY = {
    "entmax library: sparsemax": entmax_library.sparsemax,
    "entmax library: entmax15": entmax_library.entmax15,
}


def functions(mask: Tensor, alpha: Tensor) -> dict[str, tuple[Normalizer, Function]]:
    """Every normalizer with a row kernel of its own; with a parameter, one of ``alpha`` a row."""
    found: dict[str, tuple[Normalizer, Function]] = {}
    for record in own_records():
        if record.row_kernel != record.name:
            continue
        name, function = record.name, record.function
        if record.attention_parameter:
            name = f"{name}, an {record.attention_parameter} for every row"
            function = partial(_with_parameter, record, alpha)
        found[name] = record, function
        found[f"{name}, masked"] = record, partial(function, mask=mask)
    return found


def _with_parameter(
    record: Normalizer, value: Tensor, scores: Tensor, mask: Tensor | None = None
) -> Tensor:
    trained = value.requires_grad_(scores.requires_grad)
    made: Tensor = record.function(scores, mask, **{str(record.attention_parameter): trained})
    return made


def target(record: Normalizer | None, name: str, columns: int) -> Target:
    """What the ratios (forward, both passes) should not exceed: those of the plain rows."""
    if record is None or columns > 1024 or name.endswith("masked"):
        return NO_TARGET
    return record.row_target(columns)


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
    ours = functions(mask, alpha)
    peer: dict[str, Function] = {PEER: lambda v: torch.softmax(v, -1)}
    fast = {**peer, **{name: function for name, (_, function) in ours.items()}}
    # The library takes so much longer that it would use up the time of all others.
    slow = {**peer, **LIBRARY}
    for group, share, least in ((fast, seconds, 7), (slow, 0.0, 3)):
        times = compare(group, (scores,), grad, share, least)
        yield from ratios(
            times, PEER, "rows", name, lambda of: target(ours.get(of, (None,))[0], of, columns)
        )
