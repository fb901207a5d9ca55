"""Figures from the results of jobs: every number and every pixel drawn was computed by a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onmt_evsoftmax.report import palette
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.statistics import Mean
from onmt_evsoftmax.vae.estimators import ESTIMATORS, in_order, title
from onmt_evsoftmax.vae.experiment import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: What a conditional VAE is asked for.
QUERIES = ("even", "odd")


def draw(
    drawings: Mapping[str, Callable[[Results], Figure]],
    results: Results,
    folder: Path,
    kind: str,
) -> list[Path]:
    """Every drawing of the results into ``folder``; the paths."""
    from onmt_evsoftmax.report import style

    methods = {title(method) for result in results for method in result["methods"]}
    paths = []
    for name, drawing in drawings.items():
        paths.append(folder / f"{name}.{kind}")
        with style.readable(methods, 9):
            try:
                figure = drawing(results)
            except (LookupError, TypeError, ValueError) as error:
                raise UserError(
                    f"the results lack what {name} shows ({error!r}); give the folders of jobs "
                    "as they were written"
                ) from error
            style.save(figure, paths[-1], dpi=150)
    return paths


def _by_method(results: Results) -> dict[str, list[dict[str, Any]]]:
    """Method → its contents, one per seed in order of seed; methods in the registry's order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for result in sorted(results, key=lambda r: r["seed"]):
        for method, content in result["methods"].items():
            found.setdefault(method, []).append({"seed": result["seed"], **content})
    return {method: found[method] for method in in_order(found)}


