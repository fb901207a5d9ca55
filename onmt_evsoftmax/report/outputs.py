"""The files a command writes: checked before the work, written all or none after it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from onmt_evsoftmax.report.console import UserError, terminal_width
from onmt_evsoftmax.report.files import check_replaceable, replacing
from onmt_evsoftmax.report.table import Table, render

PathLike = str | os.PathLike[str]
#: Endings of a table.
TABLES = (".txt", ".md", ".tex", ".json")
#: Endings of a figure.
FIGURES = (".png", ".svg", ".pdf")
#: Writes the content of one file to the path it is given, whose own ending says nothing.
Writer = Callable[[Path], None]
#: Draws a figure: where to, and which of FIGURES it is.
Draw = Callable[[Path, str], None]


def add_output(parser: argparse.ArgumentParser, endings: str) -> None:
    """``-o FILE``, any number of times, and ``--json``; ``endings`` says what each one gives."""
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help=f"write to FILE instead, by its ending: {endings}; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, at full precision")


def ending(path: PathLike) -> str:
    """What decides the format of a file: ``.TEX`` is ``.tex``."""
    return Path(path).suffix.lower()


def check_outputs(
    paths: Sequence[PathLike],
    endings: Iterable[str] | None = None,
    option: str = "-o",
    inputs: Iterable[PathLike] = (),
) -> None:
    """Refuse before the work starts what would be refused after it, or would destroy an input.

    ``endings`` are those allowed, None for any. ``inputs`` are the files that the command reads:
    no output may be one of them, under whatever name (another path, a link, a hard link).
    """
    known = None if endings is None else list(endings)
    read = list(inputs)
    for path in paths:
        if known is not None and ending(path) not in known:
            many = "one of " if len(known) > 1 else ""
            raise UserError(f"{option} {path}: the ending must be {many}{' '.join(known)}")
        if Path(path).is_dir():
            raise UserError(f"{option} {path}: it is a folder; give the name of a file")
        if option != "-output":  # OpenNMT-py's commands write into a pipe, and replace nothing
            check_replaceable(path)
        folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(f"{option} {path}: cannot write into {folder}; choose another place")
        for source in read:
            if _same_file(path, source):
                raise UserError(
                    f"{option} {path} is the input {source}, which would be lost; "
                    "give the output another name"
                )
    for number, path in enumerate(paths):
        if any(_same_file(path, other) for other in paths[:number]):
            raise UserError("two outputs have the same name; give each its own")


def _same_file(one: PathLike, other: PathLike) -> bool:
    """Whether two paths are one file: after links are followed, or as hard links."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them does not exist
        return False


def write_outputs(contents: Mapping[str, str | Writer]) -> None:
    """Write every file, of a text or by a function; if one cannot be written, none is."""
    with ExitStack() as stack:
        for path, content in contents.items():
            temporary = stack.enter_context(replacing(path))
            if isinstance(content, str):
                temporary.write_text(content, encoding="utf-8")
            else:
                content(temporary)


def publish(
    tables: Callable[[str], Sequence[Table]],
    json: Callable[[], str],
    paths: Sequence[str] = (),
    *,
    print_json: bool = False,
    draw: Draw | None = None,
    more: Mapping[str, str | Writer] | None = None,
) -> None:
    """Write a command's result to ``paths`` by their endings, and print what no file took.

    ``tables`` gives the tables for an ending (``.txt``, ``.md``, ``.tex``). JSON is printed if it
    is asked for, else text unless a table was written; on a terminal the text fits its width.
    ``more`` are further files, written with the others or not at all.
    """
    outputs: dict[str, str | Writer] = {}
    for path in paths:
        kind = ending(path)
        if kind in FIGURES:
            assert draw is not None  # `check_outputs` has refused the ending otherwise
            outputs[path] = partial(_drawn, draw, kind)
        else:
            outputs[path] = json() if kind == ".json" else render(tables(kind), kind)
    write_outputs({**outputs, **(more or {})})
    if print_json:
        sys.stdout.write(json())
    elif all(ending(path) in FIGURES for path in paths):
        sys.stdout.write(render(tables(".txt"), ".txt", terminal_width()))


def _drawn(draw: Draw, kind: str, path: Path) -> None:
    draw(path, kind)
