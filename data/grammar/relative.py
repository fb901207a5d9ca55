"""Relative clauses: the pronoun agrees with the noun outside, its case comes from inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grammar import english_order, german, german_order
from grammar.adjunct import PrepositionalPhrase
from grammar.clause import Clause
from grammar.words import COMMA, Word, within, words


@dataclass(frozen=True)
class Relative:
    """A relative clause; ``clause.gap`` is the role of the noun that it belongs to."""

    clause: Clause
    human: bool

    def english(self) -> list[Word]:
        """Return *who*, *whom*, *that* or *with which*, and the clause."""
        role = self.clause.gap
        start: list[Word] = []
        if role == "oblique":
            start += words(self._oblique().preposition, "preposition")
            pronoun = "whom" if self.human else "which"
        elif self.human:
            pronoun = "who" if role == "subject" else "whom"
        else:
            pronoun = "that"
        start += words(pronoun, "pronoun")
        return start + within("clause", english_order.statement(self.clause))

    def german(self, gender: str, number: str) -> list[Word]:
        """Return the clause between its commas."""
        role = self.clause.gap
        start: list[Word] = []
        case = "nom" if role == "subject" else role
        if role == "oblique":
            phrase = self._oblique()
            start += words(phrase.german_preposition, "preposition")
            case = phrase.case
        start += words(german.relative_pronoun(case, gender, number), "pronoun")
        inner = within("clause", german_order.verb_final(self.clause))
        return [Word(COMMA), *start, *inner, Word(COMMA)]

    def _oblique(self) -> PrepositionalPhrase:
        part = self.clause.complement("oblique")
        assert part
        assert isinstance(part.phrase, PrepositionalPhrase)
        return part.phrase

    def tags(self) -> Iterator[str]:
        """Name the role of the gap, and what is in the clause."""
        yield f"relative-{self.clause.gap}"
        yield from self.clause.tags()
