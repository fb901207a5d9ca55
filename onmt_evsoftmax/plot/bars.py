"""Bars: what one target word attends to under each normalizer, as in the paper's Figure 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from onmt_evsoftmax.plot.panels import text_width
from onmt_evsoftmax.report import palette


@dataclass(frozen=True)
class Row:
    """What one normalizer gives one target word: ``weights`` and ``support``, both ``(keys,)``."""

    name: str
    normalizer: str
    word: str
    weights: NDArray[np.floating]
    support: NDArray[np.bool_]


def draw(rows: Sequence[Row], keys: Sequence[str]) -> Figure:
    """Grouped bars over the source; an exact zero is a ring on the axis, not a missing bar.

    Call it inside ``style.readable``.
    """
    places = np.arange(len(keys))
    thickness = 0.82 / len(rows)
    # Labels are horizontal if they fit below their groups, else vertical.
    widest = max(text_width(key, 8) for key in keys)
    group = max(0.34, 0.12 * len(rows))
    flat = widest < 1.6 * group
    group = max(group, widest + 0.08) if flat else group
    figure = Figure(figsize=(max(2.6, 0.7 + group * len(keys)), 2.1))
    axes = figure.add_subplot()
    # A weight that is small but not zero still shows as a sliver.
    sliver = 0.006 * max(float(row.weights.max(initial=0)) for row in rows)
    colours = palette.colours([row.normalizer for row in rows])
    for index, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        x = places + (index - (len(rows) - 1) / 2) * thickness
        axes.bar(
            x,
            np.where(row.support, np.maximum(row.weights, sliver), 0),
            thickness * 0.92,
            color=colour,
            hatch=palette.HATCHES[index % len(palette.HATCHES)],
            edgecolor="white",
            linewidth=0,
            label=f"{row.name} → {row.word}",
        )
        zero = ~row.support
        axes.plot(
            x[zero],
            np.zeros(zero.sum()),
            "o",
            markersize=2.6,
            markerfacecolor="white",
            markeredgecolor=colour,
            markeredgewidth=0.7,
            clip_on=False,
            zorder=3,
        )
    handles, names = axes.get_legend_handles_labels()
    if any((~row.support).any() for row in rows):
        (ring,) = axes.plot([], [], "o", markersize=3, markerfacecolor="white", color=palette.INK)
        ring.set_markeredgewidth(0.7)
        handles, names = [*handles, ring], [*names, "exactly 0"]
    axes.legend(
        handles,
        names,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=max(1, int(figure.get_figwidth() // 1.5)),
        borderaxespad=0.2,
        handlelength=1.2,
    )
    axes.set_xticks(places, keys, rotation=0 if flat else 90)
    axes.set_xlim(-0.6, len(keys) - 0.4)
    axes.set_ylim(0, None)
    axes.set_ylabel("attention weight")
    axes.tick_params(axis="x", length=0, pad=4)
    axes.tick_params(axis="y", width=0.5, length=2)
    return figure