def _lines(methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Colour, dashes and label of each method's line; an estimator's has dots on it, too."""
    colours = palette.colours(methods)
    for method, colour, dashes in zip(methods, colours, cycle(palette.DASHES), strict=False):
        marker = "o" if method in ESTIMATORS else ""
        style = {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 3}
        yield {**style, "label": title(method)}


def _curve(
    contents: Sequence[dict[str, Any]], time: str, metric: str
) -> tuple[list[float], list[Mean]]:
    """When a metric was evaluated, and its mean over the seeds."""
    entries = [[entry for entry in c["history"] if metric in entry] for c in contents]
    values = zip(*([entry[metric] for entry in part] for part in entries), strict=True)
    return [entry[time] for entry in entries[0]], list(map(Mean.of, values))


def _legend_beside(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


# --- CVAE -----------------------------------------------------------------------------------------


def digits_and_priors(results: Results) -> Figure:
    """Figure 2: bars of p(z | even) and p(z | odd) over the decoded latent classes, by method."""
    from matplotlib.figure import Figure

    methods = _by_method(results)
    # Margins in inches, so that the title stays clear of the columns' with few methods too.
    margin, head = 0.1, 0.6
    height = head + 1.25 * len(methods) + margin
    figure = Figure(figsize=(9, height))
    rows = figure.add_gridspec(
        len(methods), 2, hspace=0.28, wspace=0.08, top=1 - head / height, bottom=margin / height
    )
    colours = palette.colours(list(methods))
    for row, (colour, (method, contents)) in enumerate(zip(colours, methods.items(), strict=True)):
        content = contents[0]
        top = max(map(max, content["prior"])) * 1.1
        for column, query in enumerate(QUERIES):
            prior, support = content["prior"][column], content["support"][column]
            cell = rows[row, column].subgridspec(2, 1, height_ratios=(1, 0.5), hspace=0.04)
            bars, digits = (figure.add_subplot(cell[part]) for part in (0, 1))
            bars.bar(range(len(prior)), prior, color=colour, width=0.75)
            bars.set(xlim=(-0.6, len(prior) - 0.4), ylim=(0, top), xticks=[])
            bars.set_title(f"{query}: {sum(support)} of {len(prior)} classes", fontsize=9, pad=3)
            bars.tick_params(labelleft=column == 0)
            if column == 0:
                bars.set_ylabel(title(method).replace(" ", "\n"))
            for place, (image, kept) in enumerate(zip(content["images"], support, strict=True)):
                digits.imshow(
                    _picture(image),
                    extent=(place - 0.45, place + 0.45, 0, 0.9),
                    cmap="gray_r",
                    vmin=0,
                    vmax=255,
                    alpha=1 if kept else 0.3,
                )
            digits.set(xlim=(-0.6, len(prior) - 0.4), ylim=(0, 0.95))
            digits.axis("off")
    figure.align_ylabels()
    seed = next(iter(methods.values()))[0]["seed"]
    figure.suptitle(
        f"p(z | y) over the decoded latent classes, seed {seed}; faded: classes without mass",
        fontsize=10,
        y=1 - margin / height,
    )
    return figure


def distance_curves(results: Results) -> Figure:
    """Figure 3: label-space W1 and the legacy distance over iterations, mean ± standard error."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.2))
    row = figure.subplots(1, 2)
    methods = _by_method(results)
    titles = {"w1": "W1 on the labels", "legacy": "distance as published"}
    for axes, (metric, label) in zip(row, titles.items(), strict=True):
        for line, contents in zip(_lines(list(methods)), methods.values(), strict=True):
            steps, means = _curve(contents, "step", metric)
            axes.plot(steps, [m.mean for m in means], linewidth=1.6, **line)
            low = [m.mean - (m.error or 0) for m in means]
            high = [m.mean + (m.error or 0) for m in means]
            axes.fill_between(steps, low, high, color=line["color"], alpha=0.2, linewidth=0)
        axes.set(xlabel="iteration", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.grid(color=palette.GRID)
    _legend_beside(row[1])
    seeds = len({result["seed"] for result in results})
    spread = f"mean ± standard error of {seeds} seeds" if seeds > 1 else "one seed"
    figure.suptitle(f"distance to the right digits, {spread}", fontsize=10)
    figure.tight_layout()
    return figure


# --- semi-supervised VAE --------------------------------------------------------------------------


def accuracy_curves(results: Results) -> Figure:
    """Test accuracy and classes decoded per unlabelled image over epochs, mean over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2))
    left, right = figure.subplots(1, 2)
    methods = {m: c for m, c in _by_method(results).items() if c[0]["history"]}
    for line, contents in zip(_lines(list(methods)), methods.values(), strict=True):
        for axes, metric in ((left, "accuracy"), (right, "calls")):
            epochs, means = _curve(contents, "epoch", metric)
            line["markevery"] = max(1, len(epochs) // 10)
            axes.plot(epochs, [m.mean for m in means], linewidth=1.3, **line)
    left.set_ylabel("test accuracy %")
    right.set_ylabel("classes decoded per image")
    right.set_yscale("log")
    right.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    right.minorticks_off()
    for axes in (left, right):
        axes.set_xlabel("epoch after pretraining")
        axes.grid(color=palette.GRID)
    _legend_beside(right)
    figure.tight_layout()
    return figure


# --- VQ-VAE ---------------------------------------------------------------------------------------


def sampled_images(results: Results) -> Figure:
    """Figure 5: images sampled for a few classes, a row per method, five per class."""
    from matplotlib.figure import Figure

    methods = _by_method(results)
    names = next(iter(methods.values()))[0]["classes"]
    figure = Figure(figsize=(2.6 * len(names), 0.6 * len(methods)))
    grid = figure.subplots(len(methods), len(names), squeeze=False)
    for axes, name in zip(grid[0], names, strict=True):
        axes.set_title(name, fontsize=9)
    for row, (method, contents) in zip(grid, methods.items(), strict=True):
        for axes, images in zip(row, contents[0]["samples"], strict=True):
            # Not resampled: SVG and PDF take the pixels as they are, which is a tenth of the bytes.
            pixels = _side_by_side(list(map(_picture, images)))
            axes.imshow(pixels, cmap="gray_r", vmin=0, vmax=255, interpolation="none")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(title(method), rotation=0, ha="right", va="center")
    figure.tight_layout(pad=0.3, h_pad=0.4, w_pad=1.5)
    return figure


def _side_by_side(pictures: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Pictures in a row with a white gap of a pixel."""
    empty = 255 if pictures[0].ndim == 3 else 0
    gap = np.full((pictures[0].shape[0], 1, *pictures[0].shape[2:]), empty, np.uint8)
    parts = [part for picture in pictures for part in (picture, gap)][:-1]
    return np.concatenate(parts, axis=1)


def _picture(image: Any) -> NDArray[np.uint8]:
    """A nested list (channels, height, width) of 0 … 255 as matplotlib wants it."""
    array = np.asarray(image, dtype=np.uint8)
    return array[0] if len(array) == 1 else array.transpose(1, 2, 0)
