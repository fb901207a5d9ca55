"""A recipe's folder as its ``recipe.yaml`` describes it, and the options that change it."""

from __future__ import annotations

import argparse
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from onmt_evsoftmax.corpora.parallel import write_lines
from onmt_evsoftmax.report import yaml_file
from onmt_evsoftmax.report.console import UserError, unknown_name, whole
from onmt_evsoftmax.report.files import lines_of

MODELS = {"bpe": "bpe.codes", "sentencepiece": "spm.model"}  # kind of subwords → its file in data/

#: Keys that the command line may overrule.
CHANGEABLE = (
    "source", "target", "subwords", "size", "subwords_from", "normalizers", "seeds", "threads",
    "gpus", "pretrained", "settings",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The keys of ``recipe.yaml``; ``recipes/README.md`` explains each."""

    folder: Path
    source: str
    target: str
    subwords: str
    size: int
    reference: str  # below the output folder; {source} and {target} stand for the languages
    archives: Mapping[str, list[str]] = field(default_factory=dict)
    alignments: str = ""  # gold alignments of the test set, where there are any
    truecased: bool = False
    both_positions: bool = False
    average: int = 1
    normalizers: list[str] = field(default_factory=lambda: ["evsoftmax"])
    seeds: list[int] = field(default_factory=lambda: [1])
    parallel: int = 1
    threads: int = 1
    gpus: int = 0
    pretrained: str = ""  # {output} and {seed} are filled in
    subwords_from: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    study: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, changes: Mapping[str, Any], study: bool = False) -> Recipe:
        """The recipe in ``folder`` with ``changes``; with ``study``, as ``make study`` runs it."""
        path = folder / "recipe.yaml"
        if not path.is_file():
            raise UserError(f"{folder} is not a recipe: it has no recipe.yaml")
        # Of the languages `_check` says what they must be, wherever they are from.
        hints = {**typing.get_type_hints(cls), "source": Any, "target": Any}
        del hints["folder"]
        given = yaml_file.entries(path)
        found = {key: yaml_file.typed(hints, place, key, value) for place, key, value in given}
        for key, value in found.get("study", {}).items():
            found["study"][key] = yaml_file.typed(hints, f"{path}, study", key, value)
        if study:
            found |= found.get("study", {})
        try:
            recipe = cls(folder=folder.resolve(), **(found | dict(changes)))
        except TypeError as error:  # "… missing 1 required positional argument: 'target'"
            raise UserError(f"{path}: {str(error).partition('__() ')[2]}") from error
        recipe._check(path)
        return recipe

    def _check(self, path: Path) -> None:
        for key in ("source", "target"):
            if not isinstance(getattr(self, key), str):
                raise UserError(f"{path}: {key} must be a language code; quote it, as in 'no'")
        if self.source == self.target:
            raise UserError(f"{path}: source and target are both {self.source}")
        if self.subwords not in MODELS:
            raise UserError(f"{path}: {unknown_name('kind of subwords', self.subwords, MODELS)}")

    @property
    def model(self) -> str:
        """The file in ``data/`` that holds the subwords."""
        return MODELS[self.subwords]

    def path(self, text: str) -> str:
        """A path of ``recipe.yaml`` with the languages filled in."""
        return filled(text, source=self.source, target=self.target)


def filled(text: str, **values: object) -> str:
    """A text of ``recipe.yaml`` with the names in braces filled in."""
    try:
        return text.format(**values)
    except (LookupError, ValueError) as error:
        names = ", ".join(f"{{{name}}}" for name in values)
        raise UserError(
            f"recipe.yaml: {text!r} can have {names} in braces, nothing else"
        ) from error


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that ``prepare.sh`` and ``run.sh`` share."""
    add = parser.add_argument
    add("-o", "--output", type=Path, help="folder for everything (default: runs/RECIPE)")
    add("--data-dir", type=Path, help="use the archives in this folder, download none")
    add("--sources", type=Path, help="YAML with other `archives`, as for a mirror")
    add(
        "--source",
        metavar="LANG",
        help="translate from this language (default: as in recipe.yaml) …",
    )
    add("--target", metavar="LANG", help="… into this one")
    add("--subwords", choices=MODELS, help="default: as in recipe.yaml")
    add("--size", type=whole(1, 10**7), help="merges of bpe, or pieces of sentencepiece")
    add(
        "--subwords-from",
        metavar="DIR",
        help="subwords of this output folder, to fine-tune its model",
    )
    add("--jobs", type=whole(1), default=_cores(), help="processes at a time (default: all cores)")
    add("--dry-run", action="store_true", help="show the commands, run none")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chosen(folder: Path, args: argparse.Namespace) -> Recipe:
    """The recipe with the options of :func:`add_options`; paths in ``args`` become absolute."""
    if args.size is not None and args.subwords_from:
        raise UserError(f"--size is that of the subwords in {args.subwords_from}: leave it out")
    for option in ("data_dir", "subwords_from"):
        if given := getattr(args, option):
            place = Path(given).absolute()
            if not place.is_dir():
                raise UserError(f"--{option.replace('_', '-')} {place} is not a folder")
            setattr(args, option, str(place))
    args.output = (args.output or Path("runs") / folder.resolve().name).absolute()
    args.sources = (args.sources or folder / "recipe.yaml").absolute()
    names = ("source", "target", "subwords", "size", "subwords_from")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    recipe = Recipe.read(folder, changes)
    if not recipe.subwords_from:
        return recipe
    return replace(recipe, subwords_from=os.path.abspath(recipe.subwords_from))


def shell_code(recipe: Recipe, args: argparse.Namespace) -> list[str]:
    """What ``prepare.sh`` evaluates: its variables, and the step into the output folder."""
    values = {
        "sources": args.sources,
        "data_dir": args.data_dir or "",
        "src": recipe.source,
        "tgt": recipe.target,
        "pair": "-".join(sorted((recipe.source, recipe.target))),
        "subwords": recipe.subwords,
        "size": recipe.size,
        "subwords_from": recipe.subwords_from,
        "model": recipe.model,
        "words": "tokenised" if recipe.subwords == "bpe" else "text",
        "jobs": args.jobs,
    }
    code = [f"{name}={quote(str(value))}" for name, value in values.items()]
    if args.dry_run:
        show = """() { printf '    %s\\n' "${FUNCNAME[0]} $*"; }"""
        return [*code, f"onmt_evsoftmax{show}", f"python{show}"]
    _remember(args.output / "data" / "subwords", recipe)
    return [*code, f"cd {quote(str(args.output))}"]


def _remember(path: Path, recipe: Recipe) -> None:
    """Refuse other subwords than those a folder has: finished steps would keep the old ones."""
    now = f"{recipe.subwords} {recipe.subwords_from or recipe.size}"
    if not path.exists():
        write_lines(path, [now])
    elif (before := next(lines_of(path))) != now:
        raise UserError(
            f"{path.parent} was made with '{before}', not with '{now}'; choose another -o, "
            "or delete it"
        )
