"""Results of the benchmark as tables, JSON and a plot of cost against length."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import onmt_evsoftmax
from onmt_evsoftmax import kernels
from onmt_evsoftmax.bench.scaling import exponent
from onmt_evsoftmax.bench.timing import Result
from onmt_evsoftmax.report import table
from onmt_evsoftmax.report.table import Cell, Marked, Table

_PLOTTED = {"length": ("seconds, both passes", 2), "memory": ("bytes, both passes", 1)}


def machine() -> dict[str, Any]:
    """Where the numbers come from."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [line for line in information.read_text().splitlines() if "model name" in line]
        model = names[0].split(":", 1)[1].strip() if names else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "torch": torch.__version__,
        "onmt_evsoftmax": onmt_evsoftmax.__version__,
        "kernels": kernels.backend(),
    }


def _heading(where: dict[str, Any]) -> str:
    """One line on the machine."""
    return ", ".join(f"{key} {value}" for key, value in where.items() if value is not None)


def tables(
    results: Sequence[Result], where: dict[str, Any], titles: Mapping[str, str], extension: str
) -> list[Table]:
    """A table for every part of ``titles``; where they were measured, and how costs grow.

    A README gets a line for every case and a column for everything that was compared, text a line
    for every comparison, with its target.
    """
    found = {part: [r for r in results if r.part == part] for part in titles}
    make = _pivoted if extension == ".md" else _listed
    tables = [make(f"{part}: {titles[part]}", found[part]) for part in titles]
    return [*tables[:-1], replace(tables[-1], notes=[_heading(where), *_growth(results)])]


def _listed(title: str, results: Sequence[Result]) -> Table:
    """A line for every comparison: targets in parentheses, ``!`` where one is missed."""
    rows = [
        [
            "!" if r.missed else "",
            r.case,
            r.name,
            r.peer,
            r.unit,
            _ratio(r.forward, r.target_forward),
            _ratio(r.both, r.target_both),
            r.note,
        ]
        for r in results
    ]
    return Table(title, ["", "case", "what", "of", "unit", "forward", "both passes", ""], rows, 5)


def _pivoted(title: str, results: Sequence[Result]) -> Table:
    """A line for every case, a column for everything that was compared."""
    names = list(dict.fromkeys(r.name for r in results))
    cells = {(r.case, r.name): _cell(r) for r in results}
    rows = [
        [case, *(cells.get((case, name), "–") for name in names)]
        for case in dict.fromkeys(r.case for r in results)
    ]
    passes = "forward / both passes" if results[0].forward is not None else "in all"
    peers = " or ".join(dict.fromkeys(r.peer for r in results))
    title += f"; {results[0].unit} as a ratio to {peers}, {passes}"
    return Table(title, ["", *names], rows)


def _cell(r: Result) -> Cell:
    """Ratios; bold where a target is missed, followed by the target."""
    ratios = [(r.forward, r.target_forward), (r.both, r.target_both)]
    shown = " / ".join(_ratio(value, None) for value, _ in ratios if value is not None)
    if not r.missed:
        return shown
    targets = " / ".join(f"{target:g}" if target else "–" for _, target in ratios)
    return Marked(shown, bold=True, after=f" (target {targets})")


def _ratio(value: float | None, target: float | None) -> str:
    if value is None:
        return "–"
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return text if target is None else f"{text} ({target:g})"


def _curves(results: Sequence[Result], part: str) -> dict[str, tuple[list[int], list[float]]]:
    """Name → (lengths, costs of both passes) of the parts ``length`` and ``memory``."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for r in results:
        if r.part != part or r.both is None or r.peer_both is None:
            continue
        length = int(r.case.split(",")[-1])
        for name, cost in ((r.peer, r.peer_both), (r.name, r.both * r.peer_both)):
            lengths, costs = found.setdefault(name, ([], []))
            if length not in lengths:
                lengths.append(length)
                costs.append(cost)
    return found


def _growth(results: Sequence[Result]) -> list[str]:
    """Sentences on how costs grow, from length 1024 on, where start-up no longer shows."""
    sentences = []
    for part, (what, expected) in _PLOTTED.items():
        for place, (name, (lengths, costs)) in enumerate(_curves(results, part).items()):
            long = [(t, c) for t, c in zip(lengths, costs, strict=True) if t >= 1024 and c > 0]
            if len(long) >= 2:
                power = exponent([t for t, _ in long], [c for _, c in long])
                # The peer, which comes first, and explicit attention have no target.
                wanted = f" ({expected} expected)" if place and "," not in name else ""
                sentences.append(f"{name}: {what} grow as T^{power:.2f}{wanted}")
    return sentences


def as_json(results: Sequence[Result], where: dict[str, Any]) -> str:
    """Everything that was measured, and on which machine."""
    records = [{**asdict(result), "missed": result.missed} for result in results]
    return table.as_json({"machine": where, "results": records})


def draw(results: Sequence[Result], path: Path, ending: str) -> None:
    """Cost against length."""
    from matplotlib.figure import Figure

    from onmt_evsoftmax.report import palette, style

    panels = {part: curves for part in _PLOTTED if (curves := _curves(results, part))}
    with style.readable([]):
        figure = Figure(figsize=(3.4 * len(panels), 2.7), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (part, curves) in zip(axes, panels.items(), strict=True):
            # The peer, which comes first, is softmax attention; variants follow a comma.
            normalizers = ["softmax", *(name.partition(",")[0] for name in list(curves)[1:])]
            colours = palette.colours(normalizers)
            for colour, (name, (lengths, costs)) in zip(colours, curves.items(), strict=True):
                axis.loglog(lengths, costs, "o-", color=colour, label=name, base=2)
            ticks = sorted({length for lengths, _ in curves.values() for length in lengths})
            axis.set_xlabel("length T (queries and keys)")
            axis.set_ylabel(_PLOTTED[part][0])
            axis.set_xticks(ticks, [str(length) for length in ticks])
            axis.set_yscale("log", base=10)
            axis.yaxis.set_major_formatter("{x:g}")
            axis.legend()
        style.save(figure, path, ending)
