"""The corpus's German: agreement, case and order by a second opinion, inflection, and meaning."""

from __future__ import annotations

import re
import sys
from itertools import combinations
from pathlib import Path

import german_checker as checker
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "data"))

from grammar import german, lexicon  # noqa: E402
from grammar.constructions import DRAWN, HARD, WEIGHTS, draw_one  # noqa: E402
from grammar.dice import Dice  # noqa: E402
from grammar.draw_clause import ClauseDraw, Wish  # noqa: E402
from grammar.words import detokenise  # noqa: E402

LEXICON = lexicon.load()


def test_german_is_correct() -> None:
    """Look at as many sentences as the test sets have, in the corpus's own proportions."""
    draw = ClauseDraw(LEXICON, Dice("german"))
    for _ in range(1500):
        sentence = draw_one(draw, draw.dice.weighted(WEIGHTS))
        found = checker.problems(
            sentence.source, sentence.target, sentence.pharaoh, set(sentence.tags)
        )
        assert not found, (sentence.source, sentence.target)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.sampled_from([*DRAWN, *HARD]))
def test_every_construction_is_correct_whatever_the_seed(seed: int, name: str) -> None:
    draw = ClauseDraw(LEXICON, Dice(str(seed)))
    for _ in range(5):
        sentence = draw_one(draw, name)
        tags = set(sentence.tags)
        line = sentence.pharaoh
        assert not checker.problems(sentence.source, sentence.target, line, tags)
        assert name in tags
        words = [re.sub(r"[,.?!]", "", text).split() for text in (sentence.source, sentence.target)]
        longest = max(len(sentence.english), len(sentence.german))
        assert min(map(len, words)) >= 3
        assert longest <= 30 or (name == "long" and longest <= 40)
        assert detokenise(sentence.source)[0].isupper()


@pytest.mark.parametrize(
    "broken",
    [
        "der Frau kauft ein Buch .",
        "die Frau kauft einen Buch .",
        "die Frau kauft ein altes Tisch .",
        "die Frau kauft den alter Tisch .",
        "die Frau spricht mit den Mann .",
        "die Frau wartet auf dem alte Bus .",
        "gestern die Frau kaufte ein Buch .",
        "die Frau kaufen ein Buch .",
        "die Frauen kauft ein Buch .",
        "die Frau schläft , weil der Mann liest das Buch .",
        "sie hilft der Kind .",
    ],
)
def test_the_checker_finds_faults(broken: str) -> None:
    assert checker.problems("x", broken, "0-0", set())


# Facts of the grammar book, not of the generator: infinitive, stem of du and er, past, participle.
STRONG = {
    "lesen": ("lies", "las", "gelesen"),
    "laden": ("läd", "lud", "geladen"),
    "bringen": ("-", "brachte", "gebracht"),
    "finden": ("-", "fand", "gefunden"),
    "nehmen": ("nimm", "nahm", "genommen"),
    "halten": ("hält", "hielt", "gehalten"),
    "essen": ("iss", "aß", "gegessen"),
}
WEAK = ("-", "-", "-")


@pytest.mark.parametrize(
    ("infinitive", "tense", "person", "number", "form"),
    [
        ("lesen", "present", 3, "sg", "liest"),
        ("lesen", "present", 2, "sg", "liest"),
        ("lesen", "past", 3, "pl", "lasen"),
        ("laden", "present", 3, "sg", "lädt"),
        ("halten", "present", 3, "sg", "hält"),
        ("halten", "present", 2, "sg", "hältst"),
        ("öffnen", "present", 3, "sg", "öffnet"),
        ("öffnen", "past", 1, "sg", "öffnete"),
        ("sammeln", "present", 1, "sg", "sammle"),
        ("spielen", "present", 1, "sg", "spiele"),
        ("arbeiten", "present", 2, "pl", "arbeitet"),
        ("tanzen", "present", 2, "sg", "tanzt"),
        ("bringen", "past", 3, "pl", "brachten"),
        ("finden", "past", 2, "sg", "fandest"),
        ("nehmen", "present", 2, "sg", "nimmst"),
        ("zeichnen", "past", 3, "sg", "zeichnete"),
        ("wohnen", "present", 3, "sg", "wohnt"),
        ("erinnern", "present", 3, "sg", "erinnert"),
        ("haben", "present", 2, "sg", "hast"),
        ("sein", "past", 2, "pl", "wart"),
        ("müssen", "present", 3, "sg", "muss"),
    ],
)
def test_conjugation(infinitive: str, tense: str, person: int, number: str, form: str) -> None:
    parts = STRONG.get(infinitive, WEAK)
    assert german.finite(infinitive, parts, tense, person, number) == form


@pytest.mark.parametrize(
    ("prefix", "infinitive", "form"),
    [
        ("ein", "laden", "eingeladen"),
        ("auf", "wachen", "aufgewacht"),
        ("", "verkaufen", "verkauft"),
        ("", "reparieren", "repariert"),
        ("", "öffnen", "geöffnet"),
        ("", "gehören", "gehört"),
        ("", "arbeiten", "gearbeitet"),
    ],
)
def test_participles(prefix: str, infinitive: str, form: str) -> None:
    assert german.participle(prefix, infinitive, STRONG.get(infinitive, WEAK)[2]) == form


@pytest.mark.parametrize(
    ("infinitive", "number", "form"),
    [
        ("lesen", "sg", "lies"),
        ("essen", "sg", "iss"),
        ("halten", "sg", "halte"),
        ("öffnen", "sg", "öffne"),
        ("kaufen", "sg", "kauf"),
        ("spielen", "sg", "spiel"),
        ("lesen", "pl", "lest"),
        ("öffnen", "pl", "öffnet"),
    ],
)
def test_imperatives(infinitive: str, number: str, form: str) -> None:
    assert german.imperative(infinitive, STRONG.get(infinitive, WEAK), number) == form


