"""The command line of ``onmt_plot_attention`` and ``tools/plot_attention.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from onmt_evsoftmax.attended.alignment import Gold, read_gold
from onmt_evsoftmax.plot import choice
from onmt_evsoftmax.report import console
from onmt_evsoftmax.report.console import UserError, command_line, whole
from onmt_evsoftmax.report.outputs import FIGURES, check_outputs
from onmt_evsoftmax.report.progress import progress
from onmt_evsoftmax.trace import KINDS
from onmt_evsoftmax.trace.grid import LEVELS
from onmt_evsoftmax.trace.source import Source, open_traces, trace_files

#: A page of more than this many sentences is slow to open, so more must be asked for.
PAGE_SENTENCES = 1000

#: What is drawn → the options that act on it.
_ACT = {
    "heatmaps": "sentence kind level layer head align one_based columns values",
    "bars": "sentence kind level layer head bars",
    "a page": "sentence kind level align one_based title",
    "a file for BertViz": "sentence",
    "the simplex": "simplex",
}

DESCRIPTION = """\
Draw attention from traces: heatmaps of one sentence, the paper's Figures 4 and 1, or a page to
explore every sentence, layer and head in a browser. Exact zeros stay blank, and differ from small
weights."""

EPILOG = """\
A TRACE is a file that onmt_trace_attention wrote, as FILE or NAME=FILE; several are drawn side by
side. The ending of OUT decides what is made: .png, .svg, .pdf a figure; .html the page, one file
that needs nothing else; .pt the arguments of bertviz.model_view. Sentences, layers and heads count
from 1; choose several as 1,3-5, last or all.

examples:
  A page to explore three models side by side:
  $ onmt_plot_attention softmax.trace sparsemax.trace evsoftmax.trace -o page.html

  Context attention of a sentence, every head of the last layer, gold alignments outlined:
  $ onmt_plot_attention evsoftmax.trace --sentence 2 --head all --align gold.align -o heads.pdf

  The paper's Figure 4, what the first target word attends to under each normalizer:
  $ onmt_plot_attention softmax.trace sparsemax.trace evsoftmax.trace --bars -o figure4.pdf

  The paper's Figure 1, a point of R³ on the simplex:
  $ onmt_plot_attention --simplex -o figure1.pdf

  One sentence for BertViz; in a notebook: model_view(**torch.load("sentence.pt"))
  $ onmt_plot_attention evsoftmax.trace --sentence 2 -o sentence.pt
"""


def make_parser() -> argparse.ArgumentParser:
    """Every option of the command."""
    parser = command_line(DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("traces", nargs="*", metavar="[NAME=]TRACE", help="traces to draw")
    add(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="file ending in .png .svg .pdf .html or .pt",
    )
    add("--sentence", metavar="N", help="number of the sentence (default: 1; in a page, 1-1000)")
    add("--kind", choices=KINDS, help="kind of attention (default: context; all in a page)")
    add("--layer", default="last", metavar="N", help="layers to draw (default: last)")
    add(
        "--head",
        default="1",
        metavar="N",
        help="heads to draw; mean, their average; rollout, attention through all layers up to this "
        "one (default: 1, the head that -attn_debug shows)",
    )
    add(
        "--level",
        choices=LEVELS,
        default="subword",
        help="units drawn (default: %(default)s); a page has both",
    )
    add("--align", metavar="GOLD", help="outline the links of Pharaoh alignments")
    add("--one-based", action="store_true", help="words of --align count from 1, not from 0")
    add(
        "--columns",
        type=whole(1),
        metavar="N",
        help="heatmaps side by side (default: one for each trace)",
    )
    add("--values", action="store_true", help="write the weights into the cells")
    add(
        "--bars",
        nargs="?",
        type=whole(1),
        const=1,
        metavar="N",
        help="bars of what target token N (default: 1) attends to, one colour per trace",
    )
    add("--simplex", action="store_true", help="draw the paper's Figure 1; needs no trace")
    add("--title", default="Attention", help="of the page (default: %(default)s)")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the options ask for."""
    parser = make_parser()
    options = parser.parse_args(argv)
    inputs = [*trace_files(options.traces), *([options.align] if options.align else [])]
    check_outputs([options.output], (*FIGURES, ".html", ".pt"), inputs=inputs)
    ending = Path(options.output).suffix.lower()
    _refuse_idle(parser, options, ending)
    if options.simplex:
        return _simplex(options, ending)
    if not options.traces:
        raise UserError(
            "give at least one trace to draw, made with onmt_trace_attention; see --help"
        )
    gold = read_gold(options.align, first=int(options.one_based)) if options.align else None
    with open_traces(options.traces) as sources:
        if ending == ".html":
            _page(sources, options, gold)
        elif ending == ".pt":
            _bertviz(sources, options)
        else:
            from onmt_evsoftmax.plot import figures

            figures.make(sources, options, gold)
    return 0


