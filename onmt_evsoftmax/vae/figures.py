"""Figures from the results of jobs: every number and every pixel drawn was computed by a job."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.vae.table import TITLES

Results = list[dict[str, Any]]

#: Inches of white around a figure: with less, what is drawn last seems cut off on a screen.
MARGIN = 0.25

#: Okabe and Ito's colours and distinct dashes: readable in grey and by the colour-blind.
STYLES: dict[str, tuple[str, Any]] = {
    "softmax": ("#E69F00", "--"),
    "sparsemax": ("#D55E00", ":"),
    "entmax15": ("#56B4E9", "-."),
    "posthoc": ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
    "evsoftmax": ("#009E73", "-"),
}


def draw(results: Results, folder: Path, kind: str = "png") -> list[Path]:
    """Every figure of the results' experiment into ``folder``; their paths."""
    import matplotlib

    matplotlib.use("Agg")
    drawings = DRAWINGS[results[0]["experiment"]]
    return [
        _save(drawing(results), folder / f"{name}.{kind}") for name, drawing in drawings.items()
    ]


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    with replacing(path) as temporary:
        # "tight" cuts off whatever margin the figure has, so the border has to be given here.
        figure.savefig(
            temporary, format=path.suffix[1:], dpi=150, bbox_inches="tight", pad_inches=MARGIN
        )
    pyplot.close(figure)
    return path


def _by_method(results: Results) -> dict[str, list[dict[str, Any]]]:
    """Method → its contents, one per seed in order of seed; methods in the paper's order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for result in sorted(results, key=lambda r: r["seed"]):
        for method, content in result["methods"].items():
            found.setdefault(method, []).append({"seed": result["seed"], **content})
    order = [m for m in TITLES if m in found] + [m for m in found if m not in TITLES]
    return {method: found[method] for method in order}


def _colour(method: str) -> str:
    return STYLES.get(method, ("#444444", "-"))[0]


# --- CVAE -----------------------------------------------------------------------------------------


def digits_and_priors(results: Results) -> Any:
    """Figure 2: bars of p(z | even) and p(z | odd) over the decoded latent classes, by method."""
    from matplotlib import pyplot

    methods = _by_method(results)
    # Margins in inches, so that the title stays clear of the columns' with few methods too.
    margin, head = 0.1, 0.6
    height = head + 1.25 * len(methods) + margin
    figure = pyplot.figure(figsize=(9, height))
    top, bottom = 1 - head / height, margin / height
    outer = figure.add_gridspec(len(methods), 2, hspace=0.28, wspace=0.08, top=top, bottom=bottom)
    for row, (method, contents) in enumerate(methods.items()):
        content = contents[0]
        top = max(map(max, content["prior"])) * 1.1
        for column, query in enumerate(("even", "odd")):
            prior, support = content["prior"][column], content["support"][column]
            cell = outer[row, column].subgridspec(2, 1, height_ratios=(1, 0.5), hspace=0.04)
            bars, digits = (figure.add_subplot(cell[part]) for part in (0, 1))
            bars.bar(range(len(prior)), prior, color=_colour(method), width=0.75)
            bars.set(xlim=(-0.6, len(prior) - 0.4), ylim=(0, top), xticks=[])
            bars.set_title(f"{query}: {sum(support)} of {len(prior)} classes", fontsize=9, pad=3)
            bars.spines[["top", "right"]].set_visible(False)
            bars.tick_params(labelleft=column == 0, labelsize=8)
            if column == 0:
                bars.set_ylabel(TITLES.get(method, method).replace(" ", "\n"), fontsize=9)
            for place, (image, kept) in enumerate(zip(content["images"], support, strict=True)):
                box = (place - 0.45, place + 0.45, 0, 0.9)
                alpha = 1 if kept else 0.3
                digits.imshow(
                    _picture(image), extent=box, cmap="gray_r", vmin=0, vmax=255, alpha=alpha
                )
            digits.set(xlim=(-0.6, len(prior) - 0.4), ylim=(0, 0.95))
            digits.axis("off")
        figure.align_ylabels()
    seed = next(iter(methods.values()))[0]["seed"]
    title = f"p(z | y) over the decoded latent classes, seed {seed}; faded: classes without mass"
    figure.suptitle(title, fontsize=10, y=1 - margin / height)
    return figure


def distance_curves(results: Results) -> Any:
    """Figure 3: label-space W1 and the legacy distance over iterations, mean ± standard error."""
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, 2, figsize=(10.5, 3.2))
    titles = {"w1": "W1 on the labels", "legacy": "distance as published"}
    for axes, (metric, title) in zip(row, titles.items(), strict=True):
        for method, contents in _by_method(results).items():
            steps = [entry["step"] for entry in contents[0]["history"]]
            curves = [[entry[metric] for entry in c["history"]] for c in contents]
            means, errors = zip(*(_mean_error(v) for v in zip(*curves, strict=True)), strict=True)
            colour, dashes = STYLES.get(method, ("#444444", "-"))
            label = TITLES.get(method, method)
            axes.plot(steps, means, color=colour, linestyle=dashes, label=label, linewidth=1.6)
            low = [m - e for m, e in zip(means, errors, strict=True)]
            high = [m + e for m, e in zip(means, errors, strict=True)]
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_xlabel("iteration")
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    row[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    seeds = len({result["seed"] for result in results})
    spread = f"mean ± standard error of {seeds} seeds" if seeds > 1 else "one seed"
    figure.suptitle(f"distance to the right digits, {spread}", fontsize=10)
    figure.tight_layout()
    return figure


# --- semi-supervised VAE --------------------------------------------------------------------------


def accuracy_curves(results: Results) -> Any:
    """Test accuracy and decoder calls per unlabelled image over epochs, mean over seeds."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2))
    colours = pyplot.rcParams["axes.prop_cycle"].by_key()["color"]
    methods = {m: c for m, c in _by_method(results).items() if c[0]["history"]}
    for number, (method, contents) in enumerate(methods.items()):
        colour, dashes = STYLES.get(method, (colours[number % 10], (0, (1, 1))))
        style = {"color": colour, "linestyle": dashes, "label": TITLES.get(method, method)}
        for axes, metric in ((left, "accuracy"), (right, "calls")):
            entries = [[e for e in c["history"] if metric in e] for c in contents]
            epochs = [entry["epoch"] for entry in entries[0]]
            values = zip(*([e[metric] for e in part] for part in entries), strict=True)
            axes.plot(epochs, [_mean_error(v)[0] for v in values], linewidth=1.5, **style)
    left.set_ylabel("test accuracy %")
    right.set_ylabel("decoder calls per image")
    right.set_yscale("log")
    right.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    right.minorticks_off()
    for axes in (left, right):
        axes.set_xlabel("epoch after pretraining")
        axes.grid(alpha=0.25)
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    return figure


