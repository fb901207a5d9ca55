"""Every picture of README and docs, each with its dark twin: ``make figures``.

Pictures of attention come from the finished demo (``make demo``) and, like the counts, from the
files in ``docs/results``; charts of speed from tables of ``docs/performance.md``, the simplex from
the normalizers themselves.
"""

from __future__ import annotations

import base64
import colorsys
import io
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from onmt_evsoftmax.normalizers.registry import colour_of, get_record, own_records, title_of
from onmt_evsoftmax.paper.figure1 import planar
from onmt_evsoftmax.report import style
from onmt_evsoftmax.report.palette import INK

DOCS = Path(__file__).parents[1]
IMAGES = DOCS / "images"
DEMO = Path(sys.argv[1] if len(sys.argv) > 1 else DOCS.parent / "runs" / "demo")
RESULTS = DOCS / "results" / "multi30k"
#: Experiment with VAEs in docs/results → the figure of it that is shown.
VAES = {"cvae": "figure3", "ssvae": "accuracy", "vqvae": "figure5"}
#: The seed whose models are drawn, on the first test sentence.
DRAWN = "seed2"
#: A short test sentence of the demo whose verb moves to the end; counted from 1.
SENTENCE = 9
#: A picture within an SVG.
_EMBEDDED = r"data:image/png;base64,([^\"]+)"
#: Test sentences on the attention page.
PAGE = "1-24"


# --- dark mode ------------------------------------------------------------------------------------


def dark(svg: str, photographs: bool = False) -> str:
    """The same drawing for a dark page: lightness turned round, hue kept, no white background.

    ``photographs`` in it stay as they are.
    """
    svg = re.sub(r"fill: ?#ffffff", "fill: none", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda match: _turned(match[0]), svg)
    if photographs:
        return svg
    return re.sub(_EMBEDDED, lambda match: _turned_image(match[1]), svg)


