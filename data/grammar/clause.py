"""Clauses as trees: who does what, when and how, before any word order.

``english_order`` and ``german_order`` turn a clause into words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grammar.adjunct import FixedPhrase, PrepositionalPhrase
from grammar.entries import Adjective, Fixed, Verb
from grammar.nominal import Nominal, NounPhrase, Phrase
from grammar.tables import NONE
from grammar.words import Word, within, words

Adverbial = PrepositionalPhrase | FixedPhrase


@dataclass(frozen=True)
class Modal:
    """A modal verb.

    ``kind`` is ``auxiliary`` (*can*), ``verb`` (*want to*, which needs *do*) or ``be`` (*be allowed
    to*); ``forms`` are the present, its third person and the past; ``negated`` replaces ``german``
    under negation, since *must not* is *nicht dürfen*.
    """

    kind: str
    forms: tuple[str, str, str]
    rest: str
    german: str
    negated: str = ""


MODALS = {
    "can": Modal("auxiliary", ("can", "can", "could"), "", "können"),
    "must": Modal("auxiliary", ("must", "must", NONE), "", "müssen", negated="dürfen"),
    "have to": Modal("verb", ("have", "has", "had"), "to", "müssen"),
    "want to": Modal("verb", ("want", "wants", "wanted"), "to", "wollen"),
    "should": Modal("auxiliary", ("should", "should", NONE), "", "sollten"),
    "may": Modal("auxiliary", ("may", "may", NONE), "", "dürfen"),
    "be allowed to": Modal("be", (NONE, NONE, NONE), "allowed to", "dürfen"),
    "would like to": Modal("auxiliary", ("would", "would", NONE), "like to", "möchten"),
}


@dataclass(frozen=True)
class Comparison:
    """A predicate adjective: *old*, *older than the man*, *as old as the man*."""

    adjective: Adjective
    degree: str = "positive"
    standard: Nominal | None = None

    def english(self) -> list[Word]:
        """Return the English predicate."""
        core = words(self.adjective.english_degree(self.degree), "adjective")
        if not self.standard:
            return core
        after = within("standard", self.standard.english("object"))
        if self.degree == "positive":
            return words("as", "as") + core + words("as", "than") + after
        return core + words("than", "than") + after

    def german(self) -> Phrase:
        """Return the German predicate, which is not declined."""
        core = words(self.adjective.german_degree(self.degree), "adjective")
        if not self.standard:
            return Phrase(core)
        after = within("standard", self.standard.german("nom").all)
        if self.degree == "positive":
            return Phrase(words("so", "as") + core + words("wie", "than") + after)
        return Phrase(core + words("als", "than") + after)

    def tags(self) -> Iterator[str]:
        """Name the comparison."""
        yield "predicate-adjective"
        if self.standard:
            yield "equative" if self.degree == "positive" else "comparative"
            yield from self.standard.tags()


@dataclass(frozen=True)
class Profession:
    """A predicate noun: *She is a teacher*, *Sie ist Lehrerin*, without an article in German."""

    phrase: NounPhrase
    bare: bool

    def english(self) -> list[Word]:
        """Return the noun with its article, which is aligned to nothing if German has none."""
        return self.phrase.english("object")

    def german(self) -> Phrase:
        """Return the noun, with its article only after an adjective."""
        core = self.phrase.german("nom").core
        return Phrase(core[1:] if self.bare else core)

    def tags(self) -> Iterator[str]:
        """Name the construction."""
        yield "profession"
        yield from self.phrase.tags()


@dataclass(frozen=True)
class Object:
    """An object in the accusative or dative.

    ``to`` says that English marks the dative, as in *gives it to him*.
    """

    role: str  # acc or dat
    phrase: Nominal
    to: bool = False

    def english(self) -> list[Word]:
        """Return the English object."""
        inner = within(self.role, self.phrase.english("object"))
        return (words("to", "to") if self.to else []) + inner


@dataclass(frozen=True)
class Oblique:
    """A complement that is no plain object: a prepositional phrase or a predicate."""

    role: str  # oblique or predicate
    phrase: PrepositionalPhrase | FixedPhrase | Comparison | Profession

    def english(self) -> list[Word]:
        """Return the English complement."""
        return within(self.role, self.phrase.english())


Complement = Object | Oblique


@dataclass(frozen=True)
class Content:
    """A clause that is the object of another: *that*, *whether*, a question word, or *to*."""

    kind: str
    clause: Clause
    wh: Fixed | None = None


@dataclass(frozen=True)
class Clause:
    """A clause; ``gap`` names the role that a relative pronoun or question word has taken away.

    ``tense`` is present, progressive, past, perfect, pluperfect or future.
    """

    verb: Verb
    subject: Nominal
    tense: str = "present"
    complements: tuple[Complement, ...] = ()
    adverbials: tuple[Adverbial, ...] = ()
    front: Adverbial | None = None
    modal: Modal | None = None
    negated: bool = False
    passive: bool = False
    fond: bool = False  # *likes to read*, *liest gern*
    content: Content | None = None
    gap: str = ""

    def complement(self, role: str) -> Complement | None:
        """Return the complement with that role, if there is one."""
        return next((part for part in self.complements if part.role == role), None)

    @property
    def particle_link(self) -> str:
        """Link of a particle: to its counterpart if both languages have one, else to the verb."""
        return "particle" if self.verb.prefix and self.verb.english_particle else "verb"

    def tags(self) -> Iterator[str]:
        """Name the constructions of this clause and of all its parts."""
        verb = self.verb
        if self.tense in ("perfect", "pluperfect"):
            yield f"perfect-{verb.aux}"
        if self.tense in ("future", "progressive"):
            yield self.tense
        flags = {
            "modal": self.modal,
            "passive": self.passive,
            "gern": self.fond,
            "separable": verb.prefix,
            "reflexive": verb.reflexive,
            "fronted-adverb": self.front,
            "ambiguous": verb.ambiguous,
            "dative-object": self.complement("dat"),
        }
        yield from (name for name, present in flags.items() if present)
        if self.negated:
            yield "negation-kein" if self.kein() else "negation-nicht"
        if self.gap != "subject":
            yield from self.subject.tags()
        for part in self.complements:
            if part.role != self.gap:
                yield from part.phrase.tags()
        for adverbial in (*self.adverbials, *([self.front] if self.front else [])):
            yield from adverbial.tags()
            if adverbial.kind != "place":
                yield f"adverb-{adverbial.kind}"
        if self.content:
            yield {"to": "zu-infinitive"}.get(self.content.kind, f"{self.content.kind}-clause")
            yield from self.content.clause.tags()

    def kein(self) -> Complement | None:
        """Return the complement that takes *kein* if the clause is negated, else None."""
        for part in self.complements:
            phrase = part.phrase.phrase if isinstance(part.phrase, Profession) else part.phrase
            plain = isinstance(phrase, NounPhrase) and not phrase.definite
            if part.role in ("acc", "predicate") and plain and part.role != self.gap:
                return part
        return None
