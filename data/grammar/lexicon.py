"""The lexicon: the tables of ``data/lexicon``, read into entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from grammar.entries import (
    Adjective,
    Compound,
    Determiner,
    Fixed,
    Noun,
    ProperName,
    Slot,
    Verb,
)
from grammar.tables import FOLDER, NONE, listed, read_table


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
        pairs = [
            (i, j)
            for i, _ in enumerate(row["english"].split())
            for j, _ in enumerate(row["german"].split())
        ]
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
