"""Colours, dashes and hatches: the same in every figure and page, readable in grey and to the
colour-blind. A normalizer has the colour of its record."""

from __future__ import annotations

from collections.abc import Sequence

from onmt_evsoftmax.normalizers.registry import PALETTE, colour_of

#: From the smallest weight to the largest. Lightness falls evenly, so it also reads in grey; it
#: starts well below white, which is kept for exact zeros.
WEIGHTS = ("#c6dbec", "#8fbcdb", "#4f94c4", "#1f65a2", "#0b2f5f")
GRID = "#d9d9d9"
INK = "#222222"
GOLD = "#d55e00"
#: What tells series apart where colour does not; by their place in the figure.
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))


def colours(names: Sequence[str]) -> list[str]:
    """A colour for each series: its normalizer's own, or an unused one if that is taken.

    ``names`` are those of normalizers where the series have one; several may be alike.
    """
    own = [colour_of(name) for name in names]
    chosen = [colour if colour not in own[:i] else "" for i, colour in enumerate(own)]
    spare = [colour for colour in PALETTE if colour not in own]
    return [
        colour or (spare.pop(0) if spare else wanted)
        for colour, wanted in zip(chosen, own, strict=True)
    ]
