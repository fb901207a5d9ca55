"""``python -m onmt_evsoftmax bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from onmt_evsoftmax.bench import attention, endtoend, report, rows, scaling
from onmt_evsoftmax.bench.timing import Result
from onmt_evsoftmax.console import UserError, command_line
from onmt_evsoftmax.outputs import (
    FIGURES,
    Writer,
    add_output,
    check_outputs,
    ending,
    write_outputs,
)


class Part(NamedTuple):
    """Cases, and what measures one of them: (case, seconds, seed) → results."""

    cases: Callable[[], Sequence[Any]]
    measure: Callable[[Any, float, int], Iterator[Result]]
    what: str


PARTS = {
    "rows": Part(rows.cases, rows.measure, "normalizers against torch.softmax"),
    "attention": Part(attention.cases, attention.measure, "attention against SDPA"),
    "density": Part(attention.density_cases, attention.measure, "the same where few keys are kept"),
    "length": Part(scaling.cases, scaling.measure, "time against length, up to 8192"),
    "memory": Part(scaling.cases, scaling.measure_memory, "peak memory against length"),
    "endtoend": Part(endtoend.cases, endtoend.measure, "onmt_train, onmt_translate: tokens/s"),
}


_ABOUT = """Speed and memory as ratios against named peers: all take turns in one process, and
medians are divided. A target stands in parentheses, ! marks one that is missed."""

_EPILOG = f"""parts:
{chr(10).join(f"  {name:<10} {part.what}" for name, part in PARTS.items())}

example (keep the machine idle):
  $ python -m onmt_evsoftmax bench --only rows attention -o bench.md -o bench.json
  $ python -m onmt_evsoftmax bench --only length memory -o growth.svg
"""

_TEXTS = (".txt", ".md", ".json")


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = command_line(_ABOUT, _EPILOG, "python -m onmt_evsoftmax bench")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help="default: all")
    parser.add_argument("--threads", type=int, metavar="N", help="default: as many as torch takes")
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="measuring per case (default: 5)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random tensors (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON, at full precision")
    add_output(parser, f"{' '.join(_TEXTS)} tables, {' '.join(FIGURES)} cost against length")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then print the tables or write what is asked for."""
    arguments = make_parser().parse_args(argv)
    if arguments.seconds < 0 or (arguments.threads is not None and arguments.threads < 1):
        raise UserError("bench: --seconds must not be negative, and --threads at least 1")
    chosen = [name for name in PARTS if arguments.only is None or name in arguments.only]
    check_outputs(arguments.output, (*_TEXTS, *FIGURES))
    plots = any(ending(path) in FIGURES for path in arguments.output)
    if plots and not {"length", "memory"} & set(chosen):
        raise UserError("bench: nothing to plot; a figure needs the parts length or memory")
    before = torch.get_num_threads()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        where = report.machine()
        results = measure(chosen, arguments.seconds, arguments.seed)
    finally:
        torch.set_num_threads(before)
    titles = {name: PARTS[name].what for name in chosen}
    texts = {
        ".txt": report.text(results, where, titles),
        ".md": report.markdown(results, where, titles),
        ".json": report.as_json(results, where),
    }
    outputs: dict[str, str | Writer] = {}
    for path in arguments.output:
        kind = ending(path)
        outputs[path] = texts.get(kind) or partial(report.draw, results, kind=kind.lstrip("."))
    write_outputs(outputs)
    if not arguments.output:
        print(texts[".json" if arguments.json else ".txt"], end="")
    return 0


def measure(chosen: Sequence[str], seconds: float, seed: int) -> list[Result]:
    """All results of the chosen parts, with a progress bar on stderr."""
    work = [(name, case) for name in chosen for case in PARTS[name].cases()]
    results: list[Result] = []
    with tqdm(total=len(work), file=sys.stderr, unit="case", disable=None) as bar:
        for name, case in work:
            bar.set_postfix_str(f"{name} {case}")
            results += PARTS[name].measure(case, seconds, seed)
            bar.update()
    return results
