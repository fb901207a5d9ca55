"""Reading the tables of ``data/lexicon``."""

from __future__ import annotations

from pathlib import Path

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import read_lines

FOLDER = Path(__file__).resolve().parent.parent / "lexicon"
NONE = "-"


def read_table(name: str, folder: Path = FOLDER) -> list[dict[str, str]]:
    """Read ``name``.tsv: a header line, then rows of as many cells, ``-`` for none or regular."""
    path = folder / f"{name}.tsv"
    header, *rows = [line.split("\t") for line in read_lines(path)]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise UserError(
                f"{path}, line {number}: {len(row)} cells but the header has {len(header)}; "
                "write - for an empty cell"
            )
    return [dict(zip(header, row, strict=True)) for row in rows]


def listed(cell: str) -> tuple[str, ...]:
    """Split a cell at its spaces; ``-`` is nothing."""
    return () if cell == NONE else tuple(cell.split())
