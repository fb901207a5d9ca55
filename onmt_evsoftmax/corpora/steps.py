"""What the verbs do: one function per step, outputs written whole, finished work left alone."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from onmt_evsoftmax.corpora import extract, recipe, settings, split, subwords, tokenise
from onmt_evsoftmax.corpora.archives import member_lines
from onmt_evsoftmax.corpora.clean import Cleaning
from onmt_evsoftmax.corpora.fetch import RECORD, listed
from onmt_evsoftmax.corpora.fetch import fetch as fetch_archives
from onmt_evsoftmax.corpora.marks import joined
from onmt_evsoftmax.corpora.parallel import (
    Pair,
    paired,
    pairs_of,
    write_columns,
    write_lines,
    write_parts,
)
from onmt_evsoftmax.report import yaml_file
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import lines_of, replacing
from onmt_evsoftmax.report.outputs import check_outputs

STDIN = Path("-")


def say(text: str) -> None:
    """One line of progress, on standard error."""
    print(text, file=sys.stderr)


def finished(outputs: Sequence[Path], inputs: Iterable[Path] = ()) -> bool:
    """Whether all ``outputs`` exist, which is said; one that is also an input is refused."""
    check_outputs(outputs, inputs=inputs)
    done = all(output.exists() for output in outputs)
    if done:
        say(f"{', '.join(map(str, outputs))}: already there, nothing to do")
    return done


def fetch(args: argparse.Namespace) -> None:
    """Have archives in the output folder: downloaded, or linked to where they are."""
    archives = yaml_file.read(args.sources).get("archives")
    if not isinstance(archives, dict) or not archives:
        raise UserError(f"{args.sources} lists no archives, as `FILE: [ADDRESS, CHECKSUM, …]`")
    sources = listed(archives)
    names = [source.name for source in sources]
    for name in args.names:
        if name not in names:
            raise UserError(f"{args.sources} lists no {name}; it lists {', '.join(names)}")
    chosen = [source for source in sources if not args.names or source.name in args.names]
    written = [args.output / name for name in (RECORD, *(source.name for source in chosen))]
    check_outputs(written, inputs=[args.sources])
    data_dir = Path(args.data_dir) if args.data_dir else None
    for remark in fetch_archives(chosen, args.output, data_dir):
        say(remark)
    for source in chosen if data_dir else ():
        link = args.output / source.name
        if not link.exists():
            link.unlink(missing_ok=True)  # it may point to a folder that is gone
            link.symlink_to((data_dir or Path()).absolute() / source.name)


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


def extract_text(args: argparse.Namespace) -> None:
    """Sentences out of archives: two files, or lines of standard output with a tab between."""
    inputs = [_place(place)[0] for place in (*args.source, *args.target)]
    if args.output and finished(args.output, inputs):
        return
    pairs: Iterable[Sequence[str]]
    if args.format == "columns":
        pairs = (
            pair
            for place in args.source
            for pair in extract.columns(place, member_lines(*_place(place)))
        )
        pairs = (pair[::-1] for pair in pairs) if args.swap else pairs
    elif args.target:
        pairs = _documents(args)
    elif args.output:
        raise UserError("-o writes a source and a target, but there is no --target; give as many")
    else:  # one language, for a pipe
        places = (extract.sentences(*_place(place), args.format) for place in args.source)
        pairs = ((line,) for lines in places for line in lines)
    _write_pairs(args.output, pairs)


def _write_pairs(output: Sequence[Path] | None, pairs: Iterable[Sequence[str]]) -> None:
    if not output:
        for texts in pairs:
            # A tab within a text would be read as the one between the two.
            print("\t".join(text.replace("\t", " ") for text in texts))
    else:
        say(f"{', '.join(map(str, output))}: {write_columns(output, pairs)} pairs")


def _pairs(args: argparse.Namespace) -> Iterator[Pair]:
    """Two files, or lines of standard input with a tab between the sentences."""
    if args.files and len(args.files) != 2:
        raise UserError(f"parallel text is two files, not {len(args.files)}")
    return (
        pairs_of(*args.files) if args.files else extract.columns("standard input", lines_of(STDIN))
    )


def clean(args: argparse.Namespace) -> None:
    """Drop pairs that are not worth training on."""
    if args.output and finished(args.output, [*args.files, *args.exclude]):
        return
    held_out = {" ".join(line.split()) for path in args.exclude for line in lines_of(path)}
    rules = Cleaning(args.max_words, args.max_ratio, not args.keep_repeated, held_out)
    _write_pairs(args.output, rules(_pairs(args)))
    say(str(rules))


def split_text(args: argparse.Namespace) -> None:
    """Training and held-out sets in a folder."""
    names = ["train", "valid"] if args.every else ["train", "valid", "test"]
    suffixes = [f".{lang}" for lang in args.langs] or [path.suffix for path in args.files]
    if len(suffixes) != 2:
        raise UserError("name the two languages of standard input with --langs")
    parts = {
        name: [args.output / f"{args.prefix}{name}{suffix}" for suffix in suffixes]
        for name in names
    }
    if finished([path for paths in parts.values() for path in paths], args.files):
        return
    rule = split.every if args.every else split.by_source
    counts = write_parts(parts, rule(args.every or args.by_source, _pairs(args)))
    say(f"{args.output}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


def _each(
    args: argparse.Namespace, function: Callable[[str], str], doing: str, *inputs: Path
) -> None:
    """Every file becomes one of its name in the output folder; without files it is a filter.

    ``inputs`` are what ``function`` reads itself.
    """
    if not args.files:
        for line in map(function, lines_of(STDIN)):
            print(line)
        return
    if args.output is None:
        raise UserError("-o FOLDER is missing; without files, standard input is read")
    outputs = [args.output / path.name for path in args.files]
    check_outputs(outputs, inputs=[*args.files, *inputs])
    for path, output in zip(args.files, outputs, strict=True):
        if not finished([output]):
            lines = tokenise.mapped(function, lines_of(path), args.jobs, f"{doing} {path.name}")
            say(f"{output}: {write_lines(output, lines)} lines")


def tokenise_text(args: argparse.Namespace) -> None:
    """Set punctuation apart."""
    _each(args, functools.partial(tokenise.tokenise_line, args.lang), "tokenising")


def encode(args: argparse.Namespace) -> None:
    """Split words into subwords."""
    subwords.encoder(args.model)  # refused now, not after a long run has begun
    _each(args, functools.partial(subwords.encode_line, args.model), "encoding", args.model)


def learn(kind: str, args: argparse.Namespace) -> None:
    """Learn subwords, or take those of another recipe's output."""
    if finished([args.output], args.files):
        return
    if args.subwords_from:
        _borrow(Path(args.subwords_from), args.output)
    else:
        subwords.learn(kind, args.files or [STDIN], args.size, args.output)
        say(f"{args.output}: {args.size} subwords learnt")


