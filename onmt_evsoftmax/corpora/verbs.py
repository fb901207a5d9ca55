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

    def pair(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("files", type=Path, nargs="*", help="source and target text")

    def two_outputs(sub: argparse.ArgumentParser) -> None:
        names = ("SOURCE", "TARGET")
        about = "two files (default: standard output)"
        sub.add_argument("-o", "--output", type=Path, nargs=2, metavar=names, help=about)

    def text(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("files", type=Path, nargs="*", help="training text of both languages")
        sub.add_argument(
            "--subwords-from",
            metavar="DIR",
            help="copy what this output folder of a recipe has, instead",
        )

    def each(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("files", type=Path, nargs="*", help="text (default: standard input)")
        about = "folder for files of the same names; needed if files are given"
        sub.add_argument("-o", "--output", type=Path, help=about)
        sub.add_argument("--jobs", type=whole(1), default=1, help="processes (default: 1)")

    sub = verb("fetch", steps.fetch)
    sub.add_argument("names", nargs="*", help="which files of the list (default: all)")
    sub.add_argument("--sources", type=Path, required=True, help="YAML with `archives`: a recipe")
    sub.add_argument("--data-dir", help="link to the files in this folder, download none")
    sub.add_argument("-o", "--output", type=Path, required=True, help="folder of downloads")

    sub = verb("extract", steps.extract_text)
    about = "tags: IWSLT's train.tags; segments: IWSLT's XML, WMT's SGML (default: plain)"
    sub.add_argument("--format", default="plain", choices=[*extract.FORMATS, "columns"], help=about)
    place = "FILE, or ARCHIVE::FILE inside it"
    sub.add_argument("--source", nargs="+", required=True, metavar="PLACE", help=place)
    sub.add_argument(
        "--target", nargs="+", default=[], metavar="PLACE", help="as many files; none with columns"
    )
    sub.add_argument("--swap", action="store_true", help="the second column is the source")
    two_outputs(sub)

    sub = verb("clean", steps.clean)
    pair(sub)
    two_outputs(sub)
    number = whole(1)
    sub.add_argument(
        "--max-words",
        type=number,
        default=150,
        help="drop pairs with more words on a side (default: 150)",
    )
    sub.add_argument(
        "--max-ratio",
        type=real(1),
        default=9.0,
        help="drop pairs whose numbers of words differ by a larger factor (default: 9)",
    )
    sub.add_argument("--keep-repeated", action="store_true", help="keep repeated pairs")
    sub.add_argument(
        "--exclude",
        type=Path,
        nargs="*",
        default=[],
        help="drop pairs whose source is in these files",
    )

    sub = verb("split", steps.split_text)
    pair(sub)
    how = sub.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--every", type=number, metavar="N", help="hold out every N-th line, for validation"
    )
    how.add_argument(
        "--by-source",
        type=number,
        metavar="N",
        help="hold out N source sentences each for validation and test",
    )
    sub.add_argument(
        "--langs",
        nargs=2,
        default=[],
        help="endings of the files, if text comes from standard input",
    )
    sub.add_argument("--prefix", default="", help="before the names train, valid and test")
    sub.add_argument("-o", "--output", type=Path, required=True, help="folder")

    sub = verb("tokenise", steps.tokenise_text)
    each(sub)
    sub.add_argument("--lang", required=True, help="language of the text: en, de, …")

    for kind, size in (("bpe", "merges"), ("sentencepiece", "pieces")):
        learn = functools.partial(steps.learn, kind)
        sub = verb(f"learn-{kind}", learn)
        text(sub)
        sub.add_argument("--size", type=whole(1, 10**7), required=True, help=f"number of {size}")
        sub.add_argument("-o", "--output", type=Path, required=True, help="file to write")

    sub = verb("encode", steps.encode)
    each(sub)
    sub.add_argument("--model", type=Path, required=True, help="what `learn-…` wrote")

    sub = verb("vocabulary", steps.vocabulary)
    text(sub)
    sub.add_argument("-o", "--output", type=Path, help="file (default: standard output)")

    sub = verb("decode", steps.decode)
    about = "text in subwords (default: standard input)"
    sub.add_argument("input", type=Path, nargs="?", default=steps.STDIN, help=about)
    sub.add_argument("-o", "--output", type=Path, help="file (default: standard output)")
    about = "kind of subwords; words: there are none to join"
    sub.add_argument("--kind", choices=[*subwords.KINDS, "words"], required=True, help=about)
    sub.add_argument("--detokenise", metavar="LANG", help="undo Moses tokenisation too")
    sub.add_argument("--truecased", action="store_true", help="begin every line with a capital")

    sub = verb("check", steps.check)  # fmt: skip
    pair(sub)

    sub = verb("settings", steps.write_settings)
    sub.add_argument("recipe", type=Path, help="folder of the recipe")
    sub.add_argument("--normalizer", required=True, metavar="NAME", help="of all attention")
    sub.add_argument("--seed", type=whole(), default=1, metavar="N", help="default: 1")
    sub.add_argument("--pretrained", default="", metavar="FILE.pt", help="checkpoint to start from")
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of train.yaml; may be repeated",
    )
    sub.add_argument("--run", help="name of its folder (default: NORMALIZER-seedSEED)")
    sub.add_argument(
        "--study", action="store_true", help="use `study` of recipe.yaml, as `make study` does"
    )
    sub.add_argument("-o", "--output", type=Path, help="file (default: standard output)")
    sub.add_argument("--source", metavar="LANG", help="language translated from")
    sub.add_argument("--target", metavar="LANG", help="language translated into")

    script = f"recipes/{recipe_name}/prepare.sh"
    sub = verb("options", steps.options,
               add_help=False, prog=script, usage=f"{script} [options]",
               epilog=f"example:\n  $ {script} -o runs/{recipe_name} --data-dir ~/corpora",
               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    sub.description = (
        "Prepare the data of this recipe. The same command continues where it stopped."
    )
    sub.add_argument("recipe", type=Path, help=argparse.SUPPRESS)
    sub.add_argument("-h", "--help", action=_ForShell, nargs=0, help="show this help")
    recipe.add_options(sub)

    script = f"recipes/{recipe_name}/run.sh"
    sub = verb("run", run_recipe.run,
               prog=script, usage=f"{script} [options]", epilog=run_recipe.EXAMPLE.format(script),
               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    sub.description = (
        "From archives to a table: prepare, train with each normalizer, average, translate, score, "
        "count attended tokens, draw."
    )
    run_recipe.add_options(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_script = len(words) > 1 and words[0] in ("options", "run")
    args = build_parser(Path(words[1]).resolve().name if is_script else "RECIPE").parse_args(words)
    return args.function(args) or 0
