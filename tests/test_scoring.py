"""Scores equal the libraries' own; p-values equal sacreBLEU's and a brute-force resampling."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.stem.snowball import SnowballStemmer
from nltk.tokenize import wordpunct_tokenize
from nltk.translate.meteor_score import meteor_score
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from scoring_texts import ENGLISH, GERMAN, corpus, noisy, write

from onmt_evsoftmax import scoring
from onmt_evsoftmax.console import UserError
from onmt_evsoftmax.scoring import significance
from onmt_evsoftmax.scoring.language import LANGUAGES, Language

REFERENCE = corpus()
OTHER_REFERENCE = noisy(REFERENCE, 0.15, seed=1)
SYSTEM = noisy(REFERENCE, 0.25, seed=2)
RIVAL = noisy(REFERENCE, 0.24, seed=3)


def sacrebleu(command: str) -> str:
    """Standard output of sacreBLEU's own command line."""
    return subprocess.run(
        [sys.executable, "-m", "sacrebleu", *command.split()],
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout


def row(report: scoring.Report, label: str) -> scoring.Row:
    return next(row for row in report.rows if row.label == label)


def value(report: scoring.Report, label: str, system: str = "system") -> float:
    return row(report, label).cells[system].mean


class NoSynonyms:
    def synsets(self, word: str) -> list:
        return []


class UnicodeWords:
    """Written apart from the package's: letters and digits of any script, without underscores."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"[^\W_]+", text.lower())


def nltk_meteor(hypothesis: str, references: Sequence[str]) -> float:
    return meteor_score(
        [wordpunct_tokenize(reference) for reference in references],
        wordpunct_tokenize(hypothesis),
        stemmer=SnowballStemmer("german"),
        wordnet=NoSynonyms(),
    )


# ---------------------------------------------------------------- equal to the libraries


@pytest.mark.parametrize("references", [[REFERENCE], [REFERENCE, OTHER_REFERENCE]])
def test_bleu_chrf_and_ter_equal_sacrebleu_command_line(
    references: list[list[str]], tmp_path: Path
) -> None:
    files = " ".join(write(tmp_path / f"ref{i}", lines) for i, lines in enumerate(references))
    hypotheses = write(tmp_path / "hyp", SYSTEM)
    output = sacrebleu(f"{files} -i {hypotheses} -m bleu chrf ter -w 8 -cw 2")
    report = scoring.score({"system": [SYSTEM]}, references, metrics=["bleu", "chrf", "ter"])
    theirs = {score["name"]: score for score in json.loads(output)}
    assert set(theirs) == {"BLEU", "chrF2++", "TER"}
    for name, score in theirs.items():
        assert float(f"{value(report, name):.8f}") == score["score"]
        assert row(report, name).signature == score["signature"]


@pytest.mark.parametrize("references", [[REFERENCE], [REFERENCE, OTHER_REFERENCE]])
def test_rouge_equals_rouge_score(references: list[list[str]]) -> None:
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=UnicodeWords())
    lines = [
        scorer.score_multi(targets, hypothesis)
        for hypothesis, *targets in zip(SYSTEM, *references, strict=True)
    ]
    report = scoring.score({"system": [SYSTEM]}, references, lang="de")
    for kind in "12L":
        expected = 100 * np.mean([line[f"rouge{kind}"].fmeasure for line in lines])
        assert value(report, f"ROUGE-{kind}") == pytest.approx(expected, abs=1e-10)


def test_english_rouge_equals_the_default_of_rouge_score_with_its_stemmer() -> None:
    hypotheses = noisy(ENGLISH * 5, 0.3, seed=4)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    lines = [scorer.score(ref, hyp) for ref, hyp in zip(ENGLISH * 5, hypotheses, strict=True)]
    report = scoring.score({"system": [hypotheses]}, [ENGLISH * 5], lang="en")
    for kind in "12L":
        expected = 100 * np.mean([line[f"rouge{kind}"].fmeasure for line in lines])
        assert value(report, f"ROUGE-{kind}") == pytest.approx(expected, abs=1e-10)
        assert "stem:porter" in row(report, f"ROUGE-{kind}").signature


def test_rouge_does_not_confuse_words_that_differ_in_umlauts_only() -> None:
    # rouge-score's own tokenizer drops every letter beyond a-z: both lines become "h he"
    assert RougeScorer(["rouge1"]).score("Höhe", "Hühe")["rouge1"].fmeasure == 1
    report = scoring.score({"system": [["Hühe"]]}, [["Höhe"]], metrics=["rouge-1"], lang="de")
    assert value(report, "ROUGE-1") == 0


@pytest.mark.parametrize("references", [[REFERENCE], [REFERENCE, OTHER_REFERENCE]])
def test_meteor_equals_nltk(references: list[list[str]]) -> None:
    lines = [
        nltk_meteor(hypothesis, targets)
        for hypothesis, *targets in zip(SYSTEM, *references, strict=True)
    ]
    report = scoring.score({"system": [SYSTEM]}, references, metrics=["meteor"], lang="de")
    assert value(report, "METEOR") == pytest.approx(100 * np.mean(lines), abs=1e-10)
    assert "stem:snowball-german|syn:no" in row(report, "METEOR").signature


def test_meteor_stems_in_the_language_asked_for() -> None:
    systems, references = {"system": [["die alten Häuser"]]}, [["das alte Haus"]]
    german = scoring.score(systems, references, metrics=["meteor"], lang="de")
    plain = scoring.score(systems, references, metrics=["meteor"])
    assert value(german, "METEOR") > value(plain, "METEOR") == 0
    assert "stem:no" in row(plain, "METEOR").signature


def test_tokenised_bleu_equals_moses_then_sacrebleu(tmp_path: Path) -> None:
    sacremoses = pytest.importorskip("sacremoses", reason="pip install sacremoses")
    moses = sacremoses.MosesTokenizer(lang="de")
    tokenised = [[moses.tokenize(t, return_str=True) for t in x] for x in (REFERENCE, SYSTEM)]
    files = [write(tmp_path / f"{i}", lines) for i, lines in enumerate(tokenised)]
    theirs = float(sacrebleu(f"{files[0]} -i {files[1]} -b -lc -w 8 --force"))
    for hypotheses, references, given_ in (
        (SYSTEM, REFERENCE, False),
        (tokenised[1], tokenised[0], True),
    ):
        report = scoring.score(
            {"system": [hypotheses]},
            [references],
            metrics=["bleu-tok-lc"],
            lang="de",
            tokenised=given_,
        )
        assert float(f"{report.rows[0].cells['system'].mean:.8f}") == theirs
        assert "case:lc" in report.rows[0].signature
        assert ("tok:given+13a" if given_ else "tok:moses-") in report.rows[0].signature


@pytest.mark.parametrize(("metric", "options"), [("bleu", ""), ("chrf", "-cw 2"), ("ter", "")])
def test_sentence_scores_equal_sacrebleu_sentence_level(
    metric: str, options: str, tmp_path: Path
) -> None:
    files = write(tmp_path / "ref", REFERENCE), write(tmp_path / "hyp", SYSTEM)
    output = sacrebleu(f"{files[0]} -i {files[1]} -m {metric} -sl -b -w 4 {options}").splitlines()
    report = scoring.score({"s": [SYSTEM]}, [REFERENCE], metrics=[metric], sentences=True)
    table = [line.split("\t") for line in report.sentence_tsv().splitlines()]
    assert [line[-1] for line in table[1:]] == output
    assert [line[:3] for line in table[1:3]] == [["1", "s", "1"], ["2", "s", "1"]]


texts = st.lists(
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=30)
    | st.sampled_from(GERMAN)
    | st.just(""),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(texts)
def test_any_text_scores_as_the_libraries_say(lines: list[str]) -> None:
    reference = ["Grüße aus Köln am Rhein", *lines[1:]]
    report = scoring.score({"system": [lines]}, [reference], lang="de", sentences=True)
    for label, metric in (
        ("BLEU", BLEU()),
        ("chrF2++", CHRF(word_order=2)),
        ("TER", TER()),
    ):
        assert value(report, label) == pytest.approx(
            metric.corpus_score(lines, [reference]).score, abs=1e-10
        )
    assert all(0 <= value(report, label) <= 100 for label in ("ROUGE-1", "ROUGE-L", "METEOR"))


def test_a_perfect_translation_is_perfect() -> None:
    report = scoring.score({"system": [REFERENCE]}, [REFERENCE], lang="de")
    for label in ("BLEU", "chrF2++", "ROUGE-1", "ROUGE-L"):
        assert value(report, label) == pytest.approx(100)
    assert value(report, "TER") == 0


def test_words_are_whole_in_every_script() -> None:
    language = Language("hi")
    for text in ("हिन्दी भाषा", "Mu\u0308ller Stra\u00dfe", "Привет мир", "مرحبا بالعالم"):
        assert language.rouge_words(text) == text.lower().split()
        assert language.meteor_words(text) == text.split()
    for line in GERMAN + ENGLISH:
        assert Language("de").meteor_words(line) == wordpunct_tokenize(line)
        assert Language("de").rouge_words(line) == UnicodeWords().tokenize(line)


def test_every_language_can_be_made() -> None:
    for code, (stemmer, _) in LANGUAGES.items():
        language = Language(code)
        assert language.code == code
        assert language.stem("abc") == (SnowballStemmer(stemmer).stem("abc") if stemmer else "abc")
    assert Language("pt_BR").code == "pt"
    assert Language("DE-at").code == "de"


@pytest.mark.parametrize("lang", ["zh", "ja"])
def test_word_metrics_refuse_languages_without_spaces(lang: str) -> None:
    with pytest.raises(UserError, match="no spaces"):
        scoring.score({"s": [["我们"]]}, [["我们"]], metrics=["rouge-1"], lang=lang)
    report = scoring.score(
        {"s": [["我们走吧今天"]]}, [["我们走吧明天"]], metrics=["chrf"], lang=lang
    )
    assert 0 < report.rows[0].cells["s"].mean < 100


def test_chinese_bleu_is_tokenised_as_sacrebleu_does() -> None:
    report = scoring.score(
        {"s": [["我们走吧今天"]]}, [["我们走吧明天"]], metrics=["bleu"], lang="zh"
    )
    assert "tok:zh" in report.rows[0].signature
    expected = BLEU(trg_lang="zh").corpus_score(["我们走吧今天"], [["我们走吧明天"]]).score
    assert report.rows[0].cells["s"].mean == pytest.approx(expected)


# ---------------------------------------------------------------- significance


@pytest.fixture(scope="module")
def tested() -> scoring.Report:
    systems = {"base": [RIVAL], "system": [SYSTEM]}
    return scoring.score(systems, [REFERENCE], lang="de", baseline="base", resamples=500)


def comparison(report: scoring.Report, label: str) -> scoring.Comparison:
    result = row(report, label).cells["system"].comparison
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


@pytest.mark.parametrize("runs", [1, 2])
def test_results_do_not_depend_on_how_trials_are_cut(
    runs: int, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr(significance, "_CHUNK", 1)
    for left, right in zip(whole, both(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)


def test_mean_and_standard_error_over_seeds() -> None:
    runs = [noisy(REFERENCE, 0.25, seed) for seed in range(3)]
    together = scoring.score({"s": runs}, [REFERENCE], lang="de")
    apart = [scoring.score({"s": [run]}, [REFERENCE], lang="de") for run in runs]
    for index, each in enumerate(together.rows):
        values = [report.rows[index].cells["s"].mean for report in apart]
        assert each.cells["s"].runs == pytest.approx(values)
        assert each.cells["s"].mean == pytest.approx(np.mean(values))
        error = np.std(values, ddof=1) / np.sqrt(3)
        assert each.cells["s"].standard_error == pytest.approx(error)
        assert apart[0].rows[index].cells["s"].standard_error is None
