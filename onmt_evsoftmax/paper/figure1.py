"""Figure 1 of the paper: where each normalizer sends one point, drawn on the simplex of R³."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from onmt_evsoftmax.normalizers.registry import colour_of, records, title_of
from onmt_evsoftmax.report import style
from onmt_evsoftmax.report.console import command_line, real
from onmt_evsoftmax.report.outputs import FIGURES, check_outputs
from onmt_evsoftmax.report.palette import INK, MARKERS

#: The point of the paper's figure.
FIGURE1_POINT = (0.4, 1.4, -0.8)


def normalize_point(point: Sequence[float]) -> dict[str, Tensor]:
    """Name → probabilities (3,) of every normalizer that has nothing to be chosen."""
    scores = torch.tensor(point, dtype=torch.float64)
    return {
        record.name: record.function(scores)
        for record in records()
        if record.trained_as is None and all(p.training_only for p in record.parameters)
    }


def planar(point: Sequence[float]) -> tuple[float, float]:
    """Coordinates in the plane v₁ + v₂ + v₃ = 1, the corners at unit distance from the centre."""
    first, second, third = point
    return (third - second) * math.sqrt(3) / 2, first - (second + third) / 2


def draw(point: Sequence[float], path: str | Path) -> None:
    """Draw the figure; the ending of ``path`` (png, svg, pdf) chooses the format."""
    marks = {"input": (list(point), INK)}
    for name, p in normalize_point(point).items():
        marks[title_of(name)] = (p.tolist(), colour_of(name))
    with style.readable(marks):
        style.save(_figure(marks), path)


def _figure(marks: Mapping[str, tuple[list[float], str]]) -> Figure:
    """Title → the point and its colour."""
    figure = Figure(figsize=(5.2, 3.2))
    axes = figure.subplots()
    corners = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    outline = [planar(corner) for corner in (*corners, corners[0])]
    axes.plot(*zip(*outline, strict=True), color="#444444", linewidth=1)
    places = [((0, 8), "center", "bottom"), ((0, -9), "center", "top"), ((0, -9), "center", "top")]
    for corner, (offset, horizontal, vertical) in zip(corners, places, strict=True):
        axes.annotate(
            str(corner),
            planar(corner),
            xytext=offset,
            textcoords="offset points",
            ha=horizontal,
            va=vertical,
        )
    for shape, (title, (value, colour)) in zip(cycle(MARKERS), marks.items(), strict=False):
        label = f"{title}  ({', '.join(f'{x:.2f}' for x in value)})"
        axes.plot(*planar(value), shape, color=colour, markersize=8, label=label, clip_on=False)
    axes.set_aspect("equal")
    axes.margins(0.12)
    axes.axis("off")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of the point's images and draw them."""
    parser = command_line(
        "Where each normalizer sends a point of R³, as the paper's Figure 1.",
        "example: onmt_evsoftmax figure1 -o figure1.svg",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help=".png, .svg or .pdf")
    parser.add_argument(
        "--point",
        type=real(-1e6, 1e6),
        nargs=3,
        default=FIGURE1_POINT,
        metavar="V",
        help="three scores (default: the paper's)",
    )
    arguments = parser.parse_args(argv)
    check_outputs([arguments.output], FIGURES)
    print(f"{'v':<10}", *(f"{v:8.4f}" for v in arguments.point))
    for name, p in normalize_point(arguments.point).items():
        print(f"{name:<10}", *(f"{v:8.4f}" for v in p.tolist()))
    draw(arguments.point, arguments.output)
    print(arguments.output)
    return 0
