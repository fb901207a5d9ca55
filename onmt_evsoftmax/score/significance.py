"""Paired bootstrap and approximate randomisation for any metric, on any number of runs.

A *run* is the statistics of one output file, (lines, width), all metrics side by side; a system
is its runs, one per training seed, and its figure is the mean of their scores. ``score`` maps sums
of statistics, (trials, width), to scores, (trials, metrics). With one run on either side, the
random numbers, the statistics and the p-values are those of sacreBLEU's ``--paired-bs`` and
``--paired-ar`` with the same seed, except that a tie counts for the null hypothesis: sacreBLEU
calls two identical systems significantly different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Score = Callable[[Array], Array]

_CHUNK = 1 << 22  # entries of a trials × lines matrix held at once: 32 MB of float64
_TIE = 1e-9  # scores closer than this differ by rounding only


def _chunks(trials: int, entries_per_trial: int) -> Iterator[int]:
    # Whole multiples of 32 trials, as NumPy draws booleans 32 at a time and drops the rest of a
    # word: so the draws do not depend on how they are cut.
    step = max(32, _CHUNK // entries_per_trial // 32 * 32)
    for start in range(0, trials, step):
        yield min(step, trials - start)


def bootstrap_scores(runs: Sequence[Array], score: Score, trials: int, seed: int) -> Array:
    """Mean score over ``runs`` on each bootstrap sample of the lines, (trials, metrics)."""
    random = np.random.default_rng(seed)
    lines = len(runs[0])
    parts = []
    for rows in _chunks(trials, lines):
        drawn = random.choice(lines, size=(rows, lines), replace=True)
        cells = drawn + np.arange(rows)[:, None] * lines
        counts = np.bincount(cells.ravel(), minlength=rows * lines).reshape(rows, lines)
        weights = counts.astype(float)
        parts.append(np.mean([score(weights @ run) for run in runs], axis=0))
    return np.concatenate(parts)


def bootstrap_p_values(system: Array, baseline: Array, observed: Array) -> Array:
    """P-values, (metrics,), from the ``bootstrap_scores`` of both, (trials, metrics).

    ``observed`` is the difference of the scores on the real lines, (metrics,). The differences are
    centred after their absolute value is taken, as sacreBLEU does: where all have one sign, only
    the far tail counts, so these are about half of the two-sided p-values of randomisation.
    """
    sampled = np.abs(system - baseline)
    return _p_values(sampled - sampled.mean(axis=0), observed)


def interval(system: Array, baseline: Array) -> Array:
    """95 % percentile interval of the difference, (2, metrics), from the ``bootstrap_scores``."""
    return np.percentile(system - baseline, [2.5, 97.5], axis=0)


def randomisation_p_values(
    system: Sequence[Array],
    baseline: Sequence[Array],
    score: Score,
    observed: Array,
    trials: int,
    seed: int,
) -> Array:
    """Two-sided p-values, (metrics,), of approximate randomisation.

    A trial deals the outputs for each line to the runs of both sides at random: if the systems were
    alike, it would not matter which of them wrote which output.
    """
    random = np.random.default_rng(seed)
    runs = [*baseline, *system]
    lines = len(runs[0])
    parts = []
    for rows in _chunks(trials, lines * len(runs)):
        dealt = _deal(random, rows, lines, len(runs))
        scores = np.array([score(_sums(owner, runs)) for owner in dealt])
        left, right = scores[: len(baseline)], scores[len(baseline) :]
        parts.append(np.abs(left.mean(axis=0) - right.mean(axis=0)))
    return _p_values(np.concatenate(parts), observed)


def _deal(random: np.random.Generator, rows: int, lines: int, runs: int) -> NDArray[np.int8]:
    """Whose output each run gets for each line in each trial, (runs, trials, lines)."""
    if runs == 2:
        keep = random.integers(2, size=(rows, lines), dtype=bool)
        return np.stack([~keep, keep]).astype(np.int8)
    shuffled = random.random((rows, lines, runs), dtype=np.float32).argsort(axis=-1)
    return np.moveaxis(shuffled, -1, 0).astype(np.int8)


def _sums(owner: NDArray[np.int8], runs: Sequence[Array]) -> Array:
    """Sums of statistics, (trials, width), of lines written by ``owner``, (trials, lines)."""
    parts = [(owner == index).astype(float) @ run for index, run in enumerate(runs)]
    return np.asarray(np.sum(parts, axis=0), dtype=np.float64)


def _p_values(sampled: Array, observed: Array) -> Array:
    # One more on both sides: the observed arrangement is one of those that chance could give.
    extreme = np.sum(sampled >= np.abs(observed) - _TIE, axis=0)
    return np.asarray((extreme + 1) / (len(sampled) + 1), dtype=np.float64)
