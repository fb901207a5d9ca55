"""Parallel text as streams: reading with checks, writing whole files or none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import zip_longest

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import lines_of, replacing, same_length

PathLike = str | os.PathLike[str]
Pair = tuple[str, str]


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
            # Their numbers differ, so this raises.
            same_length([(source, counts[0]), (target, counts[1])])
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
        for part, count in counts.items():
            if count == 0:
                raise UserError(f"no line is left for {parts[part][0]}; check what it is made from")
    return counts
