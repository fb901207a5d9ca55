"""Constructions of the hard test set: what training shows apart, here together or unseen."""

from __future__ import annotations

from dataclasses import replace

from grammar import asking, combined, english_order, german_order, simple
from grammar.clause import Clause
from grammar.dice import Unfit
from grammar.draw_clause import ClauseDraw, Wish
from grammar.words import COMMA, Sentence, Word, finish, within

LONGEST = 40


def nested_relative(draw: ClauseDraw) -> Sentence:
    """Draw a relative clause inside a relative clause."""
    clause = draw.clause(Wish(negation=0, adverbials=0))
    wish = replace(combined.RELATIVE, negation=0, adverbials=0)

    def deeper(inner: Clause) -> Clause:
        return combined.with_relative(draw, inner, wish, at_end=0.8)

    return simple.sentence(combined.with_relative(draw, clause, wish, deeper))


def modal_in_relative(draw: ClauseDraw) -> Sentence:
    """Draw *the book that he has to read*, *das er lesen muss*."""
    clause = draw.clause(Wish(("present", "past", "perfect"), negation=0, adverbials=0.2))
    wish = replace(combined.RELATIVE, tenses=("modal",))
    return simple.sentence(combined.with_relative(draw, clause, wish))


def nested_subordinate(draw: ClauseDraw) -> Sentence:
    """Draw a dependent clause inside a subordinate one: *because he knows that it is raining*."""
    conjunction, main, clause, first = combined.clause_pair(draw)
    kind = draw.dice.pick(("that", "whether", "to"))
    inner = combined.content_clause(draw, kind)
    if inner.tense != clause.tense:
        raise Unfit
    return combined.joined(replace(main, adverbials=()), conjunction, inner, first)


def relative_in_subordinate(draw: ClauseDraw) -> Sentence:
    """Draw a relative clause inside a subordinate clause."""
    conjunction, main, clause, first = combined.clause_pair(draw)
    inner = combined.with_relative(draw, clause)
    return combined.joined(main, conjunction, inner, first)


def question_with_clause(draw: ClauseDraw) -> Sentence:
    """Draw a question that has a dependent or a subordinate clause."""
    if draw.dice.chance(0.5):
        clause = combined.content_clause(draw, draw.dice.pick(("that", "whether", "to")))
        clause = replace(clause, negated=False)
        source, target = english_order.question(clause), german_order.main(clause, [])
        return finish(source, target, "?").tagged(*clause.tags())
    conjunction, main, inner, _ = combined.clause_pair(draw)
    main = replace(main, negated=False, front=None)
    source, target = combined.subordinated(conjunction, inner)
    source = within("main", english_order.question(main)) + source
    target = [*within("main", german_order.main(main, [])), Word(COMMA), *target]
    return finish(source, target, "?").tagged(conjunction[1], *main.tags(), *inner.tags())


def unseen_compound(draw: ClauseDraw) -> Sentence:
    """Draw a compound whose two parts training has only in other compounds."""
    return _held_out(draw, "compound", "unseen-compound")


def unseen_number(draw: ClauseDraw) -> Sentence:
    """Draw a number such as *forty-seven* that training does not have."""
    return _held_out(draw, "number", "unseen-number")


def _held_out(draw: ClauseDraw, what: str, tag: str) -> Sentence:
    draw.nominals.held_out = what
    try:
        kind = draw.dice.pick((simple.statement, simple.statement, simple.passive, asking.polar))
        drawn = kind(draw)
    finally:
        draw.nominals.held_out = ""
    if tag not in drawn.tags:
        raise Unfit
    return drawn


def long(draw: ClauseDraw) -> Sentence:
    """Draw a sentence of more tokens than any training sentence has."""
    clauses = [combined.main_clause(draw, plain=0.3) for _ in range(draw.dice.between(2, 3))]
    return combined.coordinated(draw, clauses)
