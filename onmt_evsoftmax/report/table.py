"""A table that renders itself for a terminal, a README or a paper."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from onmt_evsoftmax.report.latex import escape

#: A longer table does not fit on a page and is broken over several.
_PAGE = 45


@dataclass(frozen=True)
class Table:
    """Cells are strings; the first ``labels`` columns are names, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    notes: Sequence[str] = field(default_factory=tuple)

    def text(self) -> str:
        """Columns aligned with spaces."""
        lines = [self.columns, *self.rows]
        widths = [max(_width(line[i]) for line in lines) for i in range(len(self.columns))]
        body = [
            "  ".join(
                _pad(cell, width, left=i < self.labels)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, "", *body, *(f"  {note}" for note in self.notes), ""])

    def markdown(self) -> str:
        """A GitHub table under a heading."""
        rule = ["---" if i < self.labels else "---:" for i in range(len(self.columns))]
        lines = [_markdown_line(self.columns), "|" + "|".join(rule) + "|"]
        lines += [_markdown_line(row) for row in self.rows]
        notes = [f"{_markdown(note)}  " for note in self.notes]
        return "\n".join([f"### {_markdown(self.title)}", "", *lines, "", *notes, ""])

    def latex(self) -> str:
        """A booktabs table whose caption is the title and the notes; a long one is broken."""
        layout = "@{}" + "l" * self.labels + "r" * (len(self.columns) - self.labels) + "@{}"
        caption = rf"\caption{{{escape('. '.join([self.title, *self.notes]))}}}"
        head = [r"\toprule", _latex_line(self.columns), r"\midrule"]
        body = [_latex_line(row) for row in self.rows]
        if len(body) > _PAGE:
            return _lines(
                r"% needs \usepackage{booktabs,longtable}",
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
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            f"  {caption}",
            r"  \small\setlength{\tabcolsep}{4pt}",
            rf"  \begin{{tabular}}{{{layout}}}",
            *(f"    {line}" for line in (*head, *body, r"\bottomrule")),
            r"  \end{tabular}",
            r"\end{table}",
        )


def render(tables: Sequence[Table], extension: str) -> str:
    """All tables in the format of ``extension``; in text, notes they share come once, last."""
    if extension == ".txt":
        following = [*tables[1:], None]
        tables = [
            replace(table, notes=()) if after and after.notes == table.notes else table
            for table, after in zip(tables, following, strict=True)
        ]
    return "\n".join(RENDERERS[extension](table) for table in tables)


#: Extension of an output file → how a table is written there.
RENDERERS: dict[str, Callable[[Table], str]] = {
    ".txt": Table.text,
    ".md": Table.markdown,
    ".tex": Table.latex,
}


def plus_minus(value: float, error: float, digits: int = 2) -> str:
    """``7.21 ± 0.04``, or only the value if its error is unknown."""
    if value != value:
        return "–"
    return f"{value:.{digits}f}" + (f" ± {error:.{digits}f}" if error == error else "")


def number(value: float, digits: int = 2) -> str:
    """A number, or a dash for NaN."""
    return "–" if value != value else f"{value:.{digits}f}"


def _width(text: str) -> int:
    """Columns a terminal needs: East Asian wide characters take two."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _pad(text: str, width: int, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text


def _markdown(text: str) -> str:
    return re.sub(r"([|*_<>`\\])", r"\\\1", text)


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_markdown(cell) for cell in cells) + " |"


def _latex_line(cells: Sequence[str]) -> str:
    line = " & ".join(escape(cell) for cell in cells) + r" \\"
    return re.sub(r"(\d[\d.]*) \$\\pm\$ (\d[\d.]*)", r"$\1 \\pm \2$", line)


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)
