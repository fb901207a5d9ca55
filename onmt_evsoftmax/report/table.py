"""One table that renders itself for a terminal, a README, a paper or a program."""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from onmt_evsoftmax.report.latex import escape

#: A table with more rows does not fit on a page and is broken over several.
_PAGE = 45
#: Spaces between the columns of a text table.
_GAP = "  "
#: No label is wrapped into a column narrower than this.
_NARROWEST = 8
_NUMBER = re.compile(r"([-+−]?)(\d[\d.]*)(?: ± (\d[\d.]*))?")


class Marked(NamedTuple):
    """A cell with marks: ``bold``, significance ``stars``, and a remark ``after`` it."""

    text: str
    bold: bool = False
    stars: str = ""
    after: str = ""


Cell = str | Marked


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first ``labels`` columns are names, the others numbers.

    ``notes`` explain the table to its readers. ``signatures`` say how its numbers were made, for
    whoever wants to repeat them: lines below the table, in LaTeX comments. ``caption`` replaces
    title and notes in LaTeX. ``data`` is what the table shows, at full precision, for JSON.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    labels: int = 1
    notes: Sequence[str] = ()
    signatures: Sequence[str] = ()
    caption: str = ""
    reference: str = ""
    data: Any = None

    def text(self, width: int | None = None) -> str:
        """Columns aligned with spaces, at most ``width`` characters wide if that is given.

        A table that is too wide wraps its labels, then puts its number columns below each other
        in several blocks. Numbers are never broken.
        """
        lines = [[_line(_plain(cell)) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(_width(line[i]) for line in lines) for i in range(len(self.columns))]
        if width is not None:
            widths = self._narrowed(widths, width)
        blocks = [
            "\n".join(_aligned([line[i] for i in block], [widths[i] for i in block], self.labels)
                      for line in lines)
            for block in self._blocks(widths, width)
        ]  # fmt: skip
        notes = [_wrapped(note, width, "  ") for note in self.notes]
        head = [_wrapped(self.title, width), ""] if self.title else []
        foot = ["", *map(_line, self.signatures)] if self.signatures else []
        return "\n".join([*head, "\n\n".join(blocks), *notes, *foot, ""])

    def _narrowed(self, widths: list[int], width: int) -> list[int]:
        """Widths of the columns: the widest labels are narrowed until all numbers fit beside them.

        If that is too much to ask, then until the widest one fits.
        """
        labels, numbers = widths[: self.labels], widths[self.labels :]
        for beside in (numbers, [max(numbers, default=0)]):
            room = width - sum(beside) - len(_GAP) * (self.labels + len(beside) - 1)
            narrowed = list(labels)
            while sum(narrowed) > room and max(narrowed, default=0) > _NARROWEST:
                narrowed[narrowed.index(max(narrowed))] -= 1
            if sum(narrowed) <= room:
                break
        return [*narrowed, *numbers]

    def _blocks(self, widths: Sequence[int], width: int | None) -> list[list[int]]:
        """Which columns stand side by side: the labels, and as many numbers as fit."""
        labels = list(range(self.labels))
        blocks = [labels.copy()]
        for i in range(self.labels, len(widths)):
            taken = sum(widths[j] + len(_GAP) for j in blocks[-1])
            if width is not None and len(blocks[-1]) > self.labels and taken + widths[i] > width:
                blocks.append(labels.copy())
            blocks[-1].append(i)
        return blocks

    def markdown(self) -> str:
        """A GitHub table under a heading."""
        rule = ["---" if i < self.labels else "---:" for i in range(len(self.columns))]
        lines = [_markdown_line(self.columns), "|" + "|".join(rule) + "|"]
        lines += [_markdown_line(row) for row in self.rows]
        head = [f"### {_markdown(self.title)}", ""] if self.title else []
        notes = ["", *(f"{_markdown(note)}  " for note in self.notes)] if self.notes else []
        made = ["", *(f"- `{_line(s)}`" for s in self.signatures)] if self.signatures else []
        return "\n".join([*head, *lines, *notes, *made, ""])

    def latex(self) -> str:
        """A booktabs table, shrunk if it is wider than a column; a long one is broken instead."""
        layout = "@{}" + "l" * self.labels + "r" * (len(self.columns) - self.labels) + "@{}"
        caption = rf"\caption{{{escape(self.caption or '. '.join([self.title, *self.notes]))}}}"
        caption += rf"\label{{{self.reference}}}" if self.reference else ""
        head = [r"\toprule", _latex_line(self.columns), r"\midrule"]
        body = [_latex_line(row) for row in self.rows]
        made = [f"% {_line(s)}" for s in self.signatures]
        if len(body) > _PAGE:
            return _lines(
                r"% needs \usepackage{booktabs,longtable}",
                *made,
                r"{\small\setlength{\tabcolsep}{4pt}",
                rf"\begin{{longtable}}{{{layout}}}",
                caption + r" \\",
                *head,
                r"\endfirsthead",
                *head,
                r"\endhead",
                r"\bottomrule",
                r"\endfoot",
                *body,
                r"\end{longtable}}",
            )
        return _lines(
            r"% needs \usepackage{booktabs,graphicx}",
            *made,
            r"\begin{table}[t]",
            r"  \centering",
            f"  {caption}",
            r"  \small\setlength{\tabcolsep}{4pt}",
            r"  \sbox0{%",
            rf"  \begin{{tabular}}{{{layout}}}",
            *(f"    {line}" for line in (*head, *body, r"\bottomrule")),
            r"  \end{tabular}}%",
            r"  \ifdim\wd0>\columnwidth\resizebox{\columnwidth}{!}{\usebox0}\else\usebox0\fi",
            r"\end{table}",
        )

    def json(self) -> str:
        """``data``, for a program."""
        return as_json(self.data)


def render(tables: Sequence[Table], extension: str, width: int | None = None) -> str:
    """All tables as ``.txt``, ``.md`` or ``.tex``; in text, notes they share come once, last."""
    if extension == ".md":
        return "\n".join(table.markdown() for table in tables)
    if extension == ".tex":
        return "\n".join(table.latex() for table in tables)
    following = [*tables[1:], None]
    return "\n".join(
        (replace(table, notes=()) if after and after.notes == table.notes else table).text(width)
        for table, after in zip(tables, following, strict=True)
    )


def as_json(data: Any) -> str:
    """JSON as every command of this package writes it."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text + cell.stars + cell.after


def _line(text: str) -> str:
    """The text in one line: a name may have a line break, a row of a table may not."""
    return " ".join(text.splitlines())


def _width(text: str) -> int:
    """Columns a terminal needs: East Asian wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.category(char) in ("Mn", "Me", "Cf")
        else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )  # fmt: skip