@pytest.mark.parametrize(
    ("stem", "comparative", "superlative"),
    [
        ("teuer", "teurer", "teuerst"),
        ("dunkel", "dunkler", "dunkelst"),
        ("müde", "müder", "müdest"),
        ("interessant", "interessanter", "interessantest"),
        ("spannend", "spannender", "spannendst"),
        ("neu", "neuer", "neuest"),
        ("sauber", "sauberer", "sauberst"),
    ],
)
def test_comparison(stem: str, comparative: str, superlative: str) -> None:
    assert (german.comparative(stem), german.superlative(stem)) == (comparative, superlative)


def test_one_german_sentence_for_each_english_one() -> None:
    """Draw many short sentences: the same English must never have two translations."""
    draw = ClauseDraw(LEXICON, Dice("unique"))
    known: dict[str, str] = {}
    for index in range(4000):
        sentence = draw_one(draw, [*DRAWN][index % len(DRAWN)])
        assert known.setdefault(sentence.source, sentence.target) == sentence.target


def test_context_decides_between_the_senses_of_a_word() -> None:
    """Senses of one English word never fit the same context, so the sentence tells which it is."""
    nouns = LEXICON.nouns
    for one, other in combinations([a for a in LEXICON.adjectives if a.ambiguous], 2):
        if one.english == other.english and one.german != other.german:
            both = [n.english for n in nouns if n.belongs(one.classes) and n.belongs(other.classes)]
            assert not both, (one.english, both)
    for one, other in combinations([v for v in LEXICON.verbs if v.ambiguous], 2):
        if one.lemma != other.lemma or one.german_lemma == other.german_lemma:
            continue
        if [s.role for s in one.slots] != [s.role for s in other.slots]:
            continue
        subjects = any(n.belongs(one.subject) and n.belongs(other.subject) for n in nouns)
        objects = all(
            any(n.belongs(a.classes) and n.belongs(b.classes) for n in nouns)
            for a, b in zip(one.slots, other.slots, strict=True)
        )
        assert not (subjects and objects), one.lemma
    contexts = [verb.subject for verb in LEXICON.verbs]
    contexts += [slot.classes for verb in LEXICON.verbs for slot in verb.slots]
    for one, other in combinations([n for n in nouns if n.ambiguous], 2):
        if one.english != other.english or "-" not in (one.of + other.of):
            continue
        if one.of != other.of:
            continue  # "the bank of the river" tells itself
        assert not any(one.belongs(c) and other.belongs(c) for c in contexts), one.english


def test_no_english_form_is_of_two_nouns() -> None:
    """*The glasses* are a *Brille*, so *a glass* has no plural here."""
    for one, other in combinations(LEXICON.nouns, 2):
        if one.english != other.english:
            forms = [{n.english, n.english_form("sg" if n.number else "pl")} for n in (one, other)]
            assert not forms[0] & forms[1], (one.english, other.english)


def test_english_that_was_wrong_is_not_drawn() -> None:
    """*My parents's car*; *until no woman came*."""
    draw = ClauseDraw(LEXICON, Dice("english"))
    parents = before = 0
    for _ in range(6000):
        sentence = draw_one(draw, draw.dice.pick(("statement", "subordinate"))).source
        parents += "parents" in sentence
        before += bool(re.search(r"\b(before|until|after|as soon as) ", sentence))
        assert not re.search(r"parents 's", sentence), sentence
        assert not re.search(r"\b(before|until|after|as soon as) no\b", sentence), sentence
    assert parents
    assert before


def test_nobody_wants_to_know_somebody() -> None:
    """*Wants to know him* is *kennenlernen*, not *kennen*."""
    draw = ClauseDraw(LEXICON, Dice("know"))
    verb = next(verb for verb in LEXICON.verbs if verb.german == "kennen")
    assert "command" not in verb.flags  # which zu-infinitives need
    for _ in range(100):
        assert draw.clause(Wish(("present", "modal")), verb).modal is None


def test_the_shore_is_the_only_goal_of_swimming() -> None:
    slots = [slot for verb in LEXICON.verbs if verb.english == "swim" for slot in verb.slots]
    goals = [slot.classes for slot in slots if slot.role == "goal"]
    assert goals == [{"shore"}]
    assert [n.german for n in LEXICON.nouns if "shore" in n.classes] == ["Ufer"]


def test_class_names_do_not_catch_other_nouns() -> None:
    """A lemma counts as a class, so a class named like a noun must contain that noun."""
    classes = {name for noun in LEXICON.nouns for name in noun.classes}
    for noun in LEXICON.nouns:
        assert noun.english not in classes or noun.english in noun.classes, noun.english


def test_tables_name_only_classes_that_exist() -> None:
    known = {name for noun in LEXICON.nouns for name in (*noun.classes, noun.english)}
    known |= {"it", "nobody"}
    named = {name for verb in LEXICON.verbs for name in (*verb.subject, *verb.where)}
    named |= {name for adjective in LEXICON.adjectives for name in adjective.classes}
    named |= {name for _, whole in LEXICON.parts for name in whole}
    for verb in LEXICON.verbs:
        for slot in verb.slots:
            if slot.role not in ("clause", "amount", "in", "towards", "predicate"):
                named |= slot.classes
    assert named <= known
    manners = {adverb.german for adverb in LEXICON.adverbs if adverb.kind == "manner"}
    assert {form for verb in LEXICON.verbs for form in verb.manner} <= manners
