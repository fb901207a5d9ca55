"""The embedded corpus: files, splits, alignments, German, and what the hard test set holds back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import german_checker as checker
import pytest
from german_words import MODAL, SUBORDINATORS, rows

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "data"))

import make_corpus  # noqa: E402
from grammar import corpus, english_order, german, lexicon  # noqa: E402
from grammar.adjunct import FixedPhrase  # noqa: E402
from grammar.clause import MODALS, Clause  # noqa: E402
from grammar.constructions import DRAWN, HARD, draw_one  # noqa: E402
from grammar.dice import Dice  # noqa: E402
from grammar.draw_clause import ClauseDraw  # noqa: E402
from grammar.nominal import PRONOUNS  # noqa: E402
from grammar.tables import read_table  # noqa: E402
from grammar.words import Sentence  # noqa: E402

from onmt_evsoftmax.report.console import UserError  # noqa: E402

SMALL = {"train": 3000, "valid": 120, "test": 120, "test-hard": 160}
LEXICON = lexicon.load()
# Words that open a dependent clause wherever they stand; "während" can be a preposition.
SUBORDINATING = SUBORDINATORS - {"während", "wo", "wohin", "wie", "warum", "wann"} | {"um"}


def small_arguments(folder: Path, seed: int = 3, **sizes: int) -> list[str]:
    sizes = {**SMALL, **{name.replace("_", "-"): size for name, size in sizes.items()}}
    numbers = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    return ["-o", str(folder), "--seed", str(seed), *numbers]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, ...]]]:
    """A small corpus, read back from its files: for each set its lines in parallel."""
    folder = tmp_path_factory.mktemp("corpus")
    assert make_corpus.main(small_arguments(folder)) == 0
    return {name: read_set(folder, name) for name in SMALL}


def read_set(folder: Path, name: str) -> list[tuple[str, ...]]:
    texts = [(folder / f"{name}.{suffix}").read_text("utf-8") for suffix in make_corpus.FILES]
    assert all(text.endswith("\n") for text in texts)
    return list(zip(*(text.splitlines() for text in texts), strict=True))


# ---- files and splits ---------------------------------------------------------------------------


def test_sets_have_the_sizes_asked_for(made: dict) -> None:
    assert {name: len(lines) for name, lines in made.items()} == SMALL


def test_default_sizes_are_those_of_the_recipes() -> None:
    arguments = make_corpus._parser().parse_args([])
    assert (arguments.train, arguments.valid, arguments.test) == (20_000, 500, 500)
    assert arguments.test_hard == 500


def test_no_sentence_is_in_two_sets(made: dict) -> None:
    for side in (0, 1):
        for one, other in combinations(made, 2):
            shared = {line[side] for line in made[one]} & {line[side] for line in made[other]}
            assert not shared
    for lines in made.values():
        assert len({line[0] for line in lines}) == len(lines)


def test_test_sets_do_not_depend_on_the_size_of_train(made: dict, tmp_path: Path) -> None:
    make_corpus.main(small_arguments(tmp_path, train=10))
    for name in ("valid", "test", "test-hard"):
        assert read_set(tmp_path, name) == made[name]


def test_same_seed_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    def digest(name: str, seed: int, hash_seed: str) -> list[bytes]:
        folder = tmp_path / name
        command = [sys.executable, ROOT / "data" / "make_corpus.py"]
        command += small_arguments(folder, seed, train=150, valid=20, test=20, test_hard=40)
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        return [path.read_bytes() for path in sorted(folder.iterdir())]

    first = digest("first", 5, "0")
    assert digest("second", 5, "12345") == first
    assert digest("third", 6, "0") != first


def test_detokenised_files_are_the_same_sentences(made: dict) -> None:
    for lines in made.values():
        for source, target, _, _, plain_source, plain_target in lines:
            for tokens, plain in ((source, plain_source), (target, plain_target)):
                assert not re.search(r" [,.?!]| 's", plain)
                assert plain[0].isupper()
                written = re.sub(r"([,.?!]|'s\b)", r" \1", plain)
                assert written == tokens[0].upper() + tokens[1:]


# ---- alignments ---------------------------------------------------------------------------------


def pairs(line: str) -> list[tuple[int, int]]:
    return [(int(i), int(j)) for i, j in (pair.split("-") for pair in line.split())]


def test_alignments_are_in_range_and_sorted(made: dict) -> None:
    for lines in made.values():
        for source, target, align, *_ in lines:
            found = pairs(align)
            assert found == sorted(set(found))
            assert max(i for i, _ in found) < len(source.split())
            assert max(j for _, j in found) < len(target.split())


def test_every_word_is_aligned_but_the_few_without_counterpart(made: dict) -> None:
    for lines in made.values():
        for source, target, align, tags, *_ in lines:
            found = pairs(align)
            english, german_tokens = source.split(), target.split()
            alone = {english[i] for i in set(range(len(english))) - {i for i, _ in found}}
            assert alone <= ({"a", "an"} if "profession" in tags else set()), source
            alone = set(range(len(german_tokens))) - {j for _, j in found}
            polite = "imperative" in tags or "vocative" in tags
            assert {german_tokens[j] for j in alone} <= {",", *(("Sie",) if polite else ())}, target


def test_words_that_mean_the_same_are_aligned(made: dict) -> None:
    """Check links against the tables: a noun's German form is linked to its English one."""
    forms: dict[str, set[str]] = {}
    for noun in LEXICON.nouns:
        for number in ("sg", "pl"):
            key = noun.english_form(number)
            if " " not in key:
                german_forms = {noun.german_form(case, "sg") for case in german.CASES}
                if noun.german_plural != "-":
                    german_forms |= {noun.german_form(case, "pl") for case in german.CASES}
                forms.setdefault(key, set()).update(german_forms, [noun.feminine])
    verbs = {verb.english for verb in LEXICON.verbs} | {v.english_past for v in LEXICON.verbs}
    checked = 0
    for lines in made.values():
        for source, target, align, *_ in lines:
            english, german_tokens = source.split(), target.split()
            for i, token in enumerate(english[1:], start=1):
                linked = [german_tokens[j] for k, j in pairs(align) if k == i]
                if token in forms and token not in verbs and english[i - 1] in ("the", "my", "a"):
                    first = {c.english: c.german for c, _ in LEXICON.compounds}.get(token)
                    known = any(
                        w in forms[token] or w.lower().endswith(tuple(map(str.lower, forms[token])))
                        or (first and w.startswith(first))
                        for w in linked
                    )  # fmt: skip
                    assert known, (source, target, token, linked)
                    checked += 1
    assert checked > 1000


