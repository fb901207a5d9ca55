"""The command line of the corpora: one verb per step of a recipe's ``prepare.sh``."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from onmt_evsoftmax.corpora import extract, settings, split, subwords, tokenise
from onmt_evsoftmax.corpora.clean import Cleaning
from onmt_evsoftmax.corpora.fetch import fetch, read_sources
from onmt_evsoftmax.corpora.marks import joined
from onmt_evsoftmax.corpora.parallel import (
    Pair,
    lines_of,
    paired,
    pairs_of,
    write_columns,
    write_lines,
    write_parts,
)
from onmt_evsoftmax.report.console import UserError, command_line

_EXAMPLE = """example:
  $ onmt_evsoftmax corpora fetch --sources recipes/multi30k/sources.tsv -o downloads
  $ onmt_evsoftmax corpora extract --format plain --source downloads/train.en.gz \\
        --target downloads/train.de.gz -o raw.en raw.de
  $ onmt_evsoftmax corpora clean raw.en raw.de -o train.en train.de --max-words 100
"""


def whole_number(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def say(text: str) -> None:
    """One line of progress, on standard error."""
    print(text, file=sys.stderr)


def _fetch(args: argparse.Namespace) -> None:
    sources = read_sources(args.sources)
    names = [source.name for source in sources]
    for name in args.names:
        if name not in names:
            raise UserError(f"{args.sources} lists no {name}; it lists {', '.join(names)}")
    chosen = [source for source in sources if not args.names or source.name in args.names]
    for remark in fetch(chosen, args.output, args.data_dir):
        say(remark)


def _place(text: str) -> tuple[Path, str | None]:
    archive, _, member = text.partition("::")
    return Path(archive), member or None


def _documents(args: argparse.Namespace) -> Iterator[Pair]:
    """Pairs of parallel documents, each of which must have as many sentences on both sides."""
    if len(args.source) != len(args.target):
        raise UserError(
            f"{len(args.source)} --source need as many --target, not {len(args.target)}"
        )
    for source, target in zip(args.source, args.target, strict=True):
        ours = extract.sentences(*_place(source), args.format)
        theirs = extract.sentences(*_place(target), args.format)
        for number, pair in enumerate(paired(source, ours, target, theirs), start=1):
            if args.format == "segments" and not all(pair):
                say(f"warning: {source}, segment {number}: a side is empty; kept")
            yield pair


def _extract(args: argparse.Namespace) -> None:
    pairs: Iterable[Pair]
    if args.format == "columns":
        pairs = (pair for place in args.source for pair in extract.columns(*_place(place)))
    else:
        pairs = _documents(args)
    say(f"{args.output[0]}: {write_columns(args.output, pairs)} pairs")


def _clean(args: argparse.Namespace) -> None:
    held_out = {" ".join(line.split()) for path in args.exclude for line in lines_of(path)}
    rules = Cleaning(args.max_words, args.max_ratio, not args.keep_repeated, held_out)
    write_columns(args.output, rules(pairs_of(args.source, args.target)))
    say(f"{args.output[0]}: {rules}")


def _split(args: argparse.Namespace) -> None:
    languages = args.source.suffix, args.target.suffix
    pairs = pairs_of(args.source, args.target)
    if args.every is not None:
        names, labelled = ["train", "valid"], split.every(args.every, pairs)
    else:
        names, labelled = ["train", "valid", "test"], split.by_source(args.by_source, pairs)
    parts = {name: [args.output / f"{name}{suffix}" for suffix in languages] for name in names}
    counts = write_parts(parts, labelled)
    say(f"{args.output}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


def _each(args: argparse.Namespace, function: Callable[[str], str], doing: str) -> None:
    """Every input becomes a file of its name in the output folder; those that exist are kept."""
    for path in args.input:
        output = args.output / path.name
        if not output.exists():
            lines = tokenise.mapped(function, lines_of(path), args.jobs, f"{doing} {path.name}")
            write_lines(output, lines)


def _tokenise(args: argparse.Namespace) -> None:
    _each(args, functools.partial(tokenise.tokenise_line, args.lang), "tokenising")


def _learn(args: argparse.Namespace) -> None:
    subwords.learn(args.kind, args.text, args.size, args.output)


def _encode(args: argparse.Namespace) -> None:
    subwords.encoder(args.model)  # refused now, not after a long run has begun
    _each(args, functools.partial(subwords.encode_line, args.model), "encoding")


def _vocabulary(args: argparse.Namespace) -> None:
    lines = (line for path in args.text for line in lines_of(path))
    say(f"{args.output}: {write_lines(args.output, subwords.vocabulary(lines))} pieces")


def _words(kind: str, lang: str | None, truecased: bool, line: str) -> str:
    line = joined(line, kind)
    line = tokenise.detokenise_line(lang, line) if lang else line
    return line[:1].upper() + line[1:] if truecased else line


def _decode(args: argparse.Namespace) -> None:
    function = functools.partial(_words, args.kind, args.detokenise, args.truecased)
    write_lines(args.output, map(function, lines_of(args.input)))


def _merge(args: argparse.Namespace) -> None:
    write_lines(args.output, settings.merged(args.yaml))


def _check(args: argparse.Namespace) -> None:
    say(f"{args.source}: {sum(1 for _ in pairs_of(args.source, args.target))} pairs")


def build_parser() -> argparse.ArgumentParser:
    """The parser, one sub-parser per verb."""
    parser = command_line(
        "Prepare parallel text for training, one step at a time.",
        _EXAMPLE,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, about: str, function: object) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=about, description=about)
        sub.set_defaults(function=function)
        return sub

    def pair(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("source", type=Path)
        sub.add_argument("target", type=Path)

    def outputs(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "-o", "--output", type=Path, nargs=2, required=True, metavar=("SOURCE", "TARGET")
        )

    def files(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("input", type=Path, nargs="+")
        sub.add_argument("-o", "--output", type=Path, required=True, help="folder")
        sub.add_argument("--jobs", type=whole_number, default=os.cpu_count() or 1, help="processes")

    sub = verb("fetch", "archives from the web or a folder, checked against checksums", _fetch)
    sub.add_argument("names", nargs="*", help="which files of the list (default: all)")
    sub.add_argument("--sources", type=Path, required=True, help="list of files (sources.tsv)")
    sub.add_argument("--data-dir", type=Path, help="use the files in this folder, download none")
    sub.add_argument("-o", "--output", type=Path, required=True, help="folder of downloads")

    sub = verb("extract", "sentences out of archives, as parallel text", _extract)
    sub.add_argument("--format", required=True, choices=[*extract.FORMATS, "columns"])
    place = "FILE, or ARCHIVE::FILE inside it"
    sub.add_argument("--source", nargs="+", required=True, metavar="PLACE", help=place)
    sub.add_argument("--target", nargs="+", default=[], metavar="PLACE", help="as many of these")
    outputs(sub)

    sub = verb("clean", "drop pairs that are empty, too long, lopsided or repeated", _clean)
    pair(sub)
    outputs(sub)
    sub.add_argument("--max-words", type=whole_number, default=150, help="on either side (150)")
    sub.add_argument("--max-ratio", type=float, default=9.0, help="longer side : shorter (9)")
    sub.add_argument("--keep-repeated", action="store_true", help="keep repeated pairs")
    sub.add_argument("--exclude", type=Path, nargs="*", default=[], help="held-out source text")

    sub = verb("split", "training and held-out sets, by line or by source sentence", _split)
    pair(sub)
    how = sub.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--every", type=whole_number, metavar="N", help="every N-th line is for validation"
    )
    how.add_argument(
        "--by-source", type=whole_number, metavar="N", help="hold out N sentences, twice"
    )
    sub.add_argument("-o", "--output", type=Path, required=True, help="folder")

    sub = verb("tokenise", "Moses tokenisation", _tokenise)
    files(sub)
    sub.add_argument("--lang", required=True, help="language of the text: en, de, …")

    sub = verb("learn", "learn joint subwords from training text", _learn)
    sub.add_argument("text", type=Path, nargs="+", help="training text of both languages")
    sub.add_argument("--kind", choices=subwords.KINDS, required=True)
    sub.add_argument("--size", type=whole_number, required=True, help="merges (bpe) or pieces")
    sub.add_argument("-o", "--output", type=Path, required=True)

    sub = verb("encode", "split words into subwords", _encode)
    files(sub)
    sub.add_argument("--model", type=Path, required=True, help="what `learn` wrote")

    sub = verb("vocabulary", "count pieces, as onmt_build_vocab does", _vocabulary)
    sub.add_argument("text", type=Path, nargs="+", help="encoded training text of both languages")
    sub.add_argument("-o", "--output", type=Path, required=True)

    sub = verb("decode", "join subwords into words, and words into text", _decode)
    sub.add_argument("input", type=Path)
    sub.add_argument("-o", "--output", type=Path, required=True)
    sub.add_argument("--kind", choices=[*subwords.KINDS, "words"], required=True)
    sub.add_argument("--detokenise", metavar="LANG", help="undo Moses tokenisation too")
    sub.add_argument("--truecased", action="store_true", help="begin every line with a capital")

    sub = verb("check", "refuse parallel files that are not: counts, UTF-8, an empty side", _check)
    pair(sub)

    sub = verb("merge", "one YAML file out of several; the last to set a key wins", _merge)
    sub.add_argument("yaml", type=Path, nargs="+")
    sub.add_argument("-o", "--output", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb."""
    args = build_parser().parse_args(argv)
    args.function(args)
    return 0
