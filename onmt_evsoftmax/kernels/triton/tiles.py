"""The one table of tile sizes. Nothing is tuned at run time.

Every entry was compiled for every target without spilling a register (``docs/gpu.md`` has the
numbers, ``tests/triton_kernels/test_triton_compiled.py`` checks them). None was timed on a GPU.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """Queries × keys of a tile, warps of a program, and stages of the pipeline of loads."""

    queries: int
    keys: int
    warps: int
    stages: int


Table = dict[str, dict[int, Tile]]

#: Kernel → {largest head: tile}, for 16-bit types and at most a mask of keys.
LIGHT: Table = {
    "thresholds": {64: Tile(64, 64, 4, 2), 128: Tile(64, 64, 4, 1), 256: Tile(32, 32, 4, 1)},
    "forward": {64: Tile(64, 64, 4, 3), 128: Tile(64, 32, 4, 2), 256: Tile(64, 32, 8, 1)},
    "grad_query": {64: Tile(64, 32, 4, 2), 128: Tile(64, 32, 4, 2), 256: Tile(32, 32, 4, 1)},
    "grad_key_value": {64: Tile(32, 64, 4, 2), 128: Tile(64, 64, 8, 2), 256: Tile(32, 32, 8, 1)},
}
#: The same where Hopper and later can do more. (Thresholds of 64 queries fail in Triton 3.7's pass
#: for Blackwell's tensor memory.)
LIGHT_9: Table = {
    **LIGHT,
    "thresholds": {64: Tile(32, 32, 4, 2), 128: Tile(32, 32, 4, 1), 256: Tile(32, 32, 4, 1)},
    "forward": {64: Tile(64, 64, 4, 2), 128: Tile(64, 64, 4, 2), 256: Tile(32, 32, 8, 1)},
    "grad_query": {64: Tile(64, 32, 4, 2), 128: Tile(64, 32, 4, 2), 256: Tile(32, 32, 8, 1)},
    "grad_key_value": {64: Tile(32, 64, 4, 2), 128: Tile(32, 64, 4, 2), 256: Tile(32, 32, 8, 1)},
}
#: With dropout, a bias or a mask for every query, and for searched thresholds: all of these take
#: registers.
HEAVY: Table = {
    "thresholds": {64: Tile(64, 64, 8, 2), 256: Tile(32, 32, 4, 1)},
    "searched_thresholds": {
        64: Tile(64, 64, 8, 2),
        128: Tile(64, 32, 8, 2),
        256: Tile(32, 32, 8, 1),
    },
    "forward": {64: Tile(64, 64, 8, 3), 256: Tile(32, 32, 8, 1)},
    "grad_query": {64: Tile(64, 32, 8, 2), 128: Tile(32, 32, 8, 1), 256: Tile(16, 32, 8, 1)},
    "grad_key_value": {64: Tile(32, 64, 8, 1), 128: Tile(32, 32, 4, 1), 256: Tile(32, 32, 8, 1)},
}
HEAVY_9: Table = {
    **HEAVY,
    "forward": {64: Tile(64, 64, 8, 3), 128: Tile(64, 32, 8, 2), 256: Tile(32, 32, 8, 1)},
    "thresholds": LIGHT_9["thresholds"],
    "searched_thresholds": {
        64: Tile(64, 64, 8, 2),
        128: Tile(64, 32, 8, 2),
        256: Tile(16, 32, 8, 1),
    },
    "grad_query": {64: Tile(64, 32, 8, 2), 128: Tile(64, 32, 8, 2), 256: Tile(16, 32, 8, 1)},
    "grad_key_value": {64: Tile(32, 64, 8, 1), 128: Tile(32, 32, 4, 1), 256: Tile(16, 32, 8, 1)},
}
#: float32, whose products take three times the operands; with heads above 128 every tile spills.
FLOAT32: Table = {
    "thresholds": {128: Tile(16, 16, 4, 1)},
    "searched_thresholds": {64: Tile(32, 32, 8, 1), 128: Tile(16, 32, 8, 1)},
    "forward": {64: Tile(32, 32, 8, 1), 128: Tile(16, 32, 8, 1)},
    "grad_query": {64: Tile(16, 32, 4, 1), 128: Tile(16, 16, 8, 1)},
    "grad_key_value": {64: Tile(32, 32, 8, 1), 128: Tile(16, 16, 8, 1)},
}
#: The same on Hopper, whose code takes more registers. ``mean_…`` is for a normalizer whose
#: threshold is the mean: no tile serves both kinds.
FLOAT32_9: Table = {
    **FLOAT32,
    "searched_thresholds": {64: Tile(16, 32, 4, 1), 128: Tile(16, 32, 8, 1)},
    "mean_grad_query": {64: Tile(16, 32, 4, 1), 128: Tile(16, 16, 4, 1)},
}
#: The same on Blackwell, where heads above 64 spill.
FLOAT32_10: Table = {
    "thresholds": {64: Tile(16, 16, 4, 1)},
    "searched_thresholds": {64: Tile(16, 32, 4, 1)},
    "forward": {64: Tile(16, 32, 4, 1)},
    "grad_query": {64: Tile(16, 32, 4, 1)},
    "grad_key_value": {64: Tile(16, 32, 8, 1)},
}
#: With position terms, which every tile has to look up, whatever else there is to do.
PLACED: Table = {
    "thresholds": {64: Tile(64, 64, 8, 1), 256: Tile(32, 32, 4, 1)},
    "searched_thresholds": {
        64: Tile(64, 64, 8, 2),
        128: Tile(64, 32, 8, 2),
        256: Tile(32, 32, 8, 1),
    },
    "forward": {128: Tile(32, 32, 8, 1), 256: Tile(16, 32, 8, 1)},
    "grad_query": {128: Tile(32, 32, 8, 1), 256: Tile(16, 32, 8, 1)},
    "grad_key_value": {128: Tile(32, 32, 8, 1), 256: Tile(16, 16, 8, 1)},
    "distances": {256: Tile(64, 32, 4, 1)},
    "totals": {256: Tile(32, 16, 4, 1)},
    "near": {64: Tile(64, 32, 8, 1), 128: Tile(32, 32, 8, 1), 256: Tile(16, 32, 8, 1)},
}
PLACED_9: Table = {
    **PLACED,
    "near": {128: Tile(64, 32, 8, 1), 256: Tile(16, 32, 8, 1)},
    "thresholds": {256: Tile(32, 32, 4, 1)},
    "searched_thresholds": {128: Tile(64, 32, 8, 2), 256: Tile(16, 32, 8, 1)},
    "forward": {64: Tile(64, 64, 8, 2), 128: Tile(32, 32, 8, 1), 256: Tile(16, 32, 8, 1)},
    "grad_query": {128: Tile(32, 32, 8, 1), 256: Tile(16, 16, 8, 1)},
    "grad_key_value": {
        64: Tile(32, 64, 8, 1),
        128: Tile(32, 32, 8, 1),
        256: Tile(16, 16, 8, 1),
    },
}
#: float32 with position terms: heads above 64 spill.
PLACED_FLOAT32: Table = {
    "thresholds": {64: Tile(16, 16, 4, 1)},
    "searched_thresholds": {64: Tile(32, 32, 8, 1)},
    "forward": {64: Tile(16, 32, 8, 1)},
    "grad_query": {64: Tile(16, 32, 8, 1)},
    "grad_key_value": {64: Tile(16, 32, 8, 1)},
    "distances": {64: Tile(32, 32, 4, 1)},
    "totals": {64: Tile(32, 16, 4, 1)},
    "near": {64: Tile(16, 32, 4, 1)},
}
PLACED_FLOAT32_9: Table = {
    **PLACED_FLOAT32,
    "searched_thresholds": {64: Tile(16, 32, 4, 1)},
    "grad_key_value": {64: Tile(16, 16, 8, 1)},
    "distances": {64: Tile(16, 32, 4, 1)},
}
#: The interpreter takes as long for a large tile as for a small one.
INTERPRETER = {
    "thresholds": Tile(64, 64, 4, 1),
    "searched_thresholds": Tile(64, 32, 4, 1),
    "forward": Tile(64, 32, 4, 1),
    "grad_query": Tile(64, 32, 4, 1),
    "grad_key_value": Tile(32, 64, 4, 1),
    "distances": Tile(64, 32, 4, 1),
    "totals": Tile(64, 16, 4, 1),
    "near": Tile(64, 32, 4, 1),
}

MAX_HEAD = 256


def largest_head(*, float32: bool, positions: bool, capability: int) -> int:
    """The largest head there is a tile for."""
    if capability == 0:
        return MAX_HEAD
    return max(_table(float32, False, positions, capability)["forward"])


def tile_for(
    kernel: str,
    head: int,
    *,
    float32: bool,
    mean: bool,
    heavy: bool,
    positions: bool,
    capability: int,
) -> Tile:
    """The tile of ``kernel`` for heads of up to ``head`` numbers (query's or value's).

    ``mean`` is whether the threshold is the mean, ``heavy`` whether there is more than a mask of
    keys to do, ``positions`` whether distances matter. ``capability`` is the GPU's generation, 8
    for A100, 9 for H100, or 0 for the interpreter.
    """
    if capability == 0:
        return INTERPRETER[kernel]
    table = _table(float32, heavy, positions, capability)
    if mean and f"mean_{kernel}" in table:
        kernel = f"mean_{kernel}"
    return next(tile for largest, tile in table[kernel].items() if head <= largest)


def _table(float32: bool, heavy: bool, positions: bool, capability: int) -> Table:
    if positions:
        tables = (PLACED_FLOAT32, PLACED_FLOAT32_9) if float32 else (PLACED, PLACED_9)
        return tables[capability >= 9]
    if float32:
        return {8: FLOAT32, 9: FLOAT32_9}.get(capability, FLOAT32_10)
    if capability >= 9:
        return HEAVY_9 if heavy else LIGHT_9
    return HEAVY if heavy else LIGHT
