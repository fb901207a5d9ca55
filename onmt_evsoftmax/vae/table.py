"""Results of jobs → a table of means and standard errors over seeds that renders itself."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.report.latex import escape

#: How methods are called in the paper; others keep their name.
TITLES = {
    "softmax": "softmax",
    "sparsemax": "sparsemax",
    "entmax15": "entmax-1.5",
    "posthoc": "post-hoc evidential",
    "evsoftmax": "ev-softmax",
    "sfe": "SFE",
    "sfe+": "SFE+",
    "nvil": "NVIL",
    "sum-and-sample": "Sum&Sample",
    "gumbel": "Gumbel",
    "st-gumbel": "ST Gumbel",
}


@dataclass
class Cell:
    """Mean over seeds; ``error`` is the standard error, None with one seed."""

    mean: float
    error: float | None
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Cell:
        mean = math.fsum(values) / len(values)
        if len(values) == 1:
            return cls(mean, None, 1)
        variance = math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
        return cls(mean, math.sqrt(variance / len(values)), len(values))

    def show(self, decimals: int) -> str:
        text = f"{self.mean:.{decimals}f}"
        return text if self.error is None else f"{text} ± {self.error:.{decimals}f}"


@dataclass
class Table:
    """Method → metric → cell; ``metrics`` gives each metric's (title, decimals)."""

    experiment: str
    rows: dict[str, dict[str, Cell]]
    metrics: dict[str, tuple[str, int]]
    signature: str

    @classmethod
    def of(cls, results: list[dict[str, Any]], metrics: dict[str, tuple[str, int]]) -> Table:
        """Gather the seeds of each method, in the paper's order."""
        values: dict[str, dict[str, list[float]]] = {}
        for result in results:
            for method, content in result["methods"].items():
                row = values.setdefault(method, {})
                for metric in metrics:
                    if metric in content["metrics"]:
                        row.setdefault(metric, []).append(float(content["metrics"][metric]))
        order = [m for m in TITLES if m in values] + [m for m in values if m not in TITLES]
        rows = {m: {k: Cell.of(v) for k, v in values[m].items()} for m in order}
        return cls(results[0]["experiment"], rows, metrics, _signature(results))

    def _cells(self) -> list[list[str]]:
        shown = [k for k in self.metrics if any(k in row for row in self.rows.values())]
        lines = [["", *(self.metrics[key][0] for key in shown)]]
        for method, row in self.rows.items():
            cells = [row[k].show(self.metrics[k][1]) if k in row else "–" for k in shown]
            lines.append([TITLES.get(method, method), *cells])
        return lines

    def text(self) -> str:
        lines = self._cells()
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        aligned = [
            "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w)
                for i, (c, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join([*aligned, self.signature])

    def markdown(self) -> str:
        head, *body = self._cells()
        rule = ["---"] + ["---:"] * (len(head) - 1)
        rows = ["| " + " | ".join(line) + " |" for line in [head, rule, *body]]
        return "\n".join([*rows, "", self.signature])

    def latex(self) -> str:
        lines = [[escape(cell) for cell in line] for line in self._cells()]
        body = [" & ".join(line) + r" \\" for line in lines]
        columns = "l" + "r" * (len(lines[0]) - 1)
        return "\n".join(
            [
                f"% {self.signature}",
                rf"\begin{{tabular}}{{{columns}}} \toprule",
                body[0] + r" \midrule",
                *body[1:-1],
                body[-1] + r" \bottomrule",
                r"\end{tabular}",
            ]
        )

    def json(self) -> str:
        rows = {m: {k: vars(cell) for k, cell in row.items()} for m, row in self.rows.items()}
        content = {"experiment": self.experiment, "signature": self.signature, "rows": rows}
        return json.dumps(content, indent=1, ensure_ascii=False)

    def write(self, path: str) -> None:
        """The extension chooses the format."""
        formats = {".md": self.markdown, ".tex": self.latex, ".json": self.json, ".txt": self.text}
        suffix = Path(path).suffix
        if suffix not in formats:
            raise UserError(f"{path}: write {', '.join(formats)}, not {suffix or 'no extension'}")
        with replacing(path) as temporary:
            temporary.write_text(formats[suffix]() + "\n", encoding="utf-8")


def _signature(results: list[dict[str, Any]]) -> str:
    def distinct(key: str) -> str:
        return ",".join(str(v) for v in sorted({r.get(key, "?") for r in results}))

    return (
        f"{distinct('experiment')}|data:{distinct('data')}|epochs:{distinct('epochs')}"
        f"|seeds:{distinct('seed')}|commit:{distinct('commit') or '?'}|torch:{distinct('torch')}"
    )