# --- VQ-VAE ---------------------------------------------------------------------------------------


def sampled_images(results: Results) -> Any:
    """Figure 5: images sampled for a few classes, a row per method, five per class."""
    from matplotlib import pyplot

    methods = _by_method(results)
    names = next(iter(methods.values()))[0]["classes"]
    figure, grid = pyplot.subplots(
        len(methods), len(names), figsize=(2.6 * len(names), 0.6 * len(methods)), squeeze=False
    )
    for axes, name in zip(grid[0], names, strict=True):
        axes.set_title(name, fontsize=9)
    for row, (method, contents) in zip(grid, methods.items(), strict=True):
        for axes, images in zip(row, contents[0]["samples"], strict=True):
            strip = numpy_row([_picture(image) for image in images])
            axes.imshow(strip, cmap="gray_r", vmin=0, vmax=255)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        label = TITLES.get(method, method)
        row[0].set_ylabel(label, fontsize=9, rotation=0, ha="right", va="center")
    figure.tight_layout(pad=0.3, h_pad=0.4, w_pad=1.5)
    return figure


def numpy_row(pictures: list[Any]) -> Any:
    """Pictures side by side with a white gap of a pixel."""
    import numpy

    empty = 255 if pictures[0].ndim == 3 else 0
    gap = numpy.full((pictures[0].shape[0], 1, *pictures[0].shape[2:]), empty, numpy.uint8)
    parts = [part for picture in pictures for part in (picture, gap)][:-1]
    return numpy.concatenate(parts, axis=1)


# --- shared ---------------------------------------------------------------------------------------


def _mean_error(values: tuple[float, ...]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _picture(image: Any) -> Any:
    """A nested list (channels, height, width) of 0 … 255 as matplotlib wants it."""
    import numpy

    array = numpy.asarray(image, dtype=numpy.uint8)
    return array[0] if len(array) == 1 else array.transpose(1, 2, 0)


DRAWINGS: dict[str, dict[str, Callable[[Results], Any]]] = {
    "cvae": {"figure2": digits_and_priors, "figure3": distance_curves},
    "ssvae": {"accuracy": accuracy_curves},
    "vqvae": {"figure5": sampled_images},
}
