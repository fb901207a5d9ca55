"""How many keys the rows of each head attend to, as one small histogram per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from onmt_evsoftmax.attended.counts import KindCounts
from onmt_evsoftmax.report import palette


def draw(counts: Mapping[str, KindCounts], kind: str, normalizers: Sequence[str]) -> Figure:
    """Layers down, heads across; ``counts``: name of a trace → its counts of this kind.

    ``normalizers`` are those of the traces, whose colours they have.

    Call it inside ``style.readable``.
    """
    layers = max(one.layers for one in counts.values())
    heads = max(one.heads for one in counts.values())
    width, height = max(3.2, 0.55 + 0.95 * heads), 0.75 + 0.72 * layers
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(
        layers, heads, squeeze=False, sharex=True, sharey=True,
        gridspec_kw={
            "left": 0.5 / width, "right": 0.99, "bottom": 0.38 / height, "top": 1 - 0.42 / height,
            "wspace": 0.12, "hspace": 0.18,
        },
    )  # fmt: skip
    most = max(one.histogram.shape[-1] for one in counts.values())
    edges = np.arange(most + 1) - 0.5
    colours = palette.colours(normalizers)
    for index, (name, one) in enumerate(counts.items()):
        line = {"linewidth": 0.9, "linestyle": palette.DASHES[index % len(palette.DASHES)]}
        shares = one.histogram / np.maximum(one.histogram.sum(-1, keepdims=True), 1)
        shares = np.pad(shares, ((0, 0), (0, 0), (0, most - shares.shape[-1])))
        for layer, head in np.ndindex(one.layers, one.heads):
            share, label = shares[layer, head], name if layer == head == 0 else None
            axes: Any = grid[layer, head]
            axes.stairs(share, edges, color=colours[index], fill=True, alpha=0.25)
            axes.stairs(share, edges, color=colours[index], label=label, **line)
    for head, axes in enumerate(grid[0]):
        axes.set_title(f"head {head + 1}", size=7, pad=3)
    for layer, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(f"layer {layer + 1}", size=7)
    for axes in grid.flat:
        axes.set_xlim(0.5, most - 0.5)
        axes.set_ylim(0, None)
        axes.tick_params(labelsize=6, length=2, width=0.5, pad=1.5)
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=3)
        axes.yaxis.get_major_locator().set_params(nbins=3)
    figure.supxlabel(f"attended keys per row, {kind} attention (share of rows)", size=7, y=0.02)
    figure.legend(loc="upper right", ncols=6, borderaxespad=0.1)
    return figure
