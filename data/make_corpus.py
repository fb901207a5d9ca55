"""Write the embedded English-German corpus with its gold word alignments.

Example:
    python data/make_corpus.py -o runs/demo/data --seed 1

For each of train, valid, test and test-hard, six parallel files: NAME.en and NAME.de (tokens
separated by spaces and truecased, for BPE), NAME.align (i-j pairs of token numbers from 0,
English-German), NAME.tags (the constructions in the sentence), and NAME.detok.en and NAME.detok.de
(as people write, for scoring). data/README.md says what is in them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from grammar import lexicon
from grammar.constructions import DRAWN, HARD, draw_one
from grammar.corpus import ORDER, Progress, draw_sets
from grammar.dice import Dice
from grammar.draw_clause import ClauseDraw
from grammar.words import Sentence, detokenise

from onmt_evsoftmax.report.console import UserError, command_line, run, whole
from onmt_evsoftmax.report.files import replacing

SIZES = {"train": 20_000, "valid": 500, "test": 500, "test-hard": 500}
LARGEST = 500_000  # of all sets together; beyond it the short constructions run dry

# Suffix of each file, and the line that a sentence has in it.
FILES = {
    "en": lambda s: s.source,
    "de": lambda s: s.target,
    "align": lambda s: s.pharaoh,
    "tags": lambda s: " ".join(sorted(s.tags)),
    "detok.en": lambda s: detokenise(s.source),
    "detok.de": lambda s: detokenise(s.target),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, draw the sets and write them."""
    arguments = _parser().parse_args(argv)
    if arguments.sample is not None:
        return _print_sample(arguments.sample, arguments.seed)
    if arguments.output is None:
        raise UserError("no directory to write to; give one with -o DIR")
    if arguments.if_missing and _written(arguments.output):
        print(f"{arguments.output}: already there, nothing to do", file=sys.stderr)
        return 0
    sizes = {name: getattr(arguments, name.replace("-", "_")) for name in SIZES}
    _check(sizes)
    sets = _write(arguments.output, sizes, arguments.seed)
    summary = _summary(sets, arguments.seed)
    if arguments.json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        for name, found in sets.items():
            tokens = sum(len(sentence.english) for sentence in found)
            print(f"{arguments.output / name}.*: {len(found)} sentences, {tokens} English tokens")
    return 0


def _parser() -> argparse.ArgumentParser:
    lines = (__doc__ or "").split("\n\n")
    parser = command_line(lines[0], "\n\n".join(lines[1:]))
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="directory to write to")
    parser.add_argument(
        "--seed", type=whole(), default=1, help="other seeds give other sentences (default: 1)"
    )
    for name, size in SIZES.items():
        parser.add_argument(
            f"--{name}",
            metavar="N",
            type=whole(),
            default=size,
            help=f"sentences in {name} ({size})",
        )
    parser.add_argument(
        "--if-missing", action="store_true", help="do nothing if every file is there already"
    )
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.add_argument(
        "--sample",
        metavar="N",
        type=whole(1, 1000),
        help="only print N sentences of every construction",
    )
    return parser


def _written(folder: Path) -> bool:
    return all((folder / f"{name}.{suffix}").exists() for name in ORDER for suffix in FILES)


def _check(sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values())
    if total > LARGEST:
        raise UserError(
            f"{total} sentences are more than the grammar can keep apart in disjoint sets; "
            f"ask for {LARGEST} in all at most"
        )


def _write(folder: Path, sizes: Mapping[str, int], seed: int) -> dict[str, list[Sentence]]:
    """Write all files or none: they are renamed into place after the last line is written."""
    with ExitStack() as stack:
        paths = {
            (name, suffix): stack.enter_context(replacing(folder / f"{name}.{suffix}"))
            for name in ORDER
            for suffix in FILES
        }
        sets = draw_sets(lexicon.load(), sizes, seed, _progress(sizes))
        for (name, suffix), path in paths.items():
            line = FILES[suffix]
            with path.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line(sentence)}\n" for sentence in sets[name])
    return sets


def _progress(sizes: Mapping[str, int]) -> Progress:
    def show(name: str, count: int) -> None:
        if count == sizes[name] or count % 2000 == 0:
            print(f"\r{name}: {count} of {sizes[name]}", end="", file=sys.stderr, flush=True)
            if count == sizes[name]:
                print(file=sys.stderr)

    return show


def _summary(sets: Mapping[str, Sequence[Sentence]], seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "sets": {
            name: {
                "sentences": len(found),
                "english_tokens": sum(len(sentence.english) for sentence in found),
                "german_tokens": sum(len(sentence.german) for sentence in found),
                "links": sum(len(sentence.alignment) for sentence in found),
                "constructions": dict(sorted(Counter(t for s in found for t in s.tags).items())),
            }
            for name, found in sets.items()
        },
    }


def _print_sample(count: int, seed: int) -> int:
    draw = ClauseDraw(lexicon.load(), Dice(f"{seed}/sample"))
    for name in (*DRAWN, *HARD):
        print(f"# {name}")
        for _ in range(count):
            sentence = draw_one(draw, name)
            print(f"{sentence.source}\n{sentence.target}\n{sentence.pharaoh}\n")
    return 0


if __name__ == "__main__":
    run(main)
