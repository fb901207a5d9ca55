"""Which constructions the corpus has, and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from grammar import asking, combined, hard, simple
from grammar.dice import Unfit
from grammar.draw_clause import ClauseDraw
from grammar.words import FINAL, Sentence

Construction = Callable[[ClauseDraw], Sentence]

ATTEMPTS = 20_000
SHORTEST_WORDS = 3  # without punctuation
LONGEST_TOKENS = 30  # with punctuation, on either side

WEIGHTS: dict[str, float] = {
    "statement": 40,
    "relative": 8,
    "subordinate": 8,
    "content": 7,
    "coordination": 2,
    "anaphora": 4,
    "purpose": 1.5,
    "passive": 4,
    "gern": 2,
    "predicate": 5,
    "profession": 2,
    "age": 1,
    "existential": 1,
    "weather": 1,
    "polar-question": 4,
    "adverbial-question": 3,
    "pronoun-question": 3,
    "phrase-question": 2,
    "request": 3,
    "vocative": 3,
}
DRAWN: dict[str, Construction] = {
    "statement": simple.statement,
    "relative": combined.relative,
    "subordinate": combined.subordinate,
    "content": combined.content,
    "coordination": combined.coordination,
    "anaphora": combined.anaphora,
    "purpose": combined.purpose,
    "passive": simple.passive,
    "gern": simple.fond,
    "predicate": simple.predicate,
    "profession": simple.profession,
    "age": simple.age,
    "existential": simple.existential,
    "weather": simple.weather,
    "polar-question": asking.polar,
    "adverbial-question": asking.adverbial_question,
    "pronoun-question": asking.pronoun_question,
    "phrase-question": asking.phrase_question,
    "request": asking.request,
    "vocative": asking.vocative,
}
HARD: dict[str, Construction] = {
    "nested-relative": hard.nested_relative,
    "modal-in-relative": hard.modal_in_relative,
    "nested-subordinate": hard.nested_subordinate,
    "relative-in-subordinate": hard.relative_in_subordinate,
    "question-with-clause": hard.question_with_clause,
    "unseen-compound": hard.unseen_compound,
    "unseen-number": hard.unseen_number,
    "long": hard.long,
}


def draw_one(draw: ClauseDraw, name: str) -> Sentence:
    """Draw one sentence of a construction, again and again until one fits together."""
    construction = DRAWN.get(name) or HARD[name]
    for _ in range(ATTEMPTS):
        try:
            drawn = construction(draw).tagged(name)
        except Unfit:
            continue
        if _fits(drawn, name):
            return drawn
    raise RuntimeError(f"{name} did not fit together in {ATTEMPTS} attempts: its tables are wrong")


def _fits(sentence: Sentence, name: str) -> bool:
    """Check the length of both sides, and that no English word stands twice in a row."""
    forms = [word.form for word in sentence.english]
    longest = max(len(sentence.english), len(sentence.german))
    shortest = min(_words(sentence.source), _words(sentence.target))
    if name == "long":
        return LONGEST_TOKENS < longest <= hard.LONGEST and shortest >= LONGEST_TOKENS - 5
    twice = any(a == b for a, b in pairwise(forms))
    return shortest >= SHORTEST_WORDS and longest <= LONGEST_TOKENS and not twice


def _words(line: str) -> int:
    return sum(token not in (*FINAL, ",") for token in line.split())
