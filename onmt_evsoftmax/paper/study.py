"""The table of the paper from files: scores and attended tokens of every normalizer and seed.

``onmt_evsoftmax study --help``
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from onmt_evsoftmax.normalizers.registry import title_of
from onmt_evsoftmax.report.console import UserError, command_line, run
from onmt_evsoftmax.report.outputs import FIGURES, TABLES, add_output, check_outputs, publish
from onmt_evsoftmax.report.statistics import Mean
from onmt_evsoftmax.report.table import Cell, Marked, Table

_ABOUT = """One table and figure of all normalizers and seeds, from the files of onmt_score and
onmt_count_attended."""

_EXAMPLE = """A NAME given several times has several runs (training seeds): mean ± standard error.

example:
  $ onmt_score --hyp softmax=s1.de softmax=s2.de evsoftmax=e1.de evsoftmax=e2.de --ref test.de \\
        --lang de --baseline evsoftmax -o scores.json
  $ onmt_evsoftmax study --scores scores.json --attended softmax=s1.json \\
        softmax=s2.json evsoftmax=e1.json evsoftmax=e2.json -o table.md -o table.tex -o tradeoff.pdf
"""


class Value(NamedTuple):
    """Mean over runs, and the stars of its test."""

    mean: Mean
    stars: str = ""


@dataclass(frozen=True)
class Study:
    """``rows``: what was measured → name of the system → value; ``attended``, ``bleu`` are two."""

    systems: Sequence[str]
    rows: Mapping[str, Mapping[str, Value]]
    notes: Sequence[str]
    attended: str
    quality: str
    seeds: Mapping[str, int]  # models behind each column …
    collapsed: Mapping[str, int]  # … and those of them that say, or attend to, nothing

    def table(self, title: str) -> Table:
        """Everything that was measured down, systems across."""
        rows = [
            [label, *(_cell(row.get(name)) for name in self.systems)]
            for label, row in self.rows.items()
        ]
        if any(self.collapsed.values()) or max(self.seeds.values()) > 1:
            rows.append(["seeds", *map(self._seeds, self.systems)])
        data: dict[str, Any] = {
            label: {
                name: {
                    "mean": value.mean.mean,
                    "standard_error": value.mean.error,
                    "stars": value.stars,
                }
                for name, value in row.items()
            }
            for label, row in self.rows.items()
        }
        data["seeds"] = dict(self.seeds)
        return Table(title, ["", *map(title_of, self.systems)], rows, notes=self.notes, data=data)

    def _seeds(self, name: str) -> str:
        collapsed = self.collapsed[name]
        return f"{self.seeds[name]}" + (f" ({collapsed} collapsed)" if collapsed else "")


def _cell(value: Value | None) -> Cell:
    return "–" if value is None else Marked(value.mean.text(2), stars=value.stars)


def _context(entry: Mapping[str, Any]) -> float:
    return float(entry["kinds"]["context"]["all"]["attended"]["mean"])


def _paper(entry: Mapping[str, Any]) -> float:
    return float(entry["paper"]["mean"])


def _available(entry: Mapping[str, Any]) -> float:
    return float(entry["kinds"]["context"]["all"]["available"]["mean"])


def _alignment(entry: Mapping[str, Any]) -> float:
    """Error rate of the layer whose heads, averaged, align best.

    The layer is chosen on the text that is scored, which flatters every system alike.
    """
    layers = entry["alignment"]["argmax"]["aer"]
    if not layers:
        raise ValueError("no layer was aligned")
    # A model that has collapsed aligns nothing.
    found = (float(heads[-1]) for heads in layers if heads[-1] is not None)
    return 100 * min(found, default=1.0)


#: What looking into JSON of another kind raises.
_NOT_THAT = (KeyError, IndexError, TypeError, AttributeError, ValueError)

_MEASURES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "attended, all context heads": _context,
    "attended, last layer, first head": _paper,
    "of source tokens": _available,
    "alignment error %, layer chosen on test": _alignment,
}


def read(scores: Path, attended: Sequence[tuple[str, Path]]) -> Study:
    """Gather what ``onmt_score`` and ``onmt_count_attended`` wrote as JSON."""
    told = _json(scores)
    rows: dict[str, dict[str, Value]] = {}
    try:
        for metric in told["metrics"]:
            rows[metric["name"]] = {
                name: Value(
                    Mean(found["mean"], found.get("standard_error")),
                    (found.get("comparison") or {}).get("stars", ""),
                )
                for name, found in metric["systems"].items()
            }
        seeds = {name: len(found) for name, found in told["systems"].items()}
        systems = list(seeds)
        silent = {name: _silent(told["metrics"], name) for name in systems}
    except _NOT_THAT as error:
        raise UserError(f"{scores} is not the JSON of onmt_score ({error!r})") from error
    if not rows:
        raise UserError(f"{scores} has no metric; run onmt_score again with at least one")
    quality = next(iter(rows))
    blind = dict.fromkeys(systems, 0)
    for label, measure in _MEASURES.items():
        runs: dict[str, list[float]] = {}
        for name, path in attended:
            entries = _json(path)
            try:
                runs.setdefault(name, []).extend(measure(entry) for entry in entries)
            except _NOT_THAT:
                if measure is not _alignment:  # only corpora with gold alignments have it
                    raise UserError(f"{path} is not the JSON of onmt_count_attended") from None
        if measure is _context:
            blind = {name: found.count(0.0) for name, found in runs.items()}
        if any(runs.values()):
            rows[label] = {name: Value(Mean.of(found)) for name, found in runs.items() if found}
    missing = {name for name, _ in attended} ^ set(systems)
    if missing:
        raise UserError(f"{', '.join(sorted(missing))}: not in both --scores and --attended")
    notes = []
    if told.get("baseline"):
        notes.append(f"* p < 0.05, ** p < 0.01 against {title_of(told['baseline'])}")
    if any(count > 1 for count in seeds.values()):
        notes.append("± standard error over training seeds")
    collapsed = {name: max(silent[name], blind[name]) for name in systems}
    for name in systems:
        if collapsed[name]:
            notes.append(
                f"{title_of(name)}: {collapsed[name]} collapsed: no translation, or nothing "
                "attended to; counted as zeros"
            )
    return Study(systems, rows, notes, "attended, all context heads", quality, seeds, collapsed)


def _silent(metrics: Sequence[Mapping[str, Any]], name: str) -> int:
    """How many runs of a system score nothing at all, as those do that translate nothing."""
    found = [m["systems"][name].get("runs", [1.0]) for m in metrics if m.get("higher_is_better")]
    return sum(not any(scores) for scores in zip(*found, strict=True))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def draw(study: Study, path: Path, ending: str) -> None:
    """Quality over attended tokens, one point per normalizer with its standard errors."""
    from matplotlib.figure import Figure

    from onmt_evsoftmax.report import palette, style

    with style.readable([*map(title_of, study.systems)]):
        figure = Figure(figsize=(3.4, 2.4))
        axes = figure.subplots()
        colours = palette.colours(list(study.systems))
        for name, colour in zip(study.systems, colours, strict=True):
            x, y = study.rows[study.attended][name].mean, study.rows[study.quality][name].mean
            axes.errorbar(
                x.mean, y.mean, xerr=x.error, yerr=y.error, marker="o", color=colour, capsize=2
            )
            axes.annotate(
                title_of(name),
                (x.mean, y.mean),
                xytext=(4, 5),
                textcoords="offset points",
                color=colour,
            )
        axes.margins(0.25)
        axes.set_xlabel("attended source tokens, context attention")
        axes.set_ylabel(study.quality)
        style.save(figure, path, ending)


def _named(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or not name:
        raise UserError(f"--attended needs NAME=FILE, not {text}")
    return name, Path(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Read, then write every output by its ending."""
    endings = [*TABLES, *FIGURES]
    parser = command_line(_ABOUT, _EXAMPLE)
    parser.add_argument("--scores", type=Path, required=True, help="JSON of onmt_score")
    parser.add_argument(
        "--attended", nargs="+", required=True, metavar="NAME=FILE",
        help="JSON of onmt_count_attended, one file per run",
    )  # fmt: skip
    parser.add_argument("--title", default="Translation quality and attended tokens")
    add_output(parser, " ".join(endings))
    options = parser.parse_args(argv)
    attended = [_named(text) for text in options.attended]
    inputs = [options.scores, *(path for _, path in attended)]
    check_outputs(options.output, endings, inputs=inputs)
    study = read(options.scores, attended)
    table = study.table(options.title)
    publish(
        lambda _: [table],
        table.json,
        options.output,
        print_json=options.json,
        draw=partial(draw, study),
    )
    return 0


if __name__ == "__main__":
    run(main)
