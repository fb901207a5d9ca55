"""From hypotheses and references to a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.score import significance
from onmt_evsoftmax.score.language import Language
from onmt_evsoftmax.score.metrics import DEFAULT_METRICS, METRICS, Array, Metric, metric_name
from onmt_evsoftmax.score.scores import Cell, Comparison, Report, Row

#: Called with what is being done and the share of the work done before it, 0–1.
Progress = Callable[[str, float], None]
_TESTS = 0.1  # share of the work that the tests are, about


@dataclass(frozen=True)
class Suite:
    """Several metrics side by side: their statistics in one matrix, columns by metric."""

    metrics: Sequence[Metric]
    columns: Sequence[slice]

    def score(self, sums: Array) -> Array:
        """Sums of statistics, (trials, width), to scores, (trials, metrics)."""
        parts = list(zip(self.metrics, self.columns, strict=True))
        return np.array(
            [[metric.score(row[columns]) for metric, columns in parts] for row in sums.tolist()]
        )

    def sentences(self, run: Array) -> list[list[float]]:
        """Scores of every line of a run, one list per metric."""
        return [
            [metric.sentence(line) for line in run[:, columns].tolist()]
            for metric, columns in zip(self.metrics, self.columns, strict=True)
        ]


def score(
    systems: Mapping[str, Sequence[Sequence[str]]],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    lang: str | None = None,
    baseline: str | None = None,
    resamples: int = 1000,
    seed: int = 12345,
    tokenised: bool = False,
    sentences: bool = False,
    run_names: Mapping[str, Sequence[str]] | None = None,
    progress: Progress = lambda doing, share: None,
) -> Report:
    """Score every run of every system and test the systems against the ``baseline``.

    ``systems`` maps a name to its runs (training seeds), each a sequence of lines; ``references``
    is one sequence of lines per reference. All have the same number of lines. ``tokenised`` True
    says the text is Moses-tokenised already; ``sentences`` True keeps the scores of every line.
    """
    if baseline is not None and baseline not in systems:
        raise UserError(unknown_name("baseline", baseline, systems))
    if baseline is not None and len(systems) == 1:
        raise UserError(f"only {baseline} was given; a paired test needs another system beside it")
    names = list(dict.fromkeys(metric_name(name) for name in metrics))
    language = Language(lang)
    progress("preparing references", 0.0)
    prepared = [METRICS[name](references, language, tokenised) for name in names]

    runs, suite = _statistics(systems, prepared, progress)
    scores = {
        name: np.concatenate([suite.score(run.sum(axis=0)[None]) for run in runs[name]])
        for name in systems
    }
    comparisons: dict[str, list[Comparison]] = {}
    if baseline is not None:
        comparisons = _compare(runs, scores, suite, baseline, resamples, seed, progress)

    rows = []
    for index, metric in enumerate(prepared):
        signature = metric.signature()
        if baseline is not None:
            for key, value in (("bs", resamples), ("ar", resamples), ("seed", seed)):
                signature.update(key, value)
        cells = {
            name: Cell(
                tuple(scores[name][:, index].tolist()),
                comparisons[name][index] if name in comparisons else None,
            )
            for name in systems
        }
        rows.append(Row(metric.label, signature.format(), metric.higher_is_better, cells))
    progress("done", 1.0)
    return Report(
        rows,
        run_names or {name: [str(i + 1) for i in range(len(runs[name]))] for name in systems},
        lines=len(references[0]),
        baseline=baseline,
        resamples=resamples,
        seed=seed,
        sentences={
            (name, index): suite.sentences(run)
            for name in systems
            for index, run in enumerate(runs[name])
            if sentences
        },
    )


def _statistics(
    systems: Mapping[str, Sequence[Sequence[str]]], metrics: Sequence[Metric], progress: Progress
) -> tuple[dict[str, list[Array]], Suite]:
    """Statistics of every run, (lines, width), and the suite that knows their columns."""
    steps = len(metrics) * sum(len(outputs) for outputs in systems.values())
    done = 0
    widths: list[int] = []
    runs: dict[str, list[Array]] = {}
    for name, outputs in systems.items():
        runs[name] = []
        for number, hypotheses in enumerate(outputs, start=1):
            parts = []
            for metric in metrics:
                progress(f"{metric.label} of {name}, run {number}", (1 - _TESTS) * done / steps)
                parts.append(metric.statistics(hypotheses))
                done += 1
            widths = [part.shape[1] for part in parts]
            runs[name].append(np.concatenate(parts, axis=1))
    ends = np.cumsum(widths).tolist()
    columns = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
    return runs, Suite(metrics, columns)


def _compare(
    runs: Mapping[str, Sequence[Array]],
    scores: Mapping[str, Array],
    suite: Suite,
    baseline: str,
    resamples: int,
    seed: int,
    progress: Progress,
) -> dict[str, list[Comparison]]:
    """Both tests of every other system against the baseline: name → one comparison per metric."""
    base = significance.bootstrap_scores(runs[baseline], suite.score, resamples, seed)
    comparisons = {}
    others = [name for name in runs if name != baseline]
    for number, name in enumerate(others):
        progress(f"testing {name} against {baseline}", 1 - _TESTS * (1 - number / len(others)))
        observed = scores[name].mean(axis=0) - scores[baseline].mean(axis=0)
        sampled = significance.bootstrap_scores(runs[name], suite.score, resamples, seed)
        columns = zip(
            observed.tolist(),
            significance.interval(sampled, base).T.tolist(),
            significance.bootstrap_p_values(sampled, base, observed).tolist(),
            significance.randomisation_p_values(
                runs[name], runs[baseline], suite.score, observed, resamples, seed
            ).tolist(),
            strict=True,
        )
        comparisons[name] = [
            Comparison(difference, (low, high), p_bootstrap, p_randomisation)
            for difference, (low, high), p_bootstrap, p_randomisation in columns
        ]
    return comparisons
