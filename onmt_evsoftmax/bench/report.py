"""Results of the benchmark as a table, as JSON and as a plot of cost against length."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import onmt_evsoftmax
from onmt_evsoftmax import kernels
from onmt_evsoftmax.bench.scaling import exponent
from onmt_evsoftmax.bench.timing import Result
from onmt_evsoftmax.console import UserError
from onmt_evsoftmax.files import replacing

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


def heading(where: dict[str, Any]) -> str:
    """One line on the machine."""
    return ", ".join(f"{key} {value}" for key, value in where.items() if value is not None)


def _ratio(value: float | None, target: float | None) -> str:
    if value is None:
        return "–"
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return text if target is None else f"{text} ({target:g})"


def table(results: Sequence[Result]) -> str:
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


def curves(results: Sequence[Result], part: str) -> dict[str, tuple[list[int], list[float]]]:
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


def growth(results: Sequence[Result]) -> list[str]:
    """Sentences on how costs grow, from length 1024 on, where start-up no longer shows."""
    sentences = []
    for part, (what, expected) in _PLOTTED.items():
        for name, (lengths, costs) in curves(results, part).items():
            long = [(t, c) for t, c in zip(lengths, costs, strict=True) if t >= 1024 and c > 0]
            if len(long) >= 2:
                power = exponent([t for t, _ in long], [c for _, c in long])
                wanted = f" ({expected} expected)" if name == "evsoftmax" else ""
                sentences.append(f"{name}: {what} grow as T^{power:.2f}{wanted}")
    return sentences


def write_json(results: Sequence[Result], where: dict[str, Any], path: str) -> None:
    """Everything that was measured, and on which machine."""
    records = [{**asdict(result), "missed": result.missed} for result in results]
    text = json.dumps({"machine": where, "results": records}, indent=1, ensure_ascii=False)
    with replacing(path) as temporary:
        Path(temporary).write_text(text + "\n", encoding="utf-8")


def draw(results: Sequence[Result], path: str) -> None:
    """Cost against length, as png, svg or pdf by the extension of ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [part for part in _PLOTTED if curves(results, part)]
    if not panels:
        raise UserError("bench: nothing to plot; -o needs the parts length or memory")
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.6 * len(panels), 3.6), squeeze=False, layout="constrained"
    )
    for axis, part in zip(axes[0], panels, strict=True):
        ticks: set[int] = set()
        for name, (lengths, costs) in curves(results, part).items():
            ticks.update(lengths)
            axis.loglog(lengths, costs, "o-", color=_COLOURS.get(name), label=name, base=2)
        axis.set_xlabel("length T (queries and keys)")
        axis.set_ylabel(_PLOTTED[part][0])
        axis.set_xticks(sorted(ticks), [str(length) for length in sorted(ticks)])
        axis.set_yscale("log", base=10)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    kind = Path(path).suffix.lstrip(".")
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=200)
    pyplot.close(figure)


def check_plot(path: str) -> None:
    """Refuse a file that cannot be drawn before minutes of measuring, not after."""
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"{path}: cannot draw this kind of file; use .png, .svg or .pdf")
