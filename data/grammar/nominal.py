"""Noun phrases, pronouns and names: one tree, two languages.

Every phrase has ``english(case)`` with case ``subject`` or ``object`` and ``german(case)`` with one
of the four cases, which gives a ``Phrase``. ``agreement`` is (person, number), per language.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grammar import english, german
from grammar.entries import Adjective, Compound, Determiner, Noun, ProperName
from grammar.numbers import cardinal
from grammar.words import Word, within, words

if TYPE_CHECKING:
    from grammar.relative import Relative


# Two-digit numbers that only the hard test set has.
HELD_OUT_NUMBERS = frozenset({23, 29, 32, 38, 41, 47, 54, 58, 63, 69, 74, 76, 85, 87, 92, 96})


@dataclass(frozen=True)
class Phrase:
    """A German constituent: ``core``, and a relative clause that may move behind the verb."""

    core: list[Word]
    tail: list[Word] = field(default_factory=list)

    @property
    def all(self) -> list[Word]:
        """The constituent in one piece."""
        return self.core + self.tail


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun; German forms in the nominative, accusative, dative and reflexive."""

    forms: tuple[str, str]
    english_agreement: tuple[int, str]
    german_forms: tuple[str, str, str, str]
    german_agreement: tuple[int, str]
    pronominal: bool = True
    definite: bool = True

    def english(self, case: str) -> list[Word]:
        """Return *he* or *him*."""
        return words(self.forms[case == "object"], "noun")

    def german(self, case: str) -> Phrase:
        """Return *er*, *ihn* or *ihm*."""
        return Phrase(words(self.german_forms[german.CASES.index(case)], "noun"))

    def tags(self) -> Iterator[str]:
        """Pronouns have no construction of their own."""
        return iter(())


# "you" is polite unless the sentence calls somebody by the first name or calls children.
PRONOUNS = {
    "I": Pronoun(("I", "me"), (1, "sg"), ("ich", "mich", "mir", "mich"), (1, "sg")),
    "you": Pronoun(("you", "you"), (2, "sg"), ("Sie", "Sie", "Ihnen", "sich"), (3, "pl")),
    "du": Pronoun(("you", "you"), (2, "sg"), ("du", "dich", "dir", "dich"), (2, "sg")),
    "ihr": Pronoun(("you", "you"), (2, "pl"), ("ihr", "euch", "euch", "euch"), (2, "pl")),
    "he": Pronoun(("he", "him"), (3, "sg"), ("er", "ihn", "ihm", "sich"), (3, "sg")),
    "she": Pronoun(("she", "her"), (3, "sg"), ("sie", "sie", "ihr", "sich"), (3, "sg")),
    "we": Pronoun(("we", "us"), (1, "pl"), ("wir", "uns", "uns", "uns"), (1, "pl")),
    "they": Pronoun(("they", "them"), (3, "pl"), ("sie", "sie", "ihnen", "sich"), (3, "pl")),
    # "it" takes the gender of the German noun that it stands for.
    "it m": Pronoun(("it", "it"), (3, "sg"), ("er", "ihn", "ihm", "sich"), (3, "sg")),
    "it f": Pronoun(("it", "it"), (3, "sg"), ("sie", "sie", "ihr", "sich"), (3, "sg")),
    "it n": Pronoun(("it", "it"), (3, "sg"), ("es", "es", "ihm", "sich"), (3, "sg")),
}


@dataclass(frozen=True)
class Name:
    """A person's name, with *Mr* or *Mrs* or without, or two persons joined by *and*."""

    name: ProperName
    title: str = ""
    pronominal: bool = False
    definite: bool = True
    english_agreement: tuple[int, str] = (3, "sg")
    german_agreement: tuple[int, str] = (3, "sg")

    def english(self, case: str) -> list[Word]:
        """Return the name."""
        return words(self.title, "title") + words(self.name.english, "noun")

    def german(self, case: str) -> Phrase:
        """Return the name; *Herr* is a weak noun, and a genitive ends in -s."""
        title = {"": "", "Mrs": "Frau", "Mr": "Herr" if case == "nom" else "Herrn"}[self.title]
        form = self.name.german + ("s" if case == "gen" else "")
        return Phrase(words(title, "title") + words(form, "noun"))

    def tags(self) -> Iterator[str]:
        """Names have no construction of their own."""
        return iter(())