# ---- English ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modal", "statement", "question"),
    [
        ("have to", "I always had to sleep", "did I always have to sleep"),
        ("want to", "I always wanted to sleep", "did I always want to sleep"),
        ("can", "I could always sleep", "could I always sleep"),
        ("be allowed to", "I was always allowed to sleep", "was I always allowed to sleep"),
    ],
)
def test_always_stands_before_a_full_verb_and_behind_an_auxiliary(
    modal: str, statement: str, question: str
) -> None:
    verb = next(verb for verb in LEXICON.verbs if verb.english == "sleep")
    always = FixedPhrase(LEXICON.adverb("immer", "frequency"))
    clause = Clause(verb, PRONOUNS["I"], "past", adverbials=(always,), modal=MODALS[modal])
    assert " ".join(word.form for word in english_order.statement(clause)) == statement
    assert " ".join(word.form for word in english_order.question(clause)) == question


@pytest.mark.parametrize(
    "wrong",
    [
        r"(have|has|had|wants?|wanted|likes?) (always|often|sometimes|never|usually) to\b",
        r"wood \w+|rain coats?|tea cups?\b",  # wooden; one word
        r"writers? of\b",  # the author of the book: Autor
        r"(bank|spring) of \w+ (\w+ )?lakes?",
        r"(swims?|swam|swum|swimming) to (?!the (\w+ ){0,3}bank of)",
    ],
)
def test_what_is_wrong_in_english_or_german_is_not_drawn(made: dict, wrong: str) -> None:
    for lines in made.values():
        for source, *_ in lines:
            assert not re.search(rf"\b({wrong})", source), source


# ---- coverage -----------------------------------------------------------------------------------


def test_lexicon_has_at_least_400_lemmas() -> None:
    assert len(LEXICON.lemmas()) >= 400
    nouns = [row for name in ("people", "things", "places") for row in rows(name)]
    assert len({row["german"] for row in nouns}) >= 200
    assert len({row["german"] for row in rows("verbs")}) >= 100


@pytest.mark.parametrize(
    "construction",
    [
        "modal", "perfect-haben", "perfect-sein", "future", "passive", "progressive", "separable",
        "reflexive", "negation-nicht", "negation-kein", "compound", "number", "genitive",
        "fronted-adverb", "adverb-frequency", "adverb-time", "adverb-manner", "relative-subject",
        "relative-acc", "relative-dat", "relative-oblique", "subordinate-first", "subordinate-last",
        "that-clause", "whether-clause", "wh-clause", "zu-infinitive", "purpose", "question-polar",
        "question-wh", "imperative", "vocative", "adjective-strong", "adjective-weak",
        "adjective-mixed", "comparative", "superlative", "preposition-dat", "preposition-acc",
        "preposition-gen", "dative-object", "anaphora", "coordination", "ambiguous", "gern",
        "number-mismatch", *DRAWN,
    ],
)  # fmt: skip
def test_construction_is_frequent_in_training(made: dict, construction: str) -> None:
    counts = Counter(tag for line in made["train"] for tag in line[3].split())
    assert counts[construction] >= 0.003 * SMALL["train"], counts[construction]


