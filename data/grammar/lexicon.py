"""The lexicon: tables of ``data/lexicon`` as objects that inflect themselves in both languages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from grammar import english, german
from grammar.tables import FOLDER, NONE, listed, read_table


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


@dataclass
class Lexicon:
    """All tables, read once."""

    nouns: list[Noun] = field(default_factory=list)
    compounds: list[tuple[Compound, Noun]] = field(default_factory=list)
    parts: list[tuple[Noun, frozenset[str]]] = field(default_factory=list)
    adjectives: list[Adjective] = field(default_factory=list)
    determiners: dict[str, Determiner] = field(default_factory=dict)
    verbs: list[Verb] = field(default_factory=list)
    adverbs: list[Fixed] = field(default_factory=list)
    names: list[ProperName] = field(default_factory=list)

    def noun(self, lemma: str) -> Noun:
        """Return the first noun with that English lemma."""
        return next(noun for noun in self.nouns if noun.english == lemma)

    def adverb(self, german_form: str, kind: str) -> Fixed:
        """Return the adverb of a kind with that German form."""
        return next(a for a in self.adverbs if (a.german, a.kind) == (german_form, kind))

    def lemmas(self) -> set[tuple[str, str, str]]:
        """Return every (part of speech, English, German) once, fixed phrases and names left out."""
        found = {("noun", n.english, n.german) for n in self.nouns}
        found |= {("verb", v.lemma, v.german_lemma) for v in self.verbs}
        found |= {("adjective", a.english, a.german) for a in self.adjectives}
        found |= {("adverb", a.english, a.german) for a in self.adverbs if " " not in a.english}
        return found


def load(folder: Path = FOLDER) -> Lexicon:
    """Read every table of ``folder``."""
    lexicon = Lexicon()
    for table in ("people", "things", "places"):
        lexicon.nouns += [_noun(row) for row in read_table(table, folder)]
    lexicon.nouns = _mark_ambiguous(lexicon.nouns)
    for row in read_table("compounds", folder):
        part = Compound(row["english"], row["german"], row["held_out"] == "yes")
        lexicon.compounds.append((part, lexicon.noun(row["head"])))
    for row in read_table("parts", folder):
        lexicon.parts.append((lexicon.noun(row["part"]), frozenset(row["whole"].split())))
    adjectives = [_adjective(row) for row in read_table("adjectives", folder)]
    lexicon.adjectives = _mark_ambiguous(adjectives)
    for row in read_table("determiners", folder):
        lexicon.determiners[row["english"]] = Determiner(
            row["english"], row["plural"], row["german"], row["declension"], row["definite"] != NONE
        )
    lexicon.verbs = _mark_ambiguous([_verb(row) for row in read_table("verbs", folder)])
    lexicon.adverbs = [_fixed(row) for row in read_table("adverbs", folder)]
    for row in read_table("names", folder):
        kind, *gender = row["kind"].split()
        lexicon.names.append(ProperName(row["english"], row["german"], kind, gender == ["f"]))
    return lexicon


Entry = TypeVar("Entry", Noun, Adjective, Verb)


def _mark_ambiguous(entries: Iterable[Entry]) -> list[Entry]:
    """Mark entries whose English word has another German one elsewhere in the same table."""
    entries = list(entries)
    translations: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        translations[entry.lemma].add(entry.german_lemma)
    return [replace(e, ambiguous=len(translations[e.lemma]) > 1) for e in entries]


def _noun(row: dict[str, str]) -> Noun:
    at = row.get("at", NONE)
    return Noun(
        english=row["english"],
        english_plural=row["plural"],
        german=row["german"],
        gender=row["gender"],
        german_plural=row["german_plural"],
        genitive=row["genitive"],
        weak=row["declension"] == "weak",
        number="" if row["number"] == NONE else row["number"],
        classes=frozenset(row["classes"].split()),
        feminine=row.get("feminine", NONE),
        at=None if at == NONE else (at.split("/")[0], at.split("/")[1]),
        to=row.get("to", NONE),
        of=row.get("of", NONE),
    )


def _adjective(row: dict[str, str]) -> Adjective:
    return Adjective(
        row["english"],
        row["german"],
        listed(row["comparison"]),
        listed(row["german_comparison"]),
        frozenset(row["classes"].split()),
        row["use"] == "attributive",
    )


def _fixed(row: dict[str, str]) -> Fixed:
    """Read an adverb; without an alignment every English word expresses every German one."""
    if row["align"] == NONE:
        pairs = [(i, j) for i, _ in enumerate(row["english"].split())
                 for j, _ in enumerate(row["german"].split())]
    else:
        pairs = [(int(i), int(j)) for i, j in (p.split("-") for p in row["align"].split())]
    tenses = frozenset(listed(row["tenses"]))
    return Fixed(row["english"], row["german"], tuple(pairs), row["kind"], tenses)


def _verb(row: dict[str, str]) -> Verb:
    """Read a verb: ``turn|on`` and ``look at`` have particles, ``ein|schalten`` a prefix."""
    lemma, separable, particle = row["english"].partition("|")
    if not separable:
        lemma, _, particle = row["english"].partition(" ")
    infinitive = row["german"].removeprefix("sich ")
    prefix, mark, base = infinitive.partition("|")
    parts = listed(row["german_parts"]) or (NONE, NONE, NONE)
    return Verb(
        english=lemma,
        english_particle=particle,
        english_separable=bool(separable),
        english_parts=listed(row["english_parts"]),
        german=base if mark else infinitive,
        prefix=prefix if mark else "",
        reflexive=row["german"].startswith("sich "),
        german_parts=(parts[0], parts[1], parts[2]),
        aux=row["aux"],
        subject=frozenset(row["subject"].split()),
        slots=_slots(row["complements"]),
        manner=listed(row["manner"]),
        where=frozenset(listed(row["where"])),
        flags=frozenset(listed(row["flags"])),
    )


def _slots(cell: str) -> tuple[Slot, ...]:
    """Read complements: ``acc:text``, ``dat/to:person``, ``for/auf+acc:person``, ``?acc:food``.

    A word with a colon opens a complement; the words after it are more classes that fit.
    """
    groups: list[list[str]] = []
    for token in listed(cell):
        if ":" in token:
            groups.append([token])
        else:
            groups[-1].append(token)
    slots = []
    for head, *more in groups:
        kind, _, first = head.removeprefix("?").partition(":")
        classes = frozenset([first, *more])
        optional = head.startswith("?")
        if "+" in kind:
            prepositions, case = kind.split("+")
            source, target = prepositions.split("/")
            slots.append(Slot("oblique", classes, source, target, case, optional))
        else:
            role, _, source = kind.partition("/")
            slots.append(Slot(role, classes, english=source or NONE, optional=optional))
    return tuple(slots)
