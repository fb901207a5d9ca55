"""Heatmaps: a sentence's attention, one panel per head, layer and normalizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch, Rectangle
from matplotlib.textpath import text_to_path
from numpy.typing import ArrayLike, NDArray

from onmt_evsoftmax.attended.alignment import Gold
from onmt_evsoftmax.report import palette, style

_CELL = 0.2  # inches
_SMALLEST_CELL = 0.07
#: Corners of the frame of a zero, within its cell.
_FRAME = np.array([(0.06, 0.06), (0.94, 0.06), (0.94, 0.94), (0.06, 0.94)])
#: How a link of a gold alignment is outlined, and what it is called.
_GOLD: dict[int, tuple[Any, str]] = {
    2: ("-", "gold alignment"),
    1: ((0, (1.5, 1)), "gold, possible"),
}
_GAP, _TITLE, _BAR, _LEGEND = 0.12, 0.2, 0.75, 0.32


@dataclass(frozen=True)
class Panel:
    """One matrix. All arrays are ``(rows, keys)``.

    ``support`` is True where the key is attended, ``available`` where the query may look.
    ``gold`` outlines: 2 sure, 1 possible, 0 none.
    """

    title: str
    weights: NDArray[np.floating]
    support: NDArray[np.bool_]
    available: NDArray[np.bool_]
    rows: Sequence[str]
    keys: Sequence[str]
    gold: NDArray[np.int8] | None = None


def draw(panels: Sequence[Panel], columns: int | None = None, values: bool = False) -> Figure:
    """A figure of all panels on one colour scale, exact zeros left blank.

    ``columns``: panels per line, by default about as many as lines. ``values`` writes the weights
    into the cells. Call it inside ``style.readable``.
    """
    columns = min(columns or math.ceil(math.sqrt(len(panels))), len(panels))
    lines = math.ceil(len(panels) / columns)
    longest = max(max(len(p.rows), len(p.keys), 1) for p in panels)
    cell = max(_SMALLEST_CELL, min(0.28 if values else _CELL, 24 / (columns * longest)))
    label = min(8.0, 60 * cell)
    # Every cell is a square of the same size, so panels are placed by hand, in inches.
    left = _GAP + max(text_width(text, label) for p in panels for text in p.rows)
    title = _TITLE * max(p.title.count("\n") + 1 for p in panels)
    top = _GAP + title + max(text_width(text, label) for p in panels for text in p.keys)
    across, down = (
        cell * max(len(side) for side in sides)
        for sides in ([p.keys for p in panels], [p.rows for p in panels])
    )
    widest = max(text_width(line, 8) for p in panels for line in p.title.splitlines())
    across = max(across, widest - left + _GAP)
    width = columns * (left + across) + _BAR
    height = lines * (top + down) + _LEGEND
    figure = Figure(figsize=(width, height))
    largest = max(float(p.weights.max(initial=0)) for p in panels)
    scale = Normalize(0, largest or 1.0)
    for index, panel in enumerate(panels):
        line, column = divmod(index, columns)
        size = (len(panel.keys) * cell / width, len(panel.rows) * cell / height)
        x = (column * (left + across) + left) / width
        y = 1 - (line * (top + down) + top) / height - size[1]
        _draw_panel(figure.add_axes((x, y, *size)), panel, scale, label, values)
    tall = min(down, 1.8)
    bar_place = ((width - _BAR + 0.2) / width, 1 - (top + tall) / height, 0.09 / width)
    bar = figure.colorbar(
        ScalarMappable(scale, style.WEIGHTS), cax=figure.add_axes((*bar_place, tall / height))
    )
    bar.outline.set_linewidth(0.5)
    bar.ax.tick_params(labelsize=7, width=0.5, length=2)
    bar.set_label("attention weight", size=7)
    figure.legend(
        handles=_legend(panels),
        loc="lower center",
        ncols=4,
        handlelength=1.1,
        handleheight=1.1,
        borderaxespad=0,
    )
    return figure


def text_width(text: str, size: float) -> float:
    """Inches that a text takes in the current fonts, shaped as it will be drawn."""
    font = FontProperties(size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def _draw_panel(axes: Axes, panel: Panel, scale: Normalize, label: float, values: bool) -> None:
    shown = np.ma.masked_array(panel.weights, ~panel.support)
    axes.pcolormesh(shown, cmap=style.WEIGHTS, norm=scale, edgecolors="white", linewidth=0.4)
    # Only cells where the query may look have a frame: an empty frame is a zero, no frame at all
    # is the future.
    zeros = np.argwhere(panel.available & ~panel.support)[:, None, ::-1]
    axes.add_collection(
        PolyCollection(
            zeros + _FRAME, facecolors="none", edgecolors=palette.GRID, linewidths=0.4, zorder=2
        )
    )
    if panel.gold is not None:
        for r, k in np.argwhere(panel.gold > 0):
            line, _ = _GOLD[panel.gold[r, k]]
            outline = Rectangle((k + 0.08, r + 0.08), 0.84, 0.84, fill=False, zorder=3)
            outline.set(edgecolor=palette.GOLD, linestyle=line, linewidth=1.2)
            axes.add_patch(outline)
    if values:
        for r, k in np.argwhere(panel.support):
            weight = panel.weights[r, k]
            ink = "white" if scale(weight) > 0.5 else palette.INK
            # A weight that is not zero must not read as zero.
            text = f"{weight:.2f}".removeprefix("0") if weight >= 0.005 else "<.01"
            axes.text(k + 0.5, r + 0.5, text, ha="center", va="center", size=5, color=ink)
    axes.set_xlim(0, len(panel.keys))
    axes.set_ylim(len(panel.rows), 0)
    axes.set_aspect("equal")
    axes.set_xticks(np.arange(len(panel.keys)) + 0.5, panel.keys, rotation=90, size=label)
    axes.set_yticks(np.arange(len(panel.rows)) + 0.5, panel.rows, size=label)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2)
    axes.set_title(panel.title, size=8, pad=4)
    axes.spines[:].set_visible(False)


def _legend(panels: Sequence[Panel]) -> list[Patch]:
    """Only what occurs in the figure."""
    entries: list[Patch] = []
    if any((p.available & ~p.support).any() for p in panels):
        entries.append(Patch(facecolor="white", edgecolor=palette.GRID, label="exactly 0"))
    small = style.WEIGHTS(0.0)
    entries.append(Patch(facecolor=small, edgecolor="white", label="small, but not 0"))
    for level, (line, name) in _GOLD.items():
        if any(p.gold is not None and (p.gold == level).any() for p in panels):
            entries.append(Patch(fill=False, edgecolor=palette.GOLD, linestyle=line, label=name))
    return entries


def gold_cells(gold: Gold, row_words: ArrayLike, key_words: ArrayLike) -> NDArray[np.int8]:
    """Outlines for a matrix: row and key of each cell given as word numbers, −1 for none."""
    rows, keys = np.asarray(row_words), np.asarray(key_words)
    cells = np.zeros((rows.size, keys.size), np.int8)
    for mark, links in ((1, gold.possible), (2, gold.sure)):
        for source, target in links:
            cells[np.ix_(rows == target, keys == source)] = mark
    return cells
