"""The files a command writes: checked before the work, written all or none after it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import replacing

#: Endings of a figure.
FIGURES = (".png", ".svg", ".pdf")
#: Writes the content of one file to the path it is given, whose ending says nothing.
Writer = Callable[[Path], None]


def add_output(parser: argparse.ArgumentParser, endings: str) -> None:
    """``-o FILE``, any number of times; ``endings`` tells which there are and what they give."""
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help=f"write to FILE instead, by its ending: {endings}; may be repeated",
    )


def ending(path: str) -> str:
    """What decides the format of a file: ``.TEX`` is ``.tex``."""
    return Path(path).suffix.lower()


def check_outputs(paths: Sequence[str], endings: Iterable[str], option: str = "-o") -> None:
    """Refuse before the work starts what would be refused after it."""
    known = list(endings)
    for path in paths:
        if ending(path) not in known:
            many = "one of " if len(known) > 1 else ""
            raise UserError(f"{option} {path}: the ending must be {many}{' '.join(known)}")
        if Path(path).is_dir():
            raise UserError(f"{option} {path}: it is a folder; give the name of a file")
        folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(f"{option} {path}: cannot write into {folder}; choose another place")
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise UserError("two outputs have the same name; give each its own")


def write_outputs(contents: Mapping[str, str | Writer]) -> None:
    """Write every file, of a text or by a function; if one cannot be written, none is."""
    with ExitStack() as stack:
        for path, content in contents.items():
            temporary = stack.enter_context(replacing(path))
            if isinstance(content, str):
                temporary.write_text(content, encoding="utf-8")
            else:
                content(temporary)
