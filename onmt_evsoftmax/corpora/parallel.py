"""Parallel text as streams: reading with checks, writing whole files or none."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from itertools import zip_longest
from pathlib import Path

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import decode_line, replacing

PathLike = str | os.PathLike[str]
Pair = tuple[str, str]


def lines_of(path: PathLike) -> Iterator[str]:
    """Stream the lines of a UTF-8 file (``-``: standard input); an empty one is an error."""
    try:
        with nullcontext(sys.stdin.buffer) if str(path) == "-" else open(path, "rb") as stream:
            number = 0
            for number, line in enumerate(stream, start=1):
                yield decode_line(path, number, line.removesuffix(b"\n"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if number == 0:
        name = "standard input" if str(path) == "-" else path
        raise UserError(f"{name} is empty; it must have at least one line")


def pairs_of(source: PathLike, target: PathLike) -> Iterator[Pair]:
    """Stream the pairs of two parallel files, which must have the same number of lines."""
    return paired(source, lines_of(source), target, lines_of(target))


def paired(
    source: PathLike, ours: Iterator[str], target: PathLike, theirs: Iterator[str]
) -> Iterator[Pair]:
    """Pair two streams of lines; unequal numbers, or a side without any text, are errors."""
    filled = [0, 0]
    number = 0
    for number, (left, right) in enumerate(zip_longest(ours, theirs), start=1):
        if left is None or right is None:
            rest = number + sum(1 for _ in (theirs if left is None else ours))
            counts = (number - 1, rest) if left is None else (rest, number - 1)
            raise UserError(
                f"{source} has {counts[0]} lines but {target} has {counts[1]}; "
                "they must be parallel, line by line"
            )
        filled[0] += not left.isspace() and left != ""
        filled[1] += not right.isspace() and right != ""
        yield left, right
    for path, lines in zip((source, target), filled, strict=True):
        if lines == 0:
            raise UserError(f"{path} is an empty side: all its {number} lines are blank")


def write_lines(path: PathLike, lines: Iterable[str]) -> int:
    """Write lines to ``path``, whole or not at all; return how many there were."""
    return write_columns([path], ((line,) for line in lines))


def write_columns(paths: Sequence[PathLike], rows: Iterable[Sequence[str]]) -> int:
    """Write one file per column of ``rows``; all of them appear, or none does."""
    return write_parts({"": paths}, (("", row) for row in rows))[""]


def write_parts(
    parts: Mapping[str, Sequence[PathLike]], rows: Iterable[tuple[str, Sequence[str]]]
) -> dict[str, int]:
    """Write each row to the files of the part it names, one per column; return rows per part.

    All files appear, or none does: also when a part would get no line at all.
    """
    counts = dict.fromkeys(parts, 0)
    with ExitStack() as stack:
        temporaries = {
            part: [stack.enter_context(replacing(path)) for path in paths]
            for part, paths in parts.items()
        }
        first = next(iter(parts.values()))[0]
        try:
            with ExitStack() as files:
                streams = {
                    part: [
                        files.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
                        for path in paths
                    ]
                    for part, paths in temporaries.items()
                }
                for part, row in rows:
                    for stream, text in zip(streams[part], row, strict=True):
                        stream.write(text + "\n")
                    counts[part] += 1
        except OSError as error:
            raise full_disk(first, error) from error
        for part, count in counts.items():
            if count == 0:
                raise UserError(f"no line is left for {parts[part][0]}; check what it is made from")
    return counts


def full_disk(path: PathLike, error: OSError) -> UserError:
    """The error for a write that failed, with what to do when the disk is full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"cannot write {path}: {error.strerror}; free some space and run the same command "
            f"again, the finished steps are kept (folder {Path(path).resolve().parent})"
        )
    return UserError(f"cannot write {path}: {error.strerror}; the file was not changed")
