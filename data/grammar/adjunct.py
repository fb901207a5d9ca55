"""Prepositional phrases and fixed expressions in both languages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grammar import german
from grammar.entries import Fixed
from grammar.nominal import Nominal, NounPhrase, Phrase
from grammar.tables import NONE
from grammar.words import Word, within, words


@dataclass(frozen=True)
class PrepositionalPhrase:
    """A preposition and what it governs: *in the kitchen*, *in der Küche*."""

    preposition: str
    german_preposition: str
    case: str
    nominal: Nominal
    kind: str = "place"

    def english(self) -> list[Word]:
        """Return the English phrase; ``-`` is no preposition."""
        before = words(self.preposition, "preposition") if self.preposition != NONE else []
        return before + within("object", self.nominal.english("object"))

    def german(self) -> Phrase:
        """Return the German phrase, contracted (*im*) unless a relative clause follows."""
        inner = self.nominal.german(self.case)
        core = within("object", inner.core)
        tail = within("object", inner.tail)
        article = isinstance(self.nominal, NounPhrase) and self.nominal.definite
        short = german.CONTRACTIONS.get((self.german_preposition, core[0].form))
        if short and article and not tail:
            return Phrase([Word(short, core[0].links | {"preposition"}), *core[1:]])
        return Phrase(words(self.german_preposition, "preposition") + core, tail)

    def tags(self) -> Iterator[str]:
        """Name the case that the preposition governs here."""
        yield f"preposition-{self.case}"
        yield from self.nominal.tags()


@dataclass(frozen=True)
class FixedPhrase:
    """An adverb or other fixed expression from the lexicon."""

    fixed: Fixed

    @property
    def kind(self) -> str:
        """Time, frequency, manner, place, goal or sentence."""
        return self.fixed.kind

    def english(self) -> list[Word]:
        """Return the English words."""
        links = {
            i: [f"{i}-{j}" for k, j in self.fixed.align if k == i] for i, _ in self.fixed.align
        }
        forms = self.fixed.english.split()
        return [Word(form, frozenset(links.get(i, ()))) for i, form in enumerate(forms)]

    def german(self) -> Phrase:
        """Return the German words."""
        forms = self.fixed.german.split()
        pairs = self.fixed.align
        return Phrase(
            [
                Word(form, frozenset(f"{i}-{k}" for i, k in pairs if k == j))
                for j, form in enumerate(forms)
            ]
        )

    def tags(self) -> Iterator[str]:
        """Adverbs are named by the clause, which knows where they stand."""
        return iter(())
