"""Figure 1 of the paper: where each normalizer sends one point, drawn on the simplex of R³."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers.registry import get_normalizer
from onmt_evsoftmax.report.console import UserError, command_line
from onmt_evsoftmax.report.files import replacing

#: The point of the paper's figure.
FIGURE1_POINT = (0.4, 1.4, -0.8)
NORMALIZERS = ("softmax", "sparsemax", "entmax15", "evsoftmax")

#: Okabe and Ito's colours and distinct shapes: readable in grey and by the colour-blind.
_MARKS = {
    "input": ("#000000", "o"),
    "softmax": ("#E69F00", "p"),
    "sparsemax": ("#D55E00", "^"),
    "entmax15": ("#56B4E9", "D"),
    "evsoftmax": ("#009E73", "s"),
}


def normalize_point(point: Sequence[float]) -> dict[str, Tensor]:
    """Name → probabilities (3,) of each normalizer of the figure."""
    scores = torch.tensor(point, dtype=torch.float64)
    return {name: get_normalizer(name)(scores) for name in NORMALIZERS}


def planar(point: Sequence[float]) -> tuple[float, float]:
    """Coordinates in the plane v₁ + v₂ + v₃ = 1, the corners at unit distance from the centre."""
    first, second, third = point
    return (third - second) * math.sqrt(3) / 2, first - (second + third) / 2


def draw(point: Sequence[float], path: str | Path) -> None:
    """Draw the figure; the extension of ``path`` (png, svg, pdf) chooses the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kind = Path(path).suffix.lstrip(".")
    figure, axes = pyplot.subplots(figsize=(5.2, 3.2))
    supported = figure.canvas.get_supported_filetypes()
    if kind not in supported:
        pyplot.close(figure)
        raise UserError(f"{path}: cannot draw {kind or 'a file without extension'!r}; use .svg")
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
    points = {"input": point, **{k: p.tolist() for k, p in normalize_point(point).items()}}
    for name, value in points.items():
        colour, shape = _MARKS[name]
        label = f"{name}  ({', '.join(f'{x:.2f}' for x in value)})"
        axes.plot(*planar(value), shape, color=colour, markersize=8, label=label, clip_on=False)
    axes.set_aspect("equal")
    axes.margins(0.12)
    axes.axis("off")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=200, bbox_inches="tight")
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of the point's images and draw them."""
    parser = command_line(
        "Where each normalizer sends a point of R³, as the paper's Figure 1.",
        "example: onmt_evsoftmax figure1 -o figure1.svg",
        "onmt_evsoftmax figure1",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help=".png, .svg or .pdf")
    parser.add_argument("--point", type=float, nargs=3, default=FIGURE1_POINT, metavar="V")
    arguments = parser.parse_args(argv)
    print(f"{'v':<10}", *(f"{v:8.4f}" for v in arguments.point))
    for name, p in normalize_point(arguments.point).items():
        print(f"{name:<10}", *(f"{v:8.4f}" for v in p.tolist()))
    draw(arguments.point, arguments.output)
    print(arguments.output)
    return 0
