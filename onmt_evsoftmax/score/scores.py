"""Scores as an object that renders itself: text, JSON, Markdown, LaTeX, and lines as TSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from onmt_evsoftmax.report.latex import escape

LEVELS = ((0.01, "**"), (0.05, "*"))


@dataclass(frozen=True)
class Comparison:
    """A system against the baseline on one metric: difference, its 95 % interval, p-values."""

    difference: float
    interval: tuple[float, float]
    p_bootstrap: float
    p_randomisation: float

    @property
    def stars(self) -> str:
        """``**`` below 0.01, ``*`` below 0.05, in both tests: neither is picked afterwards."""
        p_value = max(self.p_bootstrap, self.p_randomisation)
        return next((stars for level, stars in LEVELS if p_value < level), "")


@dataclass(frozen=True)
class Cell:
    """One metric of one system: a score per run, and how it compares to the baseline."""

    runs: tuple[float, ...]
    comparison: Comparison | None = None

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return fmean(self.runs)

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean over the runs; one run has none."""
        return stdev(self.runs) / len(self.runs) ** 0.5 if len(self.runs) > 1 else None

    @property
    def stars(self) -> str:
        """The stars of the comparison, if there is one."""
        return self.comparison.stars if self.comparison else ""


@dataclass(frozen=True)
class Row:
    """One metric of every system, by name, and the signature that says how it was made."""

    label: str
    signature: str
    higher_is_better: bool
    cells: Mapping[str, Cell]

    @property
    def heading(self) -> str:
        """The label, with an arrow where lower is better."""
        return self.label if self.higher_is_better else f"{self.label} ↓"

    def best(self, digits: int) -> set[str]:
        """Systems whose printed mean is the best one; a single system beats nobody."""
        if len(self.cells) < 2:
            return set()
        printed = {name: float(f"{cell.mean:.{digits}f}") for name, cell in self.cells.items()}
        top = (max if self.higher_is_better else min)(printed.values())
        return {name for name, value in printed.items() if value == top}


