"""Every score equals the library's own on the same text, to the last printed digit."""

from __future__ import annotations

import json
import re
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
from rouge_score.tokenizers import DefaultTokenizer
from sacrebleu.metrics import BLEU, CHRF, TER
from scoring_texts import ENGLISH, GERMAN, corpus, noisy, sacrebleu, write

from onmt_evsoftmax import score as scoring
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.score.language import LANGUAGES, Language

REFERENCE = corpus()
OTHER_REFERENCE = noisy(REFERENCE, 0.15, seed=1)
SYSTEM = noisy(REFERENCE, 0.25, seed=2)


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


def test_english_words_of_rouge_are_those_of_rouge_score() -> None:
    default, ours = DefaultTokenizer(use_stemmer=True), Language("en")
    for line in [*ENGLISH, "His cats' runs, 4th uses_of ties: 2 dogs — as-is, it's been"]:
        assert ours.tokenize(line) == default.tokenize(line)


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


def test_mean_and_standard_error_over_seeds() -> None:
    runs = [noisy(REFERENCE, 0.25, seed) for seed in range(3)]
    together = scoring.score({"s": runs}, [REFERENCE], lang="de")
    apart = [scoring.score({"s": [run]}, [REFERENCE], lang="de") for run in runs]
    for index, each in enumerate(together.rows):
        values = [report.rows[index].cells["s"].mean for report in apart]
        assert each.cells["s"].runs == pytest.approx(values)
        assert each.cells["s"].mean == pytest.approx(np.mean(values))
        error = np.std(values, ddof=1) / np.sqrt(3)
        assert each.cells["s"].value.error == pytest.approx(error)
        assert apart[0].rows[index].cells["s"].value.error is None
