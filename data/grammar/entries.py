"""Entries of the lexicon: words that inflect themselves in both languages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from grammar import english, german
from grammar.tables import NONE


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun in both languages.

    ``number`` is empty for a countable noun, else ``mass``, ``bare`` (never an article), ``sg``,
    ``pl``, or two of these as English/German: *trousers* are ``pl/sg``, one *Hose*.
    ``at`` has the English and German preposition of place, ``to`` the German one of direction,
    ``of`` the class of an obligatory genitive, as in *the bank of the river*.
    """

    english: str
    english_plural: str
    german: str
    gender: str
    german_plural: str
    genitive: str
    weak: bool
    number: str
    classes: frozenset[str]
    feminine: str = NONE
    at: tuple[str, str] | None = None
    to: str = NONE
    of: str = NONE
    ambiguous: bool = False

    @property
    def lemma(self) -> str:
        """The English word that a reader sees."""
        return self.english

    @property
    def german_lemma(self) -> str:
        """The German word; *Bank* and *Bank* differ in the plural."""
        return f"{self.german} {self.german_plural}"

    @cached_property
    def english_kind(self) -> str:
        """What the English noun is: one of the values of ``number``."""
        return self.number.split("/")[0]

    @cached_property
    def german_kind(self) -> str:
        """What the German noun is: one of the values of ``number``."""
        return self.number.split("/")[-1]

    def english_form(self, number: str) -> str:
        """Return the singular or plural."""
        if number == "sg":
            return self.english
        return self.english_plural if self.english_plural != NONE else english.plural(self.english)

    def german_form(self, case: str, number: str) -> str:
        """Return the declined form."""
        if case == "gen" and number == "sg" and self.genitive != NONE:
            return self.genitive
        return german.noun(self.german, self.gender, self.german_plural, case, number, self.weak)

    def belongs(self, classes: frozenset[str]) -> bool:
        """Tell whether the noun is in one of ``classes``; its English lemma is a class as well."""
        return self.english in classes or not self.classes.isdisjoint(classes)


@dataclass(frozen=True, eq=False)
class Compound:
    """The first part of an English two-word noun and of the German compound."""

    english: str
    german: str
    held_out: bool


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective; ``comparison`` is empty where it has no degrees."""

    english: str
    german: str
    comparison: tuple[str, ...] = ()
    german_comparison: tuple[str, ...] = ()
    classes: frozenset[str] = frozenset()
    attributive_only: bool = False
    ambiguous: bool = False

    @property
    def lemma(self) -> str:
        """The English word that a reader sees."""
        return self.english

    @property
    def german_lemma(self) -> str:
        """The German word."""
        return self.german

    def english_degree(self, degree: str) -> str:
        """Return the positive, comparative or superlative."""
        if degree == "positive":
            return self.english
        return english.degree(self.english, self.comparison, degree)

    def german_degree(self, degree: str) -> str:
        """Return the stem of the positive, comparative or superlative."""
        if degree == "positive":
            return self.german
        if self.german_comparison:
            return self.german_comparison[0 if degree == "comparative" else 1]
        rule = german.comparative if degree == "comparative" else german.superlative
        return rule(self.german)


@dataclass(frozen=True, eq=False)
class Determiner:
    """A determiner; ``plural`` is ``-`` where English has none, ``declension`` as in ``german``."""

    english: str
    plural: str
    german: str
    declension: str
    definite: bool


@dataclass(frozen=True, eq=False)
class Slot:
    """A complement that a verb takes: its role, its prepositions and the classes that fit."""

    role: str
    classes: frozenset[str] = frozenset()
    english: str = NONE
    german: str = NONE
    case: str = NONE
    optional: bool = False


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb sense in both languages with the complements it takes and what it goes with."""

    english: str
    english_particle: str
    english_separable: bool
    english_parts: tuple[str, ...]
    german: str
    prefix: str
    reflexive: bool
    german_parts: tuple[str, str, str]
    aux: str
    subject: frozenset[str]
    slots: tuple[Slot, ...]
    manner: tuple[str, ...]
    where: frozenset[str]
    flags: frozenset[str]
    ambiguous: bool = False

    @property
    def lemma(self) -> str:
        """The English verb with its particle."""
        return f"{self.english} {self.english_particle}".strip()

    @property
    def german_lemma(self) -> str:
        """The German infinitive with its prefix."""
        return self.prefix + self.german

    @property
    def english_past(self) -> str:
        """The English past."""
        return self.english_parts[0] if self.english_parts else english.past(self.english)

    @property
    def english_participle(self) -> str:
        """The English past participle."""
        return self.english_parts[1] if self.english_parts else english.past(self.english)

    @property
    def english_ing(self) -> str:
        """The English present participle."""
        if len(self.english_parts) == 3:
            return self.english_parts[2]
        return english.present_participle(self.english)

    @property
    def participle(self) -> str:
        """The German past participle."""
        return german.participle(self.prefix, self.german, self.german_parts[2])

    def slot(self, role: str) -> Slot | None:
        """Return the complement with that role, if the verb has one."""
        return next((slot for slot in self.slots if slot.role == role), None)


@dataclass(frozen=True, eq=False)
class Fixed:
    """An adverb or fixed phrase with its own inner alignment."""

    english: str
    german: str
    align: tuple[tuple[int, int], ...]
    kind: str
    tenses: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class ProperName:
    """A name of a person, city or country; ``feminine`` countries take the article."""

    english: str
    german: str
    kind: str
    feminine: bool = False