@dataclass(frozen=True)
class Report:
    """Every metric of every system; ``sentences`` holds scores per line when asked for."""

    rows: Sequence[Row]
    systems: Mapping[str, Sequence[str]]  # name → what each run is called, for example its file
    lines: int
    baseline: str | None = None
    resamples: int = 0
    seed: int = 0
    #: (system, run from 0) → scores, one list per row, each as long as the text
    sentences: Mapping[tuple[str, int], Sequence[Sequence[float]]] = field(default_factory=dict)

    def text(self, digits: int = 2) -> str:
        """Tables for a terminal: scores, tests, signatures."""

        def show(cell: Cell, best: bool) -> str:
            return _number(cell, digits, " ± ") + cell.stars

        parts = [_aligned(self._table(digits, show, lambda row: row.heading))]
        if self.baseline:
            parts += [self._legend("*", "**"), _aligned(self._tests(digits))]
        names = max(len(row.label) for row in self.rows)
        parts.append("\n".join(f"{row.label:<{names}}  {row.signature}" for row in self.rows))
        return "\n\n".join(parts) + "\n"

    def markdown(self, digits: int = 2) -> str:
        """The same as tables of Markdown, the best of each row bold."""

        def show(cell: Cell, best: bool) -> str:
            number = _number(cell, digits, " ± ")
            return (f"**{number}**" if best else number) + cell.stars.replace("*", r"\*")

        parts = [_piped(self._table(digits, show, lambda row: row.heading))]
        if self.baseline:
            parts += [self._legend(r"\*", r"\*\*"), _piped(self._tests(digits))]
        parts.append("\n".join(f"- {row.label}: `{row.signature}`" for row in self.rows))
        return "\n\n".join(parts) + "\n"

    def latex(self, digits: int = 2) -> str:
        """A table in the shape of the paper's: metrics down, systems across, the best bold."""

        def show(cell: Cell, best: bool) -> str:
            number = _number(cell, digits, r" \pm ")
            stars = f"^{{{cell.stars}}}" if cell.stars else ""
            return rf"$\mathbf{{{number}}}{stars}$" if best else f"${number}{stars}$"

        def head(row: Row) -> str:
            return escape(row.label) + ("" if row.higher_is_better else r" $\downarrow$")

        names, *body = self._table(digits, show, head)
        table = [[escape(name) for name in names], *body]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        first, *rest = [
            " & ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            for line in table
        ]
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                *(f"% {row.label}: {row.signature}" for row in self.rows),
                r"\begin{table}[t]",
                rf"    \caption{{{self._caption()}}}",
                r"    \centering",
                rf"    \begin{{tabular}}{{@{{}}l{'r' * len(self.systems)}@{{}}}} \toprule",
                rf"    {first} \\ \midrule",
                *(rf"    {line} \\" for line in rest[:-1]),
                rf"    {rest[-1]} \\ \bottomrule",
                r"    \end{tabular}",
                r"    \label{tab:scores}",
                r"\end{table}",
                "",
            ]
        )

    def json(self, digits: int = 2) -> str:
        """Everything at full precision; ``digits`` is for people, not for programs."""
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """The report as plain dictionaries and lists."""
        tests: dict[str, Any] = {}
        if self.baseline:
            tests = {"baseline": self.baseline, "resamples": self.resamples, "seed": self.seed}
        return {
            "lines": self.lines,
            "systems": {name: list(runs) for name, runs in self.systems.items()},
            **tests,
            "metrics": [
                {
                    "name": row.label,
                    "signature": row.signature,
                    "higher_is_better": row.higher_is_better,
                    "systems": {name: _cell_dict(cell) for name, cell in row.cells.items()},
                }
                for row in self.rows
            ],
        }

    def sentence_tsv(self) -> str:
        """One line per sentence, system and run, with a column per metric."""
        table = [["line", "system", "run", *(row.label for row in self.rows)]]
        for (name, run), columns in self.sentences.items():
            for number, scores in enumerate(zip(*columns, strict=True), start=1):
                values = [f"{score:.4f}" for score in scores]
                table.append([str(number), name, str(run + 1), *values])
        return "".join("\t".join(line) + "\n" for line in table)

    def _table(
        self, digits: int, show: Callable[[Cell, bool], str], head: Callable[[Row], str]
    ) -> list[list[str]]:
        table = [["Metric", *self.systems]]
        for row in self.rows:
            best = row.best(digits)
            table.append(
                [head(row), *(show(row.cells[name], name in best) for name in self.systems)]
            )
        return table

    def _tests(self, digits: int) -> list[list[str]]:
        table = [["", f"against {self.baseline}", "95 % interval", "p (bs)", "p (ar)"]]
        for name in self.systems:
            for row in self.rows:
                if test := row.cells[name].comparison:
                    low, high = (f"{bound:+.{digits}f}" for bound in test.interval)
                    table.append(
                        [
                            f"{name}, {row.label}",
                            f"{test.difference:+.{digits}f}",
                            f"{low} … {high}",
                            f"{test.p_bootstrap:.4f}",
                            f"{test.p_randomisation:.4f}",
                        ]
                    )
        return table

    def _legend(self, one: str, two: str) -> str:
        return (
            f"{one} p < 0.05, {two} p < 0.01 against {self.baseline} in both tests:\n"
            "paired bootstrap (bs, one tail, as sacreBLEU has it) and approximate randomisation "
            f"(ar, two-sided),\n{self.resamples} resamples, seed {self.seed}."
        )

    def _caption(self) -> str:
        counts = sorted({len(runs) for runs in self.systems.values()})
        text = f"Scores on {self.lines} lines"
        if counts[-1] > 1:
            seeds = "–".join(str(count) for count in {counts[0]: 0, counts[-1]: 0})
            text += f", mean and standard error over {seeds} random seeds"
        text += "."
        if self.baseline:
            text += (
                rf" The asterisk $^*$ denotes a significant difference from "
                rf"{escape(self.baseline)} at the level of $0.05$, $^{{**}}$ of $0.01$, in both "
                rf"paired bootstrap and approximate randomisation ({self.resamples} resamples)."
            )
        return text


def _number(cell: Cell, digits: int, plus_minus: str) -> str:
    error = cell.standard_error
    number = f"{cell.mean:.{digits}f}"
    return number if error is None else f"{number}{plus_minus}{error:.{digits}f}"


def _cell_dict(cell: Cell) -> dict[str, Any]:
    result: dict[str, Any] = {
        "mean": cell.mean,
        "standard_error": cell.standard_error,
        "runs": list(cell.runs),
    }
    if test := cell.comparison:
        result["comparison"] = {
            "difference": test.difference,
            "interval": list(test.interval),
            "p_bootstrap": test.p_bootstrap,
            "p_randomisation": test.p_randomisation,
            "stars": test.stars,
        }
    return result


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def _piped(table: Sequence[Sequence[str]]) -> str:
    first, *rest = [
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in table
    ]
    return "\n".join([first, "|---|" + "---:|" * (len(table[0]) - 1), *rest])
