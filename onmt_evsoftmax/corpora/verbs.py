"""The command line of the corpora: one verb per step of a recipe's ``prepare.sh``."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from onmt_evsoftmax.corpora import VERBS, extract, recipe, run_recipe, steps, subwords
from onmt_evsoftmax.report.console import command_line, real, whole

_EXAMPLE = """A verb whose outputs exist does nothing. Without files it reads standard input and
writes standard output; a pair is then a line with a tab between the sentences.

example:
  $ onmt_evsoftmax corpora fetch --sources recipes/multi30k/recipe.yaml -o downloads
  $ onmt_evsoftmax corpora extract --source downloads/train.en.gz --target downloads/train.de.gz \\
        -o raw.en raw.de
  $ onmt_evsoftmax corpora clean raw.en raw.de -o train.en train.de --max-words 100
  $ zcat downloads/test_2016_flickr.de.gz | onmt_evsoftmax corpora tokenise --lang de | head
"""


class _ForShell(argparse.Action):
    """``--help`` inside ``eval "$(…)"``: shell code that prints the help and ends the script."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"cat <<'HELP'\n{parser.format_help()}HELP\nexit 0")
        sys.exit(0)


def build_parser(recipe_name: str = "RECIPE") -> argparse.ArgumentParser:
    """The parser, one sub-parser per verb; two of them are the scripts of a recipe."""
    parser = command_line("Prepare parallel text for training, one step at a time.", _EXAMPLE)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(
        name: str, function: Callable[[argparse.Namespace], int | None], **how: object
    ) -> argparse.ArgumentParser:
        about = VERBS[name]
        sub = verbs.add_parser(
            name, help=about, description=about, allow_abbrev=False, **how  # type: ignore[arg-type]
        )  # fmt: skip
        sub.set_defaults(function=function)
        return sub

    def pair(add: Callable[..., object]) -> None:
        add("files", type=Path, nargs="*", help="source and target text")

    def two_outputs(add: Callable[..., object]) -> None:
        names = ("SOURCE", "TARGET")
        about = "two files (default: standard output)"
        add("-o", "--output", type=Path, nargs=2, metavar=names, help=about)

    def text(add: Callable[..., object]) -> None:
        add("files", type=Path, nargs="*", help="training text of both languages")
        add(
            "--subwords-from",
            metavar="DIR",
            help="copy what this output folder of a recipe has, instead",
        )

    def each(add: Callable[..., object]) -> None:
        add("files", type=Path, nargs="*", help="text (default: standard input)")
        about = "folder for files of the same names; needed if files are given"
        add("-o", "--output", type=Path, help=about)
        add("--jobs", type=whole(1), default=1, help="processes (default: 1)")

    add = verb("fetch", steps.fetch).add_argument
    add("names", nargs="*", help="which files of the list (default: all)")
    add("--sources", type=Path, required=True, help="YAML with `archives`: a recipe")
    add("--data-dir", help="link to the files in this folder, download none")
    add("-o", "--output", type=Path, required=True, help="folder of downloads")

    add = verb("extract", steps.extract_text).add_argument
    about = "tags: IWSLT's train.tags; segments: IWSLT's XML, WMT's SGML (default: plain)"
    add("--format", default="plain", choices=[*extract.FORMATS, "columns"], help=about)
    place = "FILE, or ARCHIVE::FILE inside it"
    add("--source", nargs="+", required=True, metavar="PLACE", help=place)
    add("--target", nargs="+", default=[], metavar="PLACE", help="as many files; none with columns")
    add("--swap", action="store_true", help="the second column is the source")
    two_outputs(add)

    add = verb("clean", steps.clean).add_argument
    pair(add)
    two_outputs(add)
    number = whole(1)
    add(
        "--max-words",
        type=number,
        default=150,
        help="drop pairs with more words on a side (default: 150)",
    )
    add(
        "--max-ratio",
        type=real(1),
        default=9.0,
        help="drop pairs whose numbers of words differ by a larger factor (default: 9)",
    )
    add("--keep-repeated", action="store_true", help="keep repeated pairs")
    add(
        "--exclude",
        type=Path,
        nargs="*",
        default=[],
        help="drop pairs whose source is in these files",
    )

    sub = verb("split", steps.split_text)
    add = sub.add_argument
    pair(add)
    either = sub.add_mutually_exclusive_group(required=True).add_argument
    either("--every", type=number, metavar="N", help="hold out every N-th line, for validation")
    about = "hold out N source sentences each for validation and test"
    either("--by-source", type=number, metavar="N", help=about)
    add(
        "--langs",
        nargs=2,
        default=[],
        help="endings of the files, if text comes from standard input",
    )
    add("--prefix", default="", help="before the names train, valid and test")
    add("-o", "--output", type=Path, required=True, help="folder")

    add = verb("tokenise", steps.tokenise_text).add_argument
    each(add)
    add("--lang", required=True, help="language of the text: en, de, …")

    for kind, size in (("bpe", "merges"), ("sentencepiece", "pieces")):
        learn = functools.partial(steps.learn, kind)
        add = verb(f"learn-{kind}", learn).add_argument
        text(add)
        add("--size", type=whole(1, 10**7), required=True, help=f"number of {size}")
        add("-o", "--output", type=Path, required=True, help="file to write")

    add = verb("encode", steps.encode).add_argument
    each(add)
    add("--model", type=Path, required=True, help="what `learn-…` wrote")

    add = verb("vocabulary", steps.vocabulary).add_argument
    text(add)
    add("-o", "--output", type=Path, help="file (default: standard output)")

    add = verb("decode", steps.decode).add_argument
    about = "text in subwords (default: standard input)"
    add("input", type=Path, nargs="?", default=steps.STDIN, help=about)
    add("-o", "--output", type=Path, help="file (default: standard output)")
    about = "kind of subwords; words: there are none to join"
    add("--kind", choices=[*subwords.KINDS, "words"], required=True, help=about)
    add("--detokenise", metavar="LANG", help="undo Moses tokenisation too")
    add("--truecased", action="store_true", help="begin every line with a capital")

    add = verb("check", steps.check).add_argument
    pair(add)

    add = verb("settings", steps.write_settings).add_argument
    add("recipe", type=Path, help="folder of the recipe")
    add("--normalizer", required=True, metavar="NAME", help="of all attention")
    add("--seed", type=whole(), default=1, metavar="N", help="default: 1")
    add("--pretrained", default="", metavar="FILE.pt", help="checkpoint to start from")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of train.yaml; may be repeated",
    )
    add("--run", help="name of its folder (default: NORMALIZER-seedSEED)")
    add("--study", action="store_true", help="use `study` of recipe.yaml, as `make study` does")
    add("-o", "--output", type=Path, help="file (default: standard output)")
    add("--source", metavar="LANG", help="language translated from")
    add("--target", metavar="LANG", help="language translated into")

    script = f"recipes/{recipe_name}/prepare.sh"
    sub = verb("options", steps.options,
               add_help=False, prog=script, usage=f"{script} [options]",
               epilog=f"example:\n  $ {script} -o runs/{recipe_name} --data-dir ~/corpora",
               )  # fmt: skip
    sub.description = (
        "Prepare the data of this recipe. The same command continues where it stopped."
    )
    add = sub.add_argument
    add("recipe", type=Path, help=argparse.SUPPRESS)
    add("-h", "--help", action=_ForShell, nargs=0, help="show this help")
    recipe.add_options(sub)

    script = f"recipes/{recipe_name}/run.sh"
    sub = verb(
        "run",
        run_recipe.run,
        prog=script,
        usage=f"{script} [options]",
        epilog=run_recipe.EXAMPLE.format(script),
    )
    sub.description = (
        "From archives to a table: prepare, train with each normalizer, average, translate, score, "
        "count attended tokens, draw."
    )
    run_recipe.add_options(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb."""
    words = list(sys.argv[1:] if argv is None else argv)
    named = words[:1] in (["options"], ["run"]) and words[1:] and not words[1].startswith("-")
    args = build_parser(Path(words[1]).resolve().name if named else "RECIPE").parse_args(words)
    return args.function(args) or 0