def _aligned(cells: Sequence[str], widths: Sequence[int], labels: int) -> str:
    """One row of a text table, on several lines if a cell must be wrapped."""
    columns = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, columns))
    lines = []
    for at in range(height):
        parts = []
        for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
            part = column[at] if at < len(column) else ""
            space = " " * (width - _width(part))
            parts.append(part + space if i < labels else space + part)
        lines.append(_GAP.join(parts).rstrip())
    return "\n".join(lines)


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` terminal columns, broken between words if possible."""
    if _width(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and _width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        for char in word:
            if _width(lines[-1] + char) > width:
                lines.append("")
            lines[-1] += char
    return lines


def _wrapped(text: str, width: int | None, indent: str = "") -> str:
    if width is None or _width(indent + text) <= width:
        return indent + text
    return textwrap.fill(
        text, max(width, 20), initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _markdown(text: str) -> str:
    return re.sub(r"([|*_<>`\\])", r"\\\1", _line(text))


def _markdown_line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(_markdown_cell(cell) for cell in cells) + " |"


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _markdown(cell)
    text = _markdown(cell.text)
    return (f"**{text}**" if cell.bold else text) + _markdown(cell.stars + cell.after)


def _latex_line(cells: Sequence[Cell]) -> str:
    return " & ".join(_latex_cell(cell) for cell in cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    text, bold, stars, after = Marked(cell) if isinstance(cell, str) else cell
    found = _NUMBER.fullmatch(text)
    raised = f"^{{{stars}}}" if stars else ""
    if found is None:
        shown = rf"\textbf{{{escape(text)}}}" if bold else escape(text)
        return shown + (f"${raised}$" if raised else "") + escape(after)
    sign, value, error = found.groups()
    value = sign.replace("−", "-") + value + (rf" \pm {error}" if error else "")
    if not (sign or error or bold or stars):
        return value + escape(after)
    return (rf"$\mathbf{{{value}}}{raised}$" if bold else f"${value}{raised}$") + escape(after)


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)