def vocabulary(args: argparse.Namespace) -> None:
    """Count pieces, or take the counts of another recipe's output."""
    if args.output and finished([args.output], args.files):
        return
    if args.subwords_from and args.output:
        _borrow(Path(args.subwords_from), args.output)
        return
    rows = subwords.vocabulary(line for path in args.files or [STDIN] for line in lines_of(path))
    if args.output:
        say(f"{args.output}: {write_lines(args.output, rows)} pieces")
    else:
        print("\n".join(rows))


def _borrow(folder: Path, output: Path) -> None:
    theirs = folder / "data" / output.name
    if not theirs.is_file():
        raise UserError(
            f"{folder} has no data/{output.name}; prepare that recipe first, with the same "
            "--subwords"
        )
    with replacing(output) as temporary:
        temporary.write_bytes(theirs.read_bytes())
    say(f"{output}: taken from {theirs}")


def _words(kind: str, lang: str | None, truecased: bool, line: str) -> str:
    line = joined(line, kind)
    line = tokenise.detokenise_line(lang, line) if lang else line
    return line[:1].upper() + line[1:] if truecased else line


def decode(args: argparse.Namespace) -> None:
    """Join subwords into words, and words into text."""
    function = functools.partial(_words, args.kind, args.detokenise, args.truecased)
    lines = map(function, lines_of(args.input))
    if args.output is None:
        for line in lines:
            print(line)
    elif not finished([args.output], [args.input]):
        say(f"{args.output}: {write_lines(args.output, lines)} lines")


def check(args: argparse.Namespace) -> None:
    """Refuse parallel files that are not."""
    names = ", ".join(map(str, args.files)) or "standard input"
    say(f"{names}: {sum(1 for _ in _pairs(args))} pairs")


def write_settings(args: argparse.Namespace) -> None:
    """The YAML with which ``onmt_train`` trains one run."""
    changes = dict(yaml_file.setting(text) for text in args.set)
    names = ("source", "target")
    chosen = {name: getattr(args, name) for name in names if getattr(args, name)}
    found = recipe.Recipe.read(args.recipe, chosen, args.study)
    found = replace(found, settings={**found.settings, **changes})
    if args.output:
        check_outputs([args.output], inputs=args.recipe.glob("*.yaml"))
    run = args.run or f"{args.normalizer}-seed{args.seed}"
    wanted = settings.of_run(found, run, args.normalizer, args.seed, args.pretrained)
    text = settings.as_yaml(wanted, found.folder.name)
    if args.output is None:
        print("\n".join(text))
        return
    changed = settings.change_since(args.output, wanted)
    if changed:
        raise UserError(
            f"{args.output.parent} was trained with other settings: {changed}; "
            "choose another -o, or delete it"
        )
    if not finished([args.output]):
        write_lines(args.output, text)


def options(args: argparse.Namespace) -> None:
    """A recipe's settings as shell code."""
    found = recipe.chosen(args.recipe, args)
    print("\n".join(recipe.shell_code(found, args)))
