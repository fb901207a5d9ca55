"""``onmt_evsoftmax bench``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from onmt_evsoftmax.bench import attention, busy, endtoend, gpu, rows, scaling
from onmt_evsoftmax.bench import results as report
from onmt_evsoftmax.bench.timing import Result
from onmt_evsoftmax.report.console import UserError, command_line, real, whole
from onmt_evsoftmax.report.outputs import (
    FIGURES,
    TABLES,
    add_output,
    check_outputs,
    ending,
    publish,
)
from onmt_evsoftmax.report.progress import progress


class Part(NamedTuple):
    """Cases, and what measures one of them: (case, seconds, seed) → results.

    ``check`` refuses, by a UserError, a part that cannot be measured here.
    """

    cases: Callable[[], Sequence[Any]]
    measure: Callable[[Any, float, int], Iterator[Result]]
    what: str
    check: Callable[[], None] = lambda: None


PARTS = {
    "rows": Part(rows.cases, rows.measure, "normalizers against torch.softmax"),
    "attention": Part(attention.cases, attention.measure, "attention against SDPA"),
    "density": Part(attention.density_cases, attention.measure, "the same where few keys are kept"),
    "length": Part(scaling.cases, scaling.measure, "time against length, up to 8192"),
    "memory": Part(
        scaling.cases, scaling.measure_memory, "peak memory against length", scaling.check_memory
    ),
    "endtoend": Part(
        endtoend.cases, endtoend.measure, "onmt_train, onmt_translate: tokens/s", endtoend.check
    ),
    "busy": Part(busy.cases, busy.measure, "the programs beside a busy process", busy.check),
}


#: With ``--device cuda``; nobody has run them yet.
GPU_PARTS = {
    "rows": Part(gpu.row_cases, gpu.measure_rows, "normalizers against torch.softmax"),
    "attention": Part(gpu.attention_cases, gpu.measure_attention, "attention against SDPA"),
    "memory": Part(gpu.lengths, gpu.measure_memory, "peak memory against length"),
    "endtoend": Part(
        endtoend.cases,
        partial(endtoend.measure, on_gpu=True),
        "onmt_train, onmt_translate: tokens/s",
        endtoend.check,
    ),
}


_ABOUT = """Speed and memory as ratios against named peers: all take turns, in one process (memory
and OpenNMT-py's commands in processes of their own), and medians are divided. Targets are in
parentheses; ! marks one that is missed. What was measured before an interruption is reported."""

_EPILOG = f"""parts:
{chr(10).join(f"  {name:<10} {part.what}" for name, part in PARTS.items())}

example (keep the machine idle):
  $ onmt_evsoftmax bench --only rows attention -o bench.md -o bench.json
  $ onmt_evsoftmax bench --only length memory -o growth.svg

on a GPU (rows, attention, memory, endtoend), one file to attach to an issue:
  $ onmt_evsoftmax bench --device cuda -o gpu.json
"""

#: The parts that a figure shows.
PLOTTED = {"length", "memory"}


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command_line(_ABOUT, _EPILOG)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, metavar="PART", help="of those below (default: all)"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="default: cpu; with cuda, results are checked, timed and compared with predictions",
    )
    parser.add_argument(
        "--threads", type=whole(1, 1024), metavar="N", help="default: as many as torch uses"
    )
    parser.add_argument(
        "--seconds",
        type=real(0, 3600),
        default=5.0,
        metavar="S",
        help="seconds of measuring for each case (default: 5)",
    )
    parser.add_argument(
        "--seed", type=whole(0, 2**31), default=0, help="of the random tensors (default: 0)"
    )
    add_output(parser, f"{' '.join(TABLES)} tables, {' '.join(FIGURES)} cost against length")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then print the tables or write what is asked for."""
    arguments = make_parser().parse_args(argv)
    parts = GPU_PARTS if arguments.device == "cuda" else PARTS
    for name in arguments.only or ():
        if name not in parts:
            known = ", ".join(parts)
            raise UserError(f"bench: {name} is not measured on a GPU; choose from {known}")
    chosen = [name for name in parts if arguments.only is None or name in arguments.only]
    check_outputs(arguments.output, (*TABLES, *FIGURES))
    plots = any(ending(path) in FIGURES for path in arguments.output)
    if plots and not PLOTTED & set(chosen):
        raise UserError("bench: nothing to plot; a figure needs the parts length or memory")
    if arguments.device == "cuda":
        gpu.check()
    for name in chosen:
        parts[name].check()
    before = torch.get_num_threads()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    where = report.machine(arguments.device)
    results: list[Result] = []
    try:
        for result in measure(chosen, arguments.seconds, arguments.seed, parts):
            results.append(result)
    finally:
        torch.set_num_threads(before)
        if results:
            _write(results, where, arguments.output, arguments.json)
    return 0


def _write(
    results: Sequence[Result], where: dict[str, Any], paths: Sequence[str], as_json: bool
) -> None:
    """What was measured, to files or as text, and as JSON if that is asked for."""
    measured = {result.part for result in results}
    titles = {name: part.what for name, part in PARTS.items() if name in measured}
    if not measured & PLOTTED:  # not yet, if the measuring was interrupted
        paths = [path for path in paths if ending(path) not in FIGURES]
    publish(
        lambda kind: report.tables(results, where, titles, kind),
        lambda: report.as_json(results, where),
        paths,
        print_json=as_json,
        draw=partial(report.draw, results),
    )


def measure(
    chosen: Sequence[str], seconds: float, seed: int, parts: Mapping[str, Part] = PARTS
) -> Iterator[Result]:
    """All results of the chosen parts, with a progress bar on stderr."""
    work = [(name, case) for name in chosen for case in parts[name].cases()]
    with progress("", len(work), unit="cases") as bar:
        for name, case in work:
            bar.set_postfix_str(f"{name} {case}")
            yield from parts[name].measure(case, seconds, seed)
            bar.update()
