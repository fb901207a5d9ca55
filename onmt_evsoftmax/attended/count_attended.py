"""The command line of ``onmt_count_attended`` and ``tools/count_attended.py``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NoReturn

from onmt_evsoftmax.attended.alignment import AlignmentScores, read_gold
from onmt_evsoftmax.attended.counts import Counts
from onmt_evsoftmax.attended.tables import TABLES, Entry, Report
from onmt_evsoftmax.report import console
from onmt_evsoftmax.report.console import UserError, command_line, warn
from onmt_evsoftmax.report.outputs import FIGURES, add_output, check_outputs, ending, publish
from onmt_evsoftmax.report.outputs import TABLES as FILES
from onmt_evsoftmax.report.progress import progress
from onmt_evsoftmax.trace import Header, Record
from onmt_evsoftmax.trace.grid import LEVELS
from onmt_evsoftmax.trace.source import open_traces, trace_files
from onmt_evsoftmax.trace.trace_attention import (
    add_kinds,
    add_model_options,
    model_files,
    open_models,
)

DESCRIPTION = """\
Count how many tokens attention attends to: mean ± standard error and standard deviation by kind of
attention, layer, head, sentence length and position, with density, entropy and the diversity of
heads. Only real tokens are counted; the count that the paper reports has a row of its own."""

EPILOG = """\
A TRACE is a file that onmt_trace_attention wrote, as FILE or NAME=FILE. With --model and --src
instead, the attention is counted while it is computed and nothing is stored. Layers and heads count
from 1.

examples:
  Two models side by side:
  $ onmt_count_attended softmax.trace evsoftmax.trace

  By head and by sentence length over whole words, for a paper, and everything as JSON:
  $ onmt_count_attended evsoftmax.trace --level word --by head length -o counts.tex -o counts.json

  How well attention finds the words that gold alignments link, and a picture of every head:
  $ onmt_count_attended evsoftmax.trace --align gold.align -o counts.txt -o heads.svg

  Straight from a checkpoint:
  $ onmt_count_attended --model evsoftmax.pt --src test.en --tgt test.de --by paper
"""


def make_parser() -> argparse.ArgumentParser:
    """Every option of the command."""
    parser = command_line(DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("traces", nargs="*", metavar="[NAME=]TRACE", help="traces to count")
    add("--level", choices=LEVELS, default="subword", help="units to count (default: %(default)s)")
    add(
        "--by",
        nargs="+",
        action="extend",
        choices=TABLES,
        help="tables to print (default: kind layer); JSON always has all",
    )
    add(
        "--rows",
        choices=("text", "all"),
        default="text",
        help="count rows that are text, or all decoding steps with </s> (default: %(default)s)",
    )
    add("--align", metavar="GOLD", help="score context attention against Pharaoh alignments")
    add("--one-based", action="store_true", help="words of --align count from 1, not from 0")
    add_output(
        parser,
        f"{' '.join(FILES)} tables, {' '.join(FIGURES)} the distribution of every head (of context "
        "attention, unless --kinds names another)",
    )
    add("--quiet", action="store_true", help="no progress on standard error")
    add_kinds(parser)
    add_model_options(parser, required=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Count, then render: everything is computed before the first file is written."""
    options = make_parser().parse_args(argv)
    _check(options)
    gold = read_gold(options.align, first=int(options.one_based)) if options.align else None
    by = options.by or ("kind", "layer")
    as_json = options.json or ".json" in map(ending, options.output)
    entries = []
    with ExitStack() as stack:
        for name, header, records, total in _inputs(options, stack):
            derived = as_json or "derived" in by
            counts = Counts(header, options.level, options.rows == "all", options.kinds, derived)
            if not counts.kinds:
                have = ", ".join(header.kinds)
                raise UserError(
                    f"{name} has no {' or '.join(options.kinds)} attention, only {have}"
                )
            scores = None
            if gold is not None:
                if not header.forced:
                    warn(
                        f"{name} is of the model's own output; gold alignments are of a "
                        "reference: trace with --tgt"
                    )
                if len(gold) > total:
                    warn(
                        f"{options.align} has {len(gold)} lines but {name} {total} sentences; "
                        "the lines after them are not used"
                    )
                scores = AlignmentScores(header, gold, options.align)
            bar = progress(f"counting {name}", total, quiet=options.quiet)
            for record in records:
                counts.add(record)
                if scores is not None:
                    scores.add(record)
                bar.update()
            bar.close()
            entries.append(Entry(name, counts, scores))
    report = Report(entries)
    tables = report.tables(by)
    publish(
        lambda _: tables,
        report.json,
        options.output,
        print_json=options.json,
        draw=partial(_draw, report),
    )
    return 0


def entry() -> NoReturn:
    """``onmt_count_attended``, as installed."""
    console.run(main)


def _check(options: argparse.Namespace) -> None:
    """Refuse before the work starts what would be refused after it."""
    if bool(options.traces) == bool(options.model):
        raise UserError("give traces to count, or --model and --src; see --help")
    if options.model and not options.src:
        raise UserError("--model needs a text to run on: --src FILE")
    inputs = [*trace_files(options.traces), *model_files(options)]
    inputs += [options.align] if options.align else []
    check_outputs(options.output, (*FILES, *FIGURES), inputs=inputs)


def _inputs(
    options: argparse.Namespace, stack: ExitStack
) -> Iterable[tuple[str, Header, Iterable[Record], int]]:
    """Name, header, records and their number of everything to be counted."""
    if options.model:
        yield from open_models(options)
    else:
        for source in stack.enter_context(open_traces(options.traces)):
            yield source.name, source.trace.header, source.trace, len(source.trace)


def _draw(report: Report, path: Path, ending: str) -> None:
    from onmt_evsoftmax.plot import distribution
    from onmt_evsoftmax.report import style

    present = list(dict.fromkeys(k for e in report.entries for k in e.counts.kinds))
    kind = "context" if "context" in present else present[0]
    entries = [entry for entry in report.entries if kind in entry.counts.kinds]
    counts = {entry.name: entry.counts.kinds[kind] for entry in entries}
    normalizers = [entry.counts.header.kinds[kind].normalizer for entry in entries]
    with style.readable(counts):
        style.save(distribution.draw(counts, kind, normalizers), path, ending)
