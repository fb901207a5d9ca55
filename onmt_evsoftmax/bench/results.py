"""Results of the benchmark as text, Markdown, JSON and a plot of cost against length."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import onmt_evsoftmax
from onmt_evsoftmax import kernels
from onmt_evsoftmax.bench.scaling import exponent
from onmt_evsoftmax.bench.timing import Result

_PLOTTED = {"length": ("seconds, both passes", 2), "memory": ("bytes, both passes", 1)}
_COLOURS = {
    "torch SDPA": "#E69F00",
    "evsoftmax": "#009E73",
    "evsoftmax, explicit": "#56B4E9",
}


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


def text(results: Sequence[Result], where: dict[str, Any], titles: Mapping[str, str]) -> str:
    """A table for every part of ``titles``, and how costs grow."""
    blocks = [_heading(where)]
    for part, title in titles.items():
        blocks += [f"{part}: {title}", _table([r for r in results if r.part == part])]
    return "\n\n".join([*blocks, "\n".join(_growth(results))]).rstrip() + "\n"


def markdown(results: Sequence[Result], where: dict[str, Any], titles: Mapping[str, str]) -> str:
    """The same for a README: a line for every case, a column for everything that was compared."""
    blocks = [_heading(where)]
    for part, title in titles.items():
        found = [r for r in results if r.part == part]
        names = list(dict.fromkeys(r.name for r in found))
        cells = {(r.case, r.name): _cell(r) for r in found}
        lines = [["", *names], ["---", *["---:"] * len(names)]]
        for case in dict.fromkeys(r.case for r in found):
            lines.append([case, *(cells.get((case, name), "–") for name in names)])
        if found:
            passes = "forward / both passes" if found[0].forward is not None else "in all"
            title += f"; {found[0].unit} as a ratio to {found[0].peer}, {passes}"
        blocks += [f"**{part}**: {title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return (
        "\n\n".join([*blocks, "\n".join(f"- {line}" for line in _growth(results))]).rstrip() + "\n"
    )


def _cell(r: Result) -> str:
    """Ratios, bold where a target is missed, which stands behind them."""
    ratios = [(r.forward, r.target_forward), (r.both, r.target_both)]
    shown = " / ".join(_ratio(value, None) for value, _ in ratios if value is not None)
    if not r.missed:
        return shown
    targets = " / ".join(f"{target:g}" if target else "–" for _, target in ratios)
    return f"**{shown}** (target {targets})"


def _ratio(value: float | None, target: float | None) -> str:
    if value is None:
        return "–"
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return text if target is None else f"{text} ({target:g})"


def _table(results: Sequence[Result]) -> str:
    """Aligned lines; targets in parentheses, ``!`` where one is missed."""
    head = ("", "case", "what", "of", "forward", "both passes", "unit", "")
    lines = [head]
    for r in results:
        lines.append(
            (
                "!" if r.missed else "",
                r.case,
                r.name,
                r.peer,
                _ratio(r.forward, r.target_forward),
                _ratio(r.both, r.target_both),
                r.unit,
                r.note,
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


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
        for name, (lengths, costs) in _curves(results, part).items():
            long = [(t, c) for t, c in zip(lengths, costs, strict=True) if t >= 1024 and c > 0]
            if len(long) >= 2:
                power = exponent([t for t, _ in long], [c for _, c in long])
                wanted = f" ({expected} expected)" if name == "evsoftmax" else ""
                sentences.append(f"{name}: {what} grow as T^{power:.2f}{wanted}")
    return sentences


def as_json(results: Sequence[Result], where: dict[str, Any]) -> str:
    """Everything that was measured, and on which machine."""
    records = [{**asdict(result), "missed": result.missed} for result in results]
    return json.dumps({"machine": where, "results": records}, indent=1, ensure_ascii=False) + "\n"


def draw(results: Sequence[Result], path: Path, kind: str) -> None:
    """Cost against length, as ``kind`` (png, svg or pdf)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [part for part in _PLOTTED if _curves(results, part)]
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.6 * len(panels), 3.6), squeeze=False, layout="constrained"
    )
    for axis, part in zip(axes[0], panels, strict=True):
        ticks: set[int] = set()
        for name, (lengths, costs) in _curves(results, part).items():
            ticks.update(lengths)
            axis.loglog(lengths, costs, "o-", color=_COLOURS.get(name), label=name, base=2)
        axis.set_xlabel("length T (queries and keys)")
        axis.set_ylabel(_PLOTTED[part][0])
        axis.set_xticks(sorted(ticks), [str(length) for length in sorted(ticks)])
        axis.set_yscale("log", base=10)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(path, format=kind, dpi=200)
    pyplot.close(figure)