@dataclass(frozen=True)
class Pair:
    """Two noun phrases joined by *and*."""

    first: Nominal
    second: Nominal
    pronominal: bool = False
    definite: bool = True
    english_agreement: tuple[int, str] = (3, "pl")
    german_agreement: tuple[int, str] = (3, "pl")

    def english(self, case: str) -> list[Word]:
        """Return *A and B*."""
        left, right = self.first.english(case), self.second.english(case)
        return within("first", left) + words("and", "and") + within("second", right)

    def german(self, case: str) -> Phrase:
        """Return *A und B*."""
        left, right = self.first.german(case).all, self.second.german(case).all
        return Phrase(within("first", left) + words("und", "and") + within("second", right))

    def tags(self) -> Iterator[str]:
        """Name the coordination and what is in it."""
        yield "noun-coordination"
        yield from self.first.tags()
        yield from self.second.tags()


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, number, adjectives, compound, noun, genitive and relative clause.

    ``owner`` is a genitive: *my father's car* if it is a person, *the roof of the house* if not.
    """

    noun: Noun
    number: str = "sg"
    determiner: Determiner | None = None
    numeral: int = 0
    adjectives: tuple[tuple[Adjective, str], ...] = ()
    first: Compound | None = None
    owner: NounPhrase | Name | None = None
    owner_first: bool = False
    relative: Relative | None = None
    pronominal: bool = False

    @property
    def definite(self) -> bool:
        """Whether the hearer knows which one: this decides the German word order."""
        return self.owner is not None or bool(self.determiner and self.determiner.definite)

    @property
    def english_number(self) -> str:
        """Number in English; *trousers* is plural."""
        kind = self.noun.english_kind
        return {"": self.number, "pl": "pl"}.get(kind, "sg")

    @property
    def german_number(self) -> str:
        """Number in German; *Hose* is singular."""
        kind = self.noun.german_kind
        return {"": self.number, "pl": "pl"}.get(kind, "sg")

    @property
    def english_agreement(self) -> tuple[int, str]:
        """Third person."""
        return 3, self.english_number

    @property
    def german_agreement(self) -> tuple[int, str]:
        """Third person."""
        return 3, self.german_number

    def english(self, case: str) -> list[Word]:
        """Return the English phrase; the case makes no difference."""
        body: list[Word] = []
        if self.numeral:
            body += words(cardinal(self.numeral)[0], "numeral")
        for index, (adjective, degree) in enumerate(self.adjectives):
            body += words(adjective.english_degree(degree), f"adjective{index}")
        if self.first:
            body += words(self.first.english, "first")
        body += words(self.noun.english_form(self.english_number), "noun")
        after: list[Word] = []
        if self.owner and self.owner_first:
            body = within("owner", self.owner.english(case)) + words("'s", "det", "genitive") + body
        elif self.owner:
            after = words("of", "genitive") + within("owner", self.owner.english(case))
        if self.determiner and not self.owner_first:
            body = words(self._english_determiner(body[0].form), "det") + body
        if self.relative:
            after = after + within("relative", self.relative.english())
        return body + after

    def _english_determiner(self, following: str) -> str:
        assert self.determiner
        if self.determiner.english == "a":
            return english.article(following)
        return self.determiner.plural if self.english_number == "pl" else self.determiner.english

    def german(self, case: str, instead: Determiner | None = None) -> Phrase:
        """Return the declined phrase; ``instead`` replaces the determiner (*kein* for *ein*)."""
        gender, number = self.noun.gender, self.german_number
        if isinstance(self.owner, Name):
            return self._after_name(case)
        determiner = instead or self.determiner
        declension = determiner.declension if determiner else None
        core: list[Word] = []
        if determiner:
            form = german.determiner(determiner.german, declension or "", case, gender, number)
            core += words(form, "det")
        core += self._german_body(case, declension)
        if self.owner:
            owner = within("owner", self.owner.german("gen").all)
            core += [owner[0].linked("genitive"), *owner[1:]]
        return Phrase(core, within("relative", self._german_relative()))

    def _german_body(self, case: str, declension: str | None) -> list[Word]:
        gender, number = self.noun.gender, self.german_number
        body: list[Word] = []
        if self.numeral:
            body += words(cardinal(self.numeral)[1], "numeral")
        for index, (adjective, degree) in enumerate(self.adjectives):
            stem = adjective.german_degree(degree)
            form = german.adjective(stem, declension, case, gender, number)
            body += words(form, f"adjective{index}")
        form = self.noun.german_form(case, number)
        if self.first:
            return body + words(german.compound(self.first.german, form), "first", "noun")
        return body + words(form, "noun")

    def _after_name(self, case: str) -> Phrase:
        """*Annas altes Auto*: the name stands for the determiner, adjectives are strong."""
        assert isinstance(self.owner, Name)
        (name,) = within("owner", self.owner.german("gen").all)
        return Phrase([name.linked("genitive", "det"), *self._german_body(case, None)])

    def _german_relative(self) -> list[Word]:
        return self.relative.german(self.noun.gender, self.german_number) if self.relative else []

    def tags(self) -> Iterator[str]:
        """Name what is in the phrase."""
        if self.first:
            yield "unseen-compound" if self.first.held_out else "compound"
        if self.numeral:
            yield "unseen-number" if self.numeral in HELD_OUT_NUMBERS else "number"
        if self.noun.ambiguous or any(adjective.ambiguous for adjective, _ in self.adjectives):
            yield "ambiguous"
        if self.owner:
            yield "genitive"
            yield from self.owner.tags()
        if self.noun.english_kind != self.noun.german_kind:
            yield "number-mismatch"
        if self.adjectives:
            declension = self.determiner.declension if self.determiner else None
            yield f"adjective-{german.ADJECTIVES_AFTER[declension] if declension else 'strong'}"
        if any(degree == "superlative" for _, degree in self.adjectives):
            yield "superlative"
        if self.relative:
            yield from self.relative.tags()


Nominal = Pronoun | Name | Pair | NounPhrase
