"""p-values equal sacreBLEU's with the same seed, and those of a brute-force resampling."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from scoring_texts import corpus, noisy, sacrebleu, write

from onmt_evsoftmax import score as scoring
from onmt_evsoftmax.score import significance

REFERENCE = corpus()
SYSTEM = noisy(REFERENCE, 0.25, seed=2)
RIVAL = noisy(REFERENCE, 0.24, seed=3)


@pytest.fixture(scope="module")
def tested() -> scoring.Report:
    systems = {"base": [RIVAL], "system": [SYSTEM]}
    return scoring.score(systems, [REFERENCE], lang="de", baseline="base", resamples=500)


def comparison(report: scoring.Report, label: str) -> scoring.Comparison:
    row = next(row for row in report.rows if row.label == label)
    result = row.cells["system"].comparison
    assert result is not None
    return result


@pytest.mark.parametrize(("kind", "field"), [("bs", "p_bootstrap"), ("ar", "p_randomisation")])
def test_p_values_equal_sacrebleu_with_the_same_seed(
    kind: str, field: str, tested: scoring.Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    metrics = {"BLEU": BLEU(), "CHRF": CHRF(word_order=2), "TER": TER()}
    test = PairedTest(
        [("base", RIVAL), ("system", SYSTEM)], metrics, [REFERENCE], kind, n_samples=500
    )
    _, results = test()
    theirs = {label: results[label][1].p_value for label in ("BLEU", "chrF2++", "TER")}
    assert any(0.01 < p_value < 0.99 for p_value in theirs.values()), "too easy a comparison"
    ours = {label: getattr(comparison(tested, label), field) for label in theirs}
    assert ours["BLEU"] == pytest.approx(theirs["BLEU"], abs=1e-12)
    assert ours["chrF2++"] == pytest.approx(theirs["chrF2++"], abs=1e-12)
    # TER counts whole edits, so shuffles often tie with the observed difference. A tie speaks for
    # chance, which sacreBLEU forgets; told to forget it too, ours is the same number again.
    assert theirs["TER"] <= ours["TER"] < theirs["TER"] + 0.05
    monkeypatch.setattr(significance, "_TIE", -1e-9)
    strict = scoring.score(
        {"base": [RIVAL], "system": [SYSTEM]},
        [REFERENCE],
        metrics=["ter"],
        baseline="base",
        resamples=500,
    )
    assert getattr(comparison(strict, "TER"), field) == pytest.approx(theirs["TER"], abs=1e-12)


@pytest.mark.parametrize("kind", ["bs", "ar"])
def test_p_value_of_bleu_equals_sacrebleu_command_line(
    kind: str, tested: scoring.Report, tmp_path: Path
) -> None:
    reference, base = write(tmp_path / "ref", REFERENCE), write(tmp_path / "base", RIVAL)
    files = f"{reference} -i {base} {write(tmp_path / 'hyp', SYSTEM)}"
    output = sacrebleu(f"{files} --paired-{kind} --paired-{kind}-n 500 -f text")
    printed = re.search(r"\(p = ([0-9.]+)\)", output)
    assert printed
    ours = comparison(tested, "BLEU")
    assert f"{ours.p_bootstrap if kind == 'bs' else ours.p_randomisation:.4f}" == printed[1]


@pytest.mark.parametrize("label", ["ROUGE-2", "METEOR"])
def test_p_values_of_means_equal_brute_force(label: str, tested: scoring.Report) -> None:
    metric = {"ROUGE-2": "rouge-2", "METEOR": "meteor"}[label]
    report = scoring.score(
        {"a": [RIVAL], "b": [SYSTEM]}, [REFERENCE], metrics=[metric], lang="de", sentences=True
    )
    base, system = (np.array(report.sentences[name, 0][0]) for name in "ab")
    observed = abs(system.mean() - base.mean())
    random = np.random.default_rng(12345)
    drawn = [random.choice(len(base), size=len(base)) for _ in range(500)]
    sampled = np.array([abs(system[rows].mean() - base[rows].mean()) for rows in drawn])
    bootstrap = (np.sum(sampled - sampled.mean() > observed) + 1) / 501
    assert comparison(tested, label).p_bootstrap == pytest.approx(bootstrap)
    differences = [system[rows].mean() - base[rows].mean() for rows in drawn]
    assert comparison(tested, label).interval == pytest.approx(
        tuple(np.percentile(differences, [2.5, 97.5]))
    )

    random = np.random.default_rng(999)  # other shuffles: equal within their noise
    signs = random.choice([-1, 1], size=(20_000, len(base)))
    shuffled = np.abs(signs @ (system - base)) / len(base)
    expected = np.mean(shuffled >= observed)
    noise = 4 * np.sqrt(max(expected, 0.01) / 500)
    assert comparison(tested, label).p_randomisation == pytest.approx(expected, abs=noise)


def test_identical_systems_do_not_differ() -> None:
    for runs in ([SYSTEM], [SYSTEM, RIVAL]):
        report = scoring.score(
            {"base": runs, "system": runs}, [REFERENCE], lang="de", baseline="base", resamples=64
        )
        for each in report.rows:
            test = each.cells["system"].comparison
            assert test is not None
            assert test.difference == 0
            assert test.p_bootstrap == 1
            assert test.stars == ""
        if len(runs) == 1:
            assert all(r.cells["system"].comparison.p_randomisation == 1 for r in report.rows)


def test_a_clear_difference_gets_two_stars_and_the_baseline_none() -> None:
    worse = noisy(REFERENCE, 0.6, seed=5)
    report = scoring.score(
        {"base": [SYSTEM], "system": [worse]},
        [REFERENCE],
        lang="de",
        baseline="base",
        resamples=200,
    )
    for each in report.rows:
        assert each.cells["system"].stars == "**"
        assert each.cells["base"].stars == ""


def mean_score(sums: np.ndarray) -> np.ndarray:
    return sums[:, :1] / sums[:, 1:]


def fake_run(random: np.random.Generator, lines: int, shift: float = 0.0) -> np.ndarray:
    return np.stack([random.normal(shift, 1, lines), np.ones(lines)], axis=1)


@pytest.mark.parametrize(("system_runs", "base_runs"), [(1, 1), (3, 3), (2, 4)])
def test_randomisation_rejects_a_true_null_hypothesis_as_rarely_as_it_says(
    system_runs: int, base_runs: int
) -> None:
    random = np.random.default_rng(5)
    p_values = []
    for _ in range(200):
        system = [fake_run(random, 40) for _ in range(system_runs)]
        base = [fake_run(random, 40) for _ in range(base_runs)]
        means = [np.mean([run[:, 0].mean() for run in side]) for side in (system, base)]
        observed = np.array([means[0] - means[1]])
        p_values.append(
            significance.randomisation_p_values(system, base, mean_score, observed, 99, seed=1)[0]
        )
    assert np.mean(np.array(p_values) <= 0.05) < 0.1  # 0.05 expected; 4 standard errors at 0.11
    assert 0.4 < np.mean(p_values) < 0.6


def test_more_runs_make_the_same_shift_more_significant() -> None:
    random = np.random.default_rng(6)
    p_values = []
    for runs in (1, 8):
        system = [fake_run(random, 60, 0.25) for _ in range(runs)]
        base = [fake_run(random, 60) for _ in range(runs)]
        p_values.append(
            significance.randomisation_p_values(
                system, base, mean_score, np.array([0.25]), 199, seed=1
            )[0]
        )
    assert p_values[1] < p_values[0]


@pytest.mark.parametrize("chunk", [1, 7000])
@pytest.mark.parametrize("runs", [1, 2])
def test_results_do_not_depend_on_how_trials_are_cut(
    runs: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(8)
    system, base = ([fake_run(random, 77) for _ in range(runs)] for _ in range(2))

    def both() -> tuple[np.ndarray, np.ndarray]:
        return (
            significance.bootstrap_scores(system, mean_score, 150, seed=3),
            significance.randomisation_p_values(
                system, base, mean_score, np.array([0.1]), 150, seed=3
            ),
        )

    whole = both()
    monkeypatch.setattr(significance, "_CHUNK", chunk)
    for left, right in zip(whole, both(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)