def test_hard_set_has_every_hard_construction_and_training_none(made: dict) -> None:
    counts = Counter(tag for line in made["test-hard"] for tag in line[3].split())
    assert all(counts[name] >= 0.05 * SMALL["test-hard"] for name in HARD), counts
    for name in ("train", "valid", "test"):
        assert not {tag for line in made[name] for tag in line[3].split()} & set(HARD)


def test_training_does_not_show_hard_constructions(made: dict) -> None:
    """Look at the words, not at the tags."""
    held_out = {
        f" {row['english']} {english}"
        for row in read_table("compounds")
        if row["held_out"] == "yes"
        for noun in LEXICON.nouns
        if noun.english == row["head"]
        for english in (noun.english_form("sg"), noun.english_form("pl"))
    }
    numbers = {"forty-seven", "twenty-three", "eighty-five", "sixty-nine"}
    for name in ("train", "valid", "test"):
        for source, target, align, *_ in made[name]:
            assert not any(f"{pair} " in f" {source} " for pair in held_out), source
            assert not numbers & set(source.lower().split()), source
            assert max(len(source.split()), len(target.split())) <= 30
            dependent = 0
            for part in checker.clauses(source, target, align):
                head = part.tokens[0]
                if head in ("und", "aber", "oder"):
                    dependent = 0
                clock = part.first and head == "um"  # *um ein Uhr*; purpose is never first
                dependent += part.relative or (head in SUBORDINATING and not clock)
                assert dependent <= 1, target
                assert not (part.relative and part.tokens[-1] in MODAL), target
                assert not (dependent and target.endswith("?")), target


@pytest.mark.slow
def test_default_corpus_shows_every_word(tmp_path: Path) -> None:
    assert make_corpus.main(["-o", str(tmp_path)]) == 0
    lines = read_set(tmp_path, "train")
    assert len(lines) == 20_000
    tokens = Counter(token for line in lines for token in line[1].lower().split())
    for noun in LEXICON.nouns:
        forms = {noun.german_form(case, "sg").lower() for case in german.CASES}
        if noun.german_plural != "-":
            forms |= {noun.german_form(case, "pl").lower() for case in german.CASES}
        assert sum(tokens[form] for form in forms) >= 5, noun.german
    for adverb in LEXICON.adverbs:
        assert all(tokens[word.lower()] >= 5 for word in adverb.german.split()), adverb.german


# ---- the command line ---------------------------------------------------------------------------


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "data" / "make_corpus.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--train", "-5"], "must be a whole number from 0 up, not -5"),
        (["--train", "5000000"], "ask for 500000"),
        (["--seed", "x"], "must be a whole number from 0 up, not x"),
    ],
)
def test_bad_numbers_are_told_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run_script("-o", str(tmp_path / "new"), *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_no_directory_is_told() -> None:
    done = run_script()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "-o" in done.stderr


def test_a_place_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    done = run_script("-o", str(tmp_path / "file" / "corpus"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr


def test_sets_that_cannot_be_disjoint_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = draw_one(ClauseDraw(LEXICON, Dice("0")), "statement")
    monkeypatch.setattr(corpus, "draw_one", lambda draw, name: sentence)
    monkeypatch.setattr(corpus, "PATIENCE", 20)
    with pytest.raises(UserError, match="ask for fewer than 2"):
        corpus.draw_sets(LEXICON, dict.fromkeys(corpus.ORDER, 2), 1, lambda name, count: None)


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> dict[str, list[Sentence]]:
        raise KeyboardInterrupt

    old = tmp_path / "train.en"
    old.write_text("an older corpus\n")
    monkeypatch.setattr(make_corpus, "draw_sets", fail)
    with pytest.raises(KeyboardInterrupt):
        make_corpus.main(small_arguments(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["train.en"]
    assert old.read_text() == "an older corpus\n"


def test_a_broken_table_is_told_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "names.tsv").write_text("english\tgerman\tkind\nAnna\tAnna\n")
    with pytest.raises(UserError, match=r"names\.tsv, line 2: 2 cells but the header has 3"):
        read_table("names", tmp_path)


def test_sample_prints_every_construction(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_corpus.main(["--sample", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(f"# {name}\n" in printed for name in (*DRAWN, *HARD))
