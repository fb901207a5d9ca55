"""The command line of ``onmt_score`` and ``tools/score.py``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from onmt_evsoftmax.corpora.marks import looks_split, undo_subwords
from onmt_evsoftmax.report import console
from onmt_evsoftmax.report.console import UserError, command_line, warn, whole
from onmt_evsoftmax.report.files import read_lines, same_length, split_name
from onmt_evsoftmax.report.outputs import TABLES, add_output, check_outputs, publish
from onmt_evsoftmax.report.progress import steps
from onmt_evsoftmax.score.core import score
from onmt_evsoftmax.score.metrics import DEFAULT_METRICS, METRICS, metric_name

DESCRIPTION = """\
Score translations with BLEU, chrF++, TER, ROUGE and METEOR, each with the signature that says
how it was made, and test systems against a baseline with paired bootstrap and approximate
randomisation. Give detokenised text, one sentence per line."""

EPILOG = """\
A --hyp is FILE or NAME=FILE; files of one NAME are the runs (training seeds) of one system,
reported as mean ± standard error. Stars mark systems that differ from the baseline at the level
of 0.05 (*) or 0.01 (**) in both tests. The tests say what other sentences might change, the
standard error what other seeds might.

examples:
  One system, scores on the terminal:
  $ onmt_score --hyp output.txt --ref reference.de --lang de

  Two systems with two seeds each, the paper's table and everything as JSON:
  $ onmt_score --hyp softmax=softmax.1.txt softmax=softmax.2.txt \\
        evsoftmax=evsoftmax.1.txt evsoftmax=evsoftmax.2.txt \\
        --ref reference.de --lang de --baseline evsoftmax -o table.tex -o scores.json
"""


def make_parser() -> argparse.ArgumentParser:
    """Every option of the command."""
    parser = command_line(DESCRIPTION, EPILOG)
    add = parser.add_argument
    add(
        "--hyp",
        nargs="+",
        action="extend",
        required=True,
        metavar="[NAME=]FILE",
        help="translations to score; - reads standard input",
    )
    add(
        "--ref",
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE",
        help="references, one file each",
    )
    add("--baseline", metavar="NAME", help="test every other system against this one")
    add(
        "--lang",
        metavar="CODE",
        help="language of the text, for stemmers, synonyms and tokenizers: de, en, fr, …",
    )
    add(
        "--metrics",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"which to compute, of {' '.join(METRICS)} (default: {' '.join(DEFAULT_METRICS)}); "
        "bleu-tok-lc is the tokenised, lower-cased BLEU of the paper's public scripts",
    )
    add(
        "--undo-bpe",
        action="store_true",
        help="join subwords first: @@ of byte pair encoding, ▁ of SentencePiece",
    )
    add(
        "--allow-blank",
        action="store_true",
        help="score systems without any text as zeros even if there is no other",
    )
    add(
        "--tokenized",
        action="store_true",
        help="the text is Moses-tokenised: do not warn, and do not tokenise for bleu-tok-lc",
    )
    add(
        "--resamples",
        type=whole(1, 10**7),
        default=1000,
        metavar="N",
        help="bootstrap samples, and as many random shuffles (default: %(default)s)",
    )
    add(
        "--seed",
        type=whole(0, 2**63),
        default=12345,
        metavar="N",
        help="of the resampling; the default is sacreBLEU's (%(default)s)",
    )
    add(
        "--digits",
        type=whole(0, 10),
        default=2,
        metavar="N",
        help="decimals shown (default: %(default)s)",
    )
    add_output(parser, " ".join(TABLES))
    add("--sentences", metavar="FILE.tsv", help="write the scores of every line to FILE.tsv")
    add("--quiet", action="store_true", help="no progress on standard error")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Read, score, render: everything is computed before the first file is written."""
    options = make_parser().parse_args(argv)
    files = _systems(options.hyp)
    _check(options, files)
    metrics = [metric_name(name) for name in _words(options.metrics)] or list(DEFAULT_METRICS)
    if options.lang is None and "meteor" in metrics:
        warn("without --lang METEOR stems no word; give the language, for example --lang de")
    systems, references = _read(files, options.ref, options)
    report = score(
        systems,
        references,
        metrics=metrics,
        lang=options.lang,
        baseline=options.baseline,
        resamples=options.resamples,
        seed=options.seed,
        tokenised=options.tokenized,
        sentences=options.sentences is not None,
        run_names=files,
        progress=steps(options.quiet),
    )
    publish(
        lambda kind: report.tables(kind, options.digits),
        report.json,
        options.output,
        print_json=options.json,
        more={options.sentences: report.sentence_tsv()} if options.sentences else {},
    )
    return 0