def _turned(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    known = colour in {record.colour for record in own_records()}
    # Black becomes a light grey, white the grey of a dark page; a normalizer keeps its colour.
    light = max(light, 0.55) if known else 0.92 - 0.82 * light
    turned = colorsys.hls_to_rgb(hue, light, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in turned)


def _turned_image(encoded: str) -> str:
    pixels = np.asarray(_opened(encoded))
    colours = {tuple(pixel) for row in pixels for pixel in row}
    table = {pixel: _turned("#{:02x}{:02x}{:02x}".format(*pixel)) for pixel in colours}
    turned = np.array(
        [[[int(table[tuple(p)][i : i + 2], 16) for i in (1, 3, 5)] for p in row] for row in pixels]
    )
    return _embedded(Image.fromarray(turned.astype(np.uint8)))


def _opened(encoded: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")


def _embedded(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def keep(path: Path, name: str, photographs: bool = False) -> None:
    """Put a finished SVG among the pictures, with its dark twin."""
    text = _shorter(path.read_text(encoding="utf-8"))
    if photographs:
        text = re.sub(_EMBEDDED, lambda match: _embedded(_opened(match[1]).quantize(64)), text)
    (IMAGES / f"{name}.svg").write_text(text, encoding="utf-8")
    (IMAGES / f"{name}-dark.svg").write_text(dark(text, photographs), encoding="utf-8")
    print(f"docs/images/{name}.svg {len(text) / 1000:.0f} kB")


def _shorter(svg: str) -> str:
    """Coordinates to a hundredth of a point, and no comments: half the size, the same picture."""

    def rounded(match: re.Match[str]) -> str:
        value = float(match[0])
        return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 1 else f"{value:.6g}"

    svg = re.sub(r"\n?<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r" <metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    return re.sub(r"-?\d+\.\d{3,}", rounded, svg)


# --- from the demo --------------------------------------------------------------------------------


def run(*words: str | Path) -> None:
    """One of our commands, as a reader would type it."""
    print("$", *words, file=sys.stderr)
    subprocess.run([str(word) for word in words], check=True)


def from_demo(folder: Path) -> None:
    """What the demo's two models attend to."""
    test, gold = DEMO / "data" / "test", DEMO / "tokenised" / "test.align"
    models = [
        f"{n}={DEMO}/{n.replace('-', '')}-seed1/average.pt" for n in ("softmax", "ev-softmax")
    ]
    run(
        "onmt_trace_attention",
        "--model",
        *models,
        "--src",
        f"{test}.en",
        "--tgt",
        f"{test}.de",
        "-o",
        f"{folder}/",
        "--quiet",
    )
    traces = [folder / "softmax.trace", folder / "ev-softmax.trace"]
    plot = ["onmt_plot_attention", "--quiet"]
    chosen = ["--sentence", str(SENTENCE), "--level", "word"]
    run(*plot, *traces, *chosen, "-o", folder / "attention.svg")
    run(*plot, traces[1], *chosen, "--head", "all", "--align", gold, "-o", folder / "sentence.svg")
    run("onmt_count_attended", traces[1], "--level", "word", "--quiet", "-o", folder / "heads.svg")
    run(
        *plot,
        *traces,
        "--sentence",
        PAGE,
        "--align",
        gold,
        "--title",
        "The demo's attention",
        "-o",
        DOCS / "_static" / "demo-attention.html",
    )
    keep(folder / "attention.svg", "attention")
    keep(folder / "sentence.svg", "heads-of-a-sentence")
    keep(folder / "heads.svg", "heads")


# --- from the results of the study ----------------------------------------------------------------


def from_results(folder: Path) -> None:
    """Multi30k: one sentence under all normalizers, and what every run attends to."""
    scores = json.loads((RESULTS / "scores.json").read_text(encoding="utf-8"))
    names = list(scores["systems"])
    traces = [f"{title_of(name)}={RESULTS}/{name}-{DRAWN}/first.trace" for name in names]
    chosen = ["--sentence", "1", "--level", "word", "--columns", "2", "--quiet"]
    run("onmt_plot_attention", *traces, *chosen, "-o", folder / "five.svg")
    files = [f"{n}={RESULTS / t}" for n, texts in scores["systems"].items() for t in texts]
    attended = [re.sub(r"test\.de$", "attended.json", file) for file in files]
    study = ["onmt_evsoftmax", "study", "--scores", RESULTS / "scores.json"]
    run(*study, "--attended", *attended, "-o", folder / "multi30k.svg")
    keep(folder / "five.svg", "five-normalizers")
    keep(folder / "multi30k.svg", "multi30k")


def from_vaes(folder: Path) -> None:
    """One figure of each experiment with VAEs that has results."""
    for name, figure in VAES.items():
        results = DOCS / "results" / name
        if not results.is_dir():
            print(f"{results} is not there: no figure of it", file=sys.stderr)
            continue
        run("onmt_evsoftmax", "vae", "figures", results, "-o", folder / name, "--format", "svg")
        keep(folder / name / f"{figure}.svg", name, photographs=name == "vqvae")


# --- from mathematics -----------------------------------------------------------------------------


def simplex(path: Path) -> None:
    """Rays of scores on the simplex, one panel per normalizer."""
    records = [record for record in own_records() if record.trained_as is None]
    settings: dict[str, Any] = {"entmax": {"alpha": 1.25}}
    titles = {record.name: record.title for record in records} | {"entmax": "entmax, α = 1.25"}
    with style.readable(list(titles.values()), 9):
        figure = Figure(figsize=(6.4, 4.3), layout="constrained")
        for axes, record in zip(figure.subplots(2, 3).flat, records, strict=True):
            corners = [planar(corner) for corner in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0))]
            axes.plot(*zip(*corners, strict=True), color=INK, linewidth=0.8)
            for turn in range(24):
                angle = 2 * math.pi * (turn + 0.5) / 24
                ray = torch.tensor(
                    [
                        math.cos(angle),
                        math.cos(angle - 2 * math.pi / 3),
                        math.cos(angle + 2 * math.pi / 3),
                    ],
                    dtype=torch.float64,
                )
                rows = torch.linspace(0, 4, 81, dtype=torch.float64)[:, None] * ray
                p = get_record(record.name).function(rows, **settings.get(record.name, {}))
                way = _thinned(np.array([planar(row) for row in p.tolist()]))
                axes.plot(*way.T, color=record.colour, linewidth=1)
                axes.plot(*planar(p[20].tolist()), "o", color=record.colour, markersize=3)
            axes.set_title(titles[record.name])
            axes.set_aspect("equal")
            axes.axis("off")
        style.save(figure, path)


def _thinned(way: np.ndarray) -> np.ndarray:
    """Without points that a straight line to the next but one passes anyway."""
    kept = [way[0]]
    for before, here in itertools.pairwise(way[1:]):
        (ax, ay), (bx, by) = before - kept[-1], here - kept[-1]
        if abs(ax * by - ay * bx) > 2e-4:
            kept.append(before)
    return np.array([*kept, way[-1]])


# --- from the tables of the benchmark -------------------------------------------------------------


def table_after(heading: str) -> dict[str, dict[str, str]]:
    """Row → column → text of the first table below a heading of docs/performance.md."""
    text = (DOCS / "performance.md").read_text(encoding="utf-8").partition(heading)[2]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    end = next((i for i, row in enumerate(cells) if i and len(row) != len(cells[0])), len(cells))
    head, _, *rows = cells[:end]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows if row[0] != head[0]}


def speed(path: Path) -> None:
    """Time of both passes relative to torch.softmax, one dot per shape."""
    table = table_after("## Row normalizers")
    shapes = list(table)
    columns = [name for name in next(iter(table.values())) if "masked" not in name]
    with style.readable([*columns, *shapes], 9):
        figure = Figure(figsize=(5.6, 2.5), layout="constrained")
        axes = figure.subplots()
        for row, column in enumerate(columns):
            name = column.rpartition(" ")[2]
            values = [float(table[shape][column].rpartition("/")[2]) for shape in shapes]
            known = "library" in column
            axes.plot(
                values,
                [row] * len(values),
                "D" if known else "o",
                color=colour_of(name),
                markersize=7,
                alpha=0.75,
                markerfacecolor="none" if known else colour_of(name),
            )
        axes.set_xscale("log")
        axes.set_xticks([0.3, 1, 3, 10, 30], ["0.3", "1", "3", "10", "30"])
        axes.minorticks_off()
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        names = [
            f"{title_of(c.rpartition(' ')[2])}{' (entmax library)' if 'lib' in c else ''}"
            for c in columns
        ]
        axes.set_yticks(range(len(columns)), names)
        axes.invert_yaxis()
        axes.set_xlabel("time of both passes, torch.softmax = 1 (less is faster)")
        style.save(figure, path)


def attention_speed(path: Path) -> None:
    """Fused attention relative to torch's scaled_dot_product_attention."""
    table = table_after("## Attention")
    shapes = list(table)
    columns = list(next(iter(table.values())))
    with style.readable([*columns, *shapes], 9):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.subplots()
        for index, column in enumerate(columns):
            colour, mark = [colour_of("evsoftmax"), INK][index % 2], ["o", "x"][index % 2]
            found = [(row, table[s][column].rpartition("/")[2]) for row, s in enumerate(shapes)]
            points = [(float(text), row) for row, text in found if text.strip(" –")]
            axes.plot(
                *zip(*points, strict=True),
                mark,
                color=colour,
                markersize=6,
                label=column,
                linestyle="",
            )
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xlim(0, None)
        axes.set_yticks(range(len(shapes)), shapes)
        axes.invert_yaxis()
        axes.set_xlabel("time of both passes, SDPA = 1 (less is faster)")
        axes.legend(loc="lower right")
        style.save(figure, path)


def main() -> None:
    """Draw them all."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for draw, picture in (
            (simplex, "simplex"),
            (speed, "speed"),
            (attention_speed, "attention-speed"),
        ):
            draw(folder / f"{picture}.svg")
            keep(folder / f"{picture}.svg", picture)
        from_results(folder)
        from_vaes(folder)
        if not (DEMO / "table.txt").exists():
            sys.exit("the pictures of attention need the finished demo: run `make demo` first")
        from_demo(folder)


if __name__ == "__main__":
    main()
