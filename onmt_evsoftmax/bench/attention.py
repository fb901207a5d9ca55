"""Attention of every normalizer against torch's ``scaled_dot_product_attention``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import Positions, sparse_attention
from onmt_evsoftmax.bench.timing import NO_TARGET, Result, compare, ratios
from onmt_evsoftmax.normalizers.registry import Target, get_normalizer, own_records

PEER = "torch SDPA"
SIZE = 64
SHAPES = ((16, 8, 64), (4, 8, 512), (1, 8, 2048), (1, 8, 4096))
MASKS = ("no mask", "causal", "padded")
#: Distances of the relative positions, on either side: that of the recipes.
WINDOW = 8
DENSITIES, DENSITY_SHAPE = (0.5, 0.2, 0.05), (1, 8, 2048)


class Case(NamedTuple):
    """(batch, heads, length), what is masked, and the share of keys to keep (None: as it comes)."""

    shape: tuple[int, int, int]
    mask: str
    density: float | None = None

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        kept = "" if self.density is None else f", density {self.density}"
        return f"{shape} {self.mask}{kept}"


def cases() -> list[Case]:
    """The shapes of the README's table, each with every mask."""
    return [Case(shape, mask) for shape in SHAPES for mask in MASKS]


def density_cases() -> list[Case]:
    """One shape, at several shares of kept keys."""
    return [Case(DENSITY_SHAPE, "no mask", density) for density in DENSITIES]


def tensors(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value (batch, heads, length, SIZE); ev-softmax keeps ``density`` of the keys.

    Normal scores keep half. For less, every query looks for one of SIZE features, which a key has
    with probability ``density``: then scores are 1 or about 0, and their mean lies between.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (*case.shape, SIZE)
    query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
    if case.density is None or case.density == 0.5:
        return query, key, value
    feature = torch.randint(SIZE, case.shape, generator=generator)
    query = torch.nn.functional.one_hot(feature, SIZE) * SIZE**0.5
    has = torch.rand(shape, generator=generator) < case.density
    return query.float(), has + key * (case.density / 6), value


def density_of(query: Tensor, key: Tensor) -> float:
    """The share of keys that ev-softmax keeps of the first head."""
    scores = query[0, 0] @ key[0, 0].T
    return (scores >= scores.mean(-1, keepdim=True)).float().mean().item()


def target(name: str, case: Case) -> Target:
    """What the ratios (forward, both passes) should not exceed."""
    record = next((record for record in own_records() if record.name == name), None)
    return record.attention_target(case.shape[-1], case.density or 0.5) if record else NO_TARGET


def measure(case: Case, seconds: float, seed: int) -> Iterator[Result]:
    """Our attention as it chooses its backend by itself, and the explicit one up to length 2048.

    entmax has a learned alpha for every head; the others are measured with relative positions, too.
    """
    query, key, value = tensors(case, seed)
    batch, _, length = case.shape
    mask = None
    if case.mask == "padded":  # the first sentence is whole, the last half as long
        lengths = torch.linspace(length, length / 2, batch).long()
        lengths = lengths if batch > 1 else torch.tensor([length * 3 // 4])
        mask = (torch.arange(length) < lengths.unsqueeze(1)).view(batch, 1, 1, length)
    causal = case.mask == "causal"

    functions: dict[str, Callable[..., Tensor]] = {
        PEER: lambda q, k, v: scaled_dot_product_attention(q, k, v, mask, is_causal=causal),
    }

    def add(name: str, normalizer: Any, backend: str, positions: Positions | None = None) -> None:
        functions[name] = lambda q, k, v: sparse_attention(
            q, k, v, mask, 0.0, causal, normalizer=normalizer, positions=positions, backend=backend
        )

    table = torch.randn(2 * WINDOW + 1, SIZE, generator=torch.Generator().manual_seed(seed))
    places = Positions(table, table)
    with_matrix = length <= 2048 and case.density is None and kernels.available()
    for record in own_records():
        if record.attention_kernel != record.name:
            continue
        learned = {"alpha": "learn", "heads": case.shape[1]} if record.attention_parameter else {}
        normalizer = get_normalizer(record, **learned)
        add(record.name, normalizer, "auto")
        if with_matrix:
            add(f"{record.name}, explicit", normalizer, "explicit")
        if record.attention_parameter is None and with_matrix:
            add(f"{record.name}, relative positions", normalizer, "auto", places)
            add(f"{record.name}, relative, explicit", normalizer, "explicit", places)
    times = compare(functions, (query, key, value), torch.randn_like(value), seconds)
    part = "attention" if case.density is None else "density"
    kept = "" if case.density is None else f"keeps {density_of(query, key):.2f}"
    yield from ratios(times, PEER, part, str(case), lambda name: target(name, case), note=kept)
