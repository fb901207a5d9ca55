"""The table of the paper from files: scores and attended tokens of every normalizer and seed.

``onmt_evsoftmax study --help``
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from onmt_evsoftmax.normalizers.registry import title_of
from onmt_evsoftmax.report.console import UserError, command_line
from onmt_evsoftmax.report.files import split_name
from onmt_evsoftmax.report.outputs import FIGURES, TABLES, add_output, check_outputs, publish
from onmt_evsoftmax.report.statistics import Mean, detectable_difference
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
    """``rows``: what was measured → name of the system → value; one of them is ``quality``."""

    systems: Sequence[str]
    rows: Mapping[str, Mapping[str, Value]]
    notes: Sequence[str]
    quality: str
    seeds: Mapping[str, int]  # models behind each column …
    collapsed: Mapping[str, int]  # … and those of them that say, or attend to, nothing
    histograms: Mapping[str, Sequence[int]]  # rows of context heads that attend to 0, 1, … tokens

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


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _mean(kind: str, measure: str, entry: Mapping[str, Any]) -> float:
    return float(entry["kinds"][kind]["all"][measure]["mean"])


def _paper(entry: Mapping[str, Any]) -> float:
    return float(entry["paper"]["mean"])


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

ATTENDED = "attended, all context heads"
Measure = Callable[[Mapping[str, Any]], float]
_MEASURES: dict[str, Measure] = {
    ATTENDED: partial(_mean, "context", "attended"),
    "attended, last layer, first head": _paper,
    "of source tokens": partial(_mean, "context", "available"),
}
#: What only transformers have, and only corpora with gold alignments.
_FURTHER_MEASURES: dict[str, Measure] = {
    "attended, encoder self-attention": partial(_mean, "encoder", "attended"),
    "attended, decoder self-attention": partial(_mean, "decoder", "attended"),
    "of target tokens so far": partial(_mean, "decoder", "available"),
    "alignment error %, layer chosen on test": _alignment,
}


def _total(histograms: Iterable[Sequence[int]]) -> list[int]:
    return [int(sum(counts)) for counts in zip_longest(*histograms, fillvalue=0)]


def _histogram(entry: Mapping[str, Any]) -> list[int]:
    """How many rows of all context heads attend to 0, 1, 2, … source tokens."""
    layers = entry["kinds"]["context"]["layers"]
    return _total(head["histogram"] for layer in layers for head in layer["heads"])


def read(scores: Path, attended: Sequence[tuple[str, Path]]) -> Study:
    """Gather what ``onmt_score`` and ``onmt_count_attended`` wrote as JSON."""
    told = _json(scores)
    rows: dict[str, dict[str, Value]] = {}
    try:
        for metric in told["metrics"]:
            rows[metric["name"]] = {
                name: Value(
                    Mean(float(found["mean"]), _number(found.get("standard_error"))),
                    str((found.get("comparison") or {}).get("stars", "")),
                )
                for name, found in metric["systems"].items()
            }
        seeds = {name: len(found) for name, found in told["systems"].items()}
        systems = list(seeds)
        silent = {name: _silent(told["metrics"], name) for name in systems}
        if not rows:
            raise UserError(f"{scores} has no metric; run onmt_score again with at least one")
        quality = next(iter(rows))
        qualities = [_runs(found) for found in told["metrics"][0]["systems"].values()]
    except _NOT_THAT as error:
        raise UserError(f"{scores} is not the JSON of onmt_score ({error!r})") from error
    entries = _entries(attended)
    for label, measure in {**_MEASURES, **_FURTHER_MEASURES}.items():
        if values := _values(measure, entries):
            rows[label] = values
    missing = {name for name, _ in attended} ^ set(systems)
    if missing:
        raise UserError(f"{', '.join(sorted(missing))}: not in both --scores and --attended")
    notes = []
    if told.get("baseline"):
        notes.append(f"* p < 0.05, ** p < 0.01 against {title_of(str(told['baseline']))}")
    if any(count > 1 for count in seeds.values()):
        notes.append("± standard error over training seeds")
        if difference := detectable_difference(qualities):
            notes.append(
                f"with this many seeds a difference of {difference:.2f} {quality} would show "
                "(t test, two-sided at 0.05, power 0.8)"
            )
    blind = {
        name: sum(_MEASURES[ATTENDED](entry) == 0 for entry in entries[name]) for name in systems
    }
    collapsed = {name: max(silent[name], blind[name]) for name in systems}
    for name in systems:
        if collapsed[name]:
            notes.append(
                f"{title_of(name)}: {collapsed[name]} collapsed: no translation, or nothing "
                "attended to; counted as zeros"
            )
    histograms = {name: _total(map(_histogram, entries[name])) for name in systems}
    return Study(systems, rows, notes, quality, seeds, collapsed, histograms)


def _entries(attended: Sequence[tuple[str, Path]]) -> dict[str, list[Mapping[str, Any]]]:
    """System → what was counted of each of its runs, which has all that must be there."""
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for name, path in attended:
        found = _json(path)
        try:
            if not found:
                raise ValueError("it counts nothing")
            for entry in found:
                for look in (_histogram, *_MEASURES.values()):
                    look(entry)
            entries.setdefault(name, []).extend(found)
        except _NOT_THAT:
            raise UserError(f"{path} is not the JSON of onmt_count_attended") from None
    return entries


def _values(
    measure: Measure, entries: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Value]:
    """The measure of every system that has it."""
    values = {}
    for name, found in entries.items():
        with suppress(*_NOT_THAT):
            values[name] = Value(Mean.of([measure(entry) for entry in found]))
    return values


def _silent(metrics: Sequence[Mapping[str, Any]], name: str) -> int:
    """How many runs of a system score nothing at all, as those do that translate nothing."""
    found = [_runs(m["systems"][name]) for m in metrics if m.get("higher_is_better")]
    return sum(not any(scores) for scores in zip(*found, strict=True))


def _runs(found: Mapping[str, Any]) -> list[float]:
    """A system's score in each of its runs, where they are told."""
    return [float(score) for score in found.get("runs", [])]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def draw(study: Study, path: Path, ending: str) -> None:
    """Left: quality over attended tokens, a point per normalizer with its standard errors.

    Right: how often a row of a context head attends to 1, 2, … source tokens.
    """
    from matplotlib.figure import Figure

    from onmt_evsoftmax.report import palette, style

    titles = [*map(title_of, study.systems)]
    with style.readable(titles):
        figure = Figure(figsize=(6.8, 2.4), layout="constrained")
        points, shares = figure.subplots(1, 2)
        colours = palette.colours(list(study.systems))
        for number, (name, colour) in enumerate(zip(study.systems, colours, strict=True)):
            marker = palette.MARKERS[number % len(palette.MARKERS)]
            x, y = study.rows[ATTENDED][name].mean, study.rows[study.quality][name].mean
            points.errorbar(
                x.mean, y.mean, xerr=x.error, yerr=y.error, marker=marker, color=colour, capsize=2
            )
            rows = study.histograms[name]
            share = [100 * count / max(sum(rows), 1) for count in rows]
            shares.plot(share, color=colour, marker=marker, markevery=3, label=titles[number])
        points.margins(0.25)
        points.set_xlabel("attended source tokens, context attention")
        points.set_ylabel(study.quality)
        shares.set_xlabel("attended source tokens of a row")
        shares.set_ylabel("% of rows, all context heads")
        shares.legend()
        style.save(figure, path, ending)


def _named(text: str) -> tuple[str, Path]:
    name, path = split_name(text)
    if not name:
        raise UserError(f"--attended needs NAME=FILE, not {text}")
    return name, Path(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Read, then write every output by its ending."""
    endings = [*TABLES, *FIGURES]
    parser = command_line(_ABOUT, _EXAMPLE)
    parser.add_argument("--scores", type=Path, required=True, help="JSON file of onmt_score")
    parser.add_argument(
        "--attended", nargs="+", required=True, metavar="NAME=FILE",
        help="JSON of onmt_count_attended, one file per run",
    )  # fmt: skip
    parser.add_argument("--title", default="Translation quality and attended tokens",
                        help="of the table (default: %(default)s)")  # fmt: skip
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
