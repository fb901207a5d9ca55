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


#: Kernel → {largest head: tile} for 16-bit types, on capability 8 and from 9 on, and for float32.
HALF_8: dict[str, dict[int, Tile]] = {
    "thresholds": {64: Tile(64, 64, 4, 2), 128: Tile(64, 64, 4, 1), 256: Tile(32, 32, 4, 1)},
    "projection_thresholds": {
        64: Tile(64, 64, 4, 3),
        128: Tile(64, 32, 4, 2),
        256: Tile(64, 32, 8, 1),
    },
    "forward": {64: Tile(64, 64, 4, 3), 128: Tile(64, 32, 4, 2), 256: Tile(64, 32, 8, 1)},
    "grad_query": {64: Tile(64, 32, 4, 2), 128: Tile(64, 32, 4, 2), 256: Tile(32, 32, 4, 1)},
    "grad_key_value": {64: Tile(32, 64, 4, 2), 128: Tile(64, 64, 8, 2), 256: Tile(32, 32, 8, 1)},
}
HALF_9: dict[str, dict[int, Tile]] = {
    **HALF_8,
    "forward": {64: Tile(64, 64, 4, 3), 128: Tile(64, 64, 4, 2), 256: Tile(64, 32, 8, 1)},
    "grad_key_value": {64: Tile(32, 64, 4, 2), 128: Tile(32, 64, 4, 2), 256: Tile(32, 32, 8, 1)},
}
FLOAT32: dict[str, dict[int, Tile]] = {
    name: {64: Tile(32, 32, 4, 2), 128: Tile(32, 32, 8, 1), 256: Tile(16, 16, 8, 1)}
    for name in HALF_8
}


def tile_for(kernel: str, head: int, float32: bool, capability: int) -> Tile:
    """The tile of ``kernel`` for heads of up to ``head`` numbers (query's or value's)."""
    table = FLOAT32 if float32 else HALF_9 if capability >= 9 else HALF_8
    return next(tile for largest, tile in table[kernel].items() if head <= largest)