def entry() -> NoReturn:
    """``onmt_plot_attention``, as installed."""
    console.run(main)


def _refuse_idle(parser: argparse.ArgumentParser, options: argparse.Namespace, ending: str) -> None:
    """Refuse an option that would change nothing in what is drawn."""
    figure = "heatmaps" if options.bars is None else "bars"
    drawn = {".html": "a page", ".pt": "a file for BertViz"}.get(ending, figure)
    drawn = "the simplex" if options.simplex else drawn
    acting = {*_ACT[drawn].split(), "traces", "output", "quiet"}
    for action in parser._actions:
        given = getattr(options, action.dest, action.default)
        if given != action.default and action.dest not in acting:
            raise UserError(f"{action.option_strings[0]} changes nothing in {drawn}; leave it out")


def _simplex(options: argparse.Namespace, ending: str) -> int:
    if options.traces:
        raise UserError("--simplex draws a fixed point and takes no trace; leave one of them out")
    if ending not in FIGURES:
        raise UserError(f"-o {options.output}: --simplex draws {' '.join(FIGURES)}")
    from onmt_evsoftmax.paper import figure1 as simplex

    simplex.draw(simplex.FIGURE1_POINT, options.output)
    return 0


def _page(
    sources: Sequence[Source], options: argparse.Namespace, gold: Sequence[Gold] | None
) -> None:
    from onmt_evsoftmax.plot.page import write_page

    same_text(sources)
    count = min(len(source.trace) for source in sources)
    given = options.sentence
    if given is None and count > PAGE_SENTENCES:
        given = f"1-{PAGE_SENTENCES}"
        print(
            f"note: the page has the first {PAGE_SENTENCES} of {count} sentences; choose others "
            f"with --sentence, for example {PAGE_SENTENCES + 1}-{2 * PAGE_SENTENCES}",
            file=sys.stderr,
        )
    lines = [n + 1 for n in choice.parse(given or "all", count, "--sentence")]
    bar = progress("writing page", len(lines), quiet=options.quiet)
    write_page(
        options.output,
        sources,
        lines,
        title=options.title,
        kinds=[options.kind] if options.kind else KINDS,
        level=options.level,
        gold=gold,
        gold_name=options.align or "",
        progress=bar.update,
    )
    bar.close()


def same_text(sources: Sequence[Source]) -> None:
    """Refuse to put traces of different texts side by side."""
    lengths = {len(source.trace): source for source in sources}
    if len(lengths) > 1 and all(source.trace.complete for source in sources):
        (a, one), (b, other), *_ = lengths.items()
        raise UserError(
            f"{one.trace.path} has {a} sentences but {other.trace.path} has {b}; "
            "side by side they must be traces of the same text"
        )


def _bertviz(sources: Sequence[Source], options: argparse.Namespace) -> None:
    from onmt_evsoftmax.plot import bertviz

    if len(sources) > 1:
        raise UserError("BertViz shows one model: give one trace for a .pt file")
    line = choice.one(options.sentence or "1", len(sources[0].trace), "--sentence")
    bertviz.save(sources[0].sentence(line), options.output)
