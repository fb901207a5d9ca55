"""Scores as an object that renders itself: text, JSON, Markdown, LaTeX, and lines as TSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from onmt_evsoftmax.report import table
from onmt_evsoftmax.report.statistics import Mean, number
from onmt_evsoftmax.report.table import Marked, Table, as_json, render

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
    def value(self) -> Mean:
        """Mean over the runs, with its standard error; one run has none."""
        return Mean.of(self.runs)

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return self.value.mean

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
        """Systems whose printed mean is the best one; a single system is not the best of any."""
        if len(self.cells) < 2:
            return set()
        printed = {name: float(number(cell.mean, digits)) for name, cell in self.cells.items()}
        top = (max if self.higher_is_better else min)(printed.values())
        return {name for name, value in printed.items() if value == top}

    def cells_of(self, systems: Iterable[str], digits: int) -> list[table.Cell]:
        """The row of a table: its heading, then a cell for each of ``systems``."""
        best = self.best(digits)
        return [
            self.heading,
            *(
                Marked(self.cells[name].value.text(digits), name in best, self.cells[name].stars)
                for name in systems
            ),
        ]


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
        return render(self.tables(".txt", digits), ".txt")

    def markdown(self, digits: int = 2) -> str:
        """The same as tables of Markdown, the best of each row bold."""
        return render(self.tables(".md", digits), ".md")

    def latex(self, digits: int = 2) -> str:
        """A table in the shape of the paper's: metrics down, systems across, the best bold."""
        return render(self.tables(".tex", digits), ".tex")

    def json(self) -> str:
        """Everything at full precision."""
        return as_json(self.as_dict())

    def tables(self, extension: str, digits: int = 2) -> list[Table]:
        """The scores and, but for a paper, the tests behind their stars."""
        longest = max(len(row.label) for row in self.rows) + 1
        signatures = [f"{row.label + ':':<{longest}} {row.signature}" for row in self.rows]
        scores = Table(
            "",
            ["Metric", *self.systems],
            [row.cells_of(self.systems, digits) for row in self.rows],
            notes=self._legend() if self.baseline else (),
            caption=self._caption(),
            reference="tab:scores",
        )
        if not self.baseline or extension == ".tex":
            return [replace(scores, signatures=signatures)]
        return [scores, replace(self._tests(digits), signatures=signatures)]

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
        lines = [["line", "system", "run", *(row.label for row in self.rows)]]
        for (name, run), columns in self.sentences.items():
            for at, scores in enumerate(zip(*columns, strict=True), start=1):
                values = [f"{score:.4f}" for score in scores]
                lines.append([str(at), name, str(run + 1), *values])
        return "".join("\t".join(line) + "\n" for line in lines)

    def _tests(self, digits: int) -> Table:
        rows = []
        for name in self.systems:
            for row in self.rows:
                if test := row.cells[name].comparison:
                    low, high = (f"{bound:+.{digits}f}" for bound in test.interval)
                    rows.append(
                        [
                            f"{name}, {row.label}",
                            f"{test.difference:+.{digits}f}",
                            f"{low} … {high}",
                            f"{test.p_bootstrap:.4f}",
                            f"{test.p_randomisation:.4f}",
                        ]
                    )
        columns = ["", f"against {self.baseline}", "95 % interval", "p (bs)", "p (ar)"]
        return Table("", columns, rows)

    def _legend(self) -> list[str]:
        return [
            f"* p < 0.05, ** p < 0.01 against {self.baseline} in both tests: paired bootstrap "
            "(bs, one tail,",
            "as sacreBLEU has it) and approximate randomisation (ar, two-sided), "
            f"{self.resamples} resamples, seed {self.seed}",
        ]

    def _caption(self) -> str:
        counts = sorted({len(runs) for runs in self.systems.values()})
        text = f"Scores on {self.lines} lines"
        if counts[-1] > 1:
            seeds = "–".join(str(count) for count in {counts[0]: 0, counts[-1]: 0})
            text += f", mean and standard error over {seeds} random seeds"
        text += "."
        if self.baseline:
            text += (
                f" The asterisk * denotes a significant difference from {self.baseline} at the "
                "level of 0.05, ** of 0.01, in both paired bootstrap and approximate "
                f"randomisation ({self.resamples} resamples)."
            )
        return text


def _cell_dict(cell: Cell) -> dict[str, Any]:
    value, runs = cell.value, list(cell.runs)
    result: dict[str, Any] = {"mean": value.mean, "standard_error": value.error, "runs": runs}
    if test := cell.comparison:
        result["comparison"] = {**asdict(test), "stars": test.stars}
    return result