def entry() -> NoReturn:
    """``onmt_score``, as installed."""
    console.run(main)


def _check(options: argparse.Namespace, files: dict[str, list[str]]) -> None:
    """Refuse before the work starts what would be refused after it."""
    inputs = [*options.ref, *(path for runs in files.values() for path in runs)]
    sentences = [options.sentences] if options.sentences else []
    check_outputs(options.output, TABLES, inputs=inputs)
    check_outputs(sentences, [".tsv"], "--sentences", inputs)


def _words(values: Sequence[str] | None) -> list[str]:
    """``a b`` and ``a,b`` alike."""
    return [word for value in values or () for word in value.replace(",", " ").split()]


def _systems(arguments: Sequence[str]) -> dict[str, list[str]]:
    """``NAME=FILE`` or ``FILE`` arguments → name → files of its runs, in the order given."""
    systems: dict[str, list[str]] = {}
    unnamed: dict[str, str] = {}
    for argument in arguments:
        name, path = split_name(argument)
        if not name:
            name = "stdin" if path == "-" else Path(path).stem
            if name in unnamed:
                raise UserError(
                    f"{unnamed[name]} and {path} would both be called {name!r}; "
                    f"name them: --hyp NAME={path}"
                )
            unnamed[name] = path
        if os.path.realpath(path) in map(os.path.realpath, systems.get(name, ())):
            raise UserError(f"--hyp {argument} is given twice; every run has its own file")
        systems.setdefault(name, []).append(path)
    return systems


def _read(
    files: dict[str, list[str]], references: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, list[list[str]]], list[list[str]]]:
    """Lines of every run of every system, and of every reference."""
    paths = [*references, *(path for runs in files.values() for path in runs)]
    if paths.count("-") > 1:
        raise UserError("standard input (-) can be read once; use files for the rest")
    lines = {path: _text(path, options) for path in dict.fromkeys(paths)}
    same_length([(path, len(lines[path])) for path in paths])
    blank = [path for path in paths if not any(lines[path])]
    outputs = paths[len(references) :]
    for path in blank:
        if path in references or (
            not options.allow_blank and all(output in blank for output in outputs)
        ):
            raise UserError(f"{path} has only blank lines; it must have text to compare")
        warn(f"{path} has only blank lines: that system says nothing, and gets the lowest scores")
    return (
        {name: [lines[path] for path in runs] for name, runs in files.items()},
        [lines[path] for path in references],
    )


def _text(path: str, options: argparse.Namespace) -> list[str]:
    # sacreBLEU's command line drops white space at the end of a line, and so do we
    lines = [line.rstrip() for line in read_lines(path)]
    if options.undo_bpe:
        lines = undo_subwords(lines)
    elif looks_split(lines):
        warn(f"{path} looks split into subwords; join them with --undo-bpe")
    if not options.tokenized and _looks_tokenised(lines):
        warn(
            f"{path} looks tokenised: 100 or more lines end in ' .'; detokenise it, or the scores "
            "cannot be compared with published ones (--tokenized if you mean it)"
        )
    return lines


def _looks_tokenised(lines: Sequence[str]) -> bool:
    """sacreBLEU's own rule: a hundred lines end in a period that stands alone."""
    return sum(line.endswith(" .") for line in lines) >= 100
