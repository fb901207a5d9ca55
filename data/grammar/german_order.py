"""German word order: the verb bracket and the order of what stands inside it.

A main clause is  front field | finite verb | middle field | rest of the verb | clauses,
a subordinate one  middle field | rest of the verb, finite verb | clauses.
"""

from __future__ import annotations

from dataclasses import dataclass

from grammar import german
from grammar.adjunct import FixedPhrase, PrepositionalPhrase
from grammar.clause import Clause, Complement, Content, Object, Oblique, Profession
from grammar.entries import Determiner
from grammar.nominal import NounPhrase, Phrase, Pronoun
from grammar.tables import NONE
from grammar.words import COMMA, Word, within, words

# Places in the middle field. Known things come early, new ones late: a definite object stands
# before the negation and the adverbs of manner and place, an indefinite one behind them.
FIELD = (
    "reflexive",
    "subject",
    "pronoun",
    "dative-pronoun",
    "time",
    "cause",
    "duration",
    "frequency",
    "dative",
    "definite",
    "negation",
    "agent",
    "manner",
    "company",
    "place",
    "indefinite",
    "last",
)

KEIN = Determiner("no", "no", "kein", "ein", False)
REGULAR = (NONE, NONE, NONE)


@dataclass(frozen=True)
class Bracket:
    """The verb: ``finite`` and ``right`` of a main clause, ``final`` of a subordinate clause."""

    finite: Word
    right: list[Word]
    final: list[Word]


def main(clause: Clause, front: list[Word] | None = None) -> list[Word]:
    """Return a clause with the verb second, or first if ``front`` is empty.

    Without ``front`` the clause's own adverbial stands there, or else the subject. A question word
    that is the subject comes as ``front`` with ``clause.gap == "subject"``.
    """
    verb = _bracket(clause)
    inside = clause.gap != "subject"
    if front is None and clause.front:
        front = within("front", clause.front.german().all)
    elif front is None:
        front, inside = _subject(clause), False
    middle, tail = _middle(clause, inside, bool(verb.right))
    return [*front, verb.finite, *middle, *verb.right, *tail, *_content(clause.content)]


def verb_final(clause: Clause) -> list[Word]:
    """Return a subordinate clause, without its conjunction or relative pronoun."""
    middle, tail = _middle(clause, clause.gap != "subject", True)
    return [*middle, *_bracket(clause).final, *tail, *_content(clause.content)]


def infinitive(clause: Clause) -> list[Word]:
    """Return *ein Auto zu kaufen*, *die Lampe einzuschalten*."""
    verb = clause.verb
    middle, tail = _middle(clause, False, True)
    if verb.prefix:
        joined = f"{verb.prefix}zu{verb.german}"
        return [*middle, *words(joined, "zu", "verb", clause.particle_link), *tail]
    return [*middle, *words("zu", "zu"), *words(verb.german, "verb"), *tail]


def imperative(clause: Clause) -> list[Word]:
    """Return a request; its form follows from the pronoun that is the subject."""
    verb, (person, number) = clause.verb, clause.subject.german_agreement
    links = ["verb"] if verb.prefix else ["verb", clause.particle_link]
    if person == 3:  # polite: the plural form with its pronoun, which English does not say
        form = german.finite(verb.german, verb.german_parts, "present", 3, "pl")
        start = words(form, *links) + words("Sie")
    else:
        start = words(german.imperative(verb.german, verb.german_parts, number), *links)
    right = words(verb.prefix, clause.particle_link)
    middle, tail = _middle(clause, False, bool(right))
    return [*start, *middle, *right, *tail]


def _subject(clause: Clause) -> list[Word]:
    return within("subject", clause.subject.german("nom").all)


def _bracket(clause: Clause) -> Bracket:
    verb, agreement = clause.verb, clause.subject.german_agreement
    whole = ("verb", clause.particle_link)
    if clause.modal:
        modal = clause.modal
        infinitive = modal.negated if clause.negated and modal.negated else modal.german
        form = german.finite(infinitive, REGULAR, clause.tense, *agreement)
        return _with_auxiliary(form, "modal", words(verb.prefix + verb.german, *whole))
    if clause.passive:
        form = german.finite("werden", REGULAR, clause.tense, *agreement)
        return _with_auxiliary(form, "tense", words(verb.participle, *whole))
    if clause.tense in ("perfect", "pluperfect"):
        tense = "present" if clause.tense == "perfect" else "past"
        form = german.finite(verb.aux, REGULAR, tense, *agreement)
        return _with_auxiliary(form, "tense", words(verb.participle, *whole))
    if clause.tense == "future":
        form = german.finite("werden", REGULAR, "present", *agreement)
        return _with_auxiliary(form, "tense", words(verb.prefix + verb.german, *whole))
    tense = "past" if clause.tense == "past" else "present"
    form = german.finite(verb.german, verb.german_parts, tense, *agreement)
    joined = words(verb.prefix + form, "tense", *whole)
    if not verb.prefix:
        return Bracket(joined[0], [], joined)
    (finite,) = words(form, "tense", "verb")
    return Bracket(finite, words(verb.prefix, clause.particle_link), joined)


def _with_auxiliary(form: str, link: str, rest: list[Word]) -> Bracket:
    (finite,) = words(form, link)
    return Bracket(finite, rest, [*rest, finite])


def _middle(clause: Clause, subject: bool, closed: bool) -> tuple[list[Word], list[Word]]:
    """Return the middle field, and a relative clause that moves behind the verb.

    It moves if it belongs to the last complement and the bracket is ``closed`` by a verb.
    """
    items: list[tuple[str, Phrase]] = []
    if subject:
        items.append(("subject", Phrase(_subject(clause))))
    if clause.verb.reflexive:
        place = "pronoun" if clause.subject.pronominal else "reflexive"
        items.append((place, Phrase(words(_reflexive(clause), "verb"))))
    kein = clause.kein() if clause.negated else None
    for part in clause.complements:
        if part.role != clause.gap:
            items.append((_place(part), _complement(part, part is kein)))
    for adverbial in clause.adverbials:
        phrase = Phrase(within(adverbial.kind, adverbial.german().all))
        items.append((adverbial.kind if adverbial.kind in FIELD else "last", phrase))
    if clause.negated and not kein:
        items.append(("negation", Phrase(words("nicht", "not"))))
    if clause.fond:
        items.append(("negation", Phrase(words("gern", "gern"))))
    if clause.tense == "progressive":
        items.append(("frequency", Phrase(words("gerade", "progressive"))))
    items.sort(key=lambda item: FIELD.index(item[0]))
    field = [word for _, phrase in items for word in phrase.all]
    if closed and items and items[-1][1].tail:
        tail = items[-1][1].tail
        return field[: -len(tail)], tail
    return field, []


def _reflexive(clause: Clause) -> str:
    if isinstance(clause.subject, Pronoun):
        return clause.subject.german_forms[3]
    return "sich"


def _place(part: Complement) -> str:
    if isinstance(part, Oblique):
        return "last"
    if part.phrase.pronominal:
        return "pronoun" if part.role == "acc" else "dative-pronoun"
    if part.role == "dat":
        return "dative"
    return "definite" if part.phrase.definite else "indefinite"


def _complement(part: Complement, kein: bool) -> Phrase:
    if isinstance(part, Object):
        phrase = part.phrase
        inner = (
            phrase.german(part.role, KEIN)
            if kein and isinstance(phrase, NounPhrase)
            else phrase.german(part.role)
        )
    elif kein and isinstance(part.phrase, Profession):
        inner = part.phrase.phrase.german("nom", KEIN)
    else:
        inner = part.phrase.german()
    core, tail = within(part.role, inner.core), within(part.role, inner.tail)
    if kein:
        core[0] = core[0].linked("not")
    if isinstance(part, Object) and part.to:  # the case says what English says by "to"
        core[0] = core[0].linked("to")
    if isinstance(part.phrase, PrepositionalPhrase) and part.phrase.preposition == NONE:
        core[0] = core[0].linked("verb")  # *remember* alone says *sich erinnern an*
    return Phrase(core, tail)


def _content(content: Content | None) -> list[Word]:
    if not content:
        return []
    if content.kind == "to":
        inner = infinitive(content.clause)
    elif content.wh:
        start = within("wh", FixedPhrase(content.wh).german().all)
        inner = start + verb_final(content.clause)
    else:
        conjunction = {"that": "dass", "whether": "ob"}[content.kind]
        inner = words(conjunction, "conjunction") + verb_final(content.clause)
    return [Word(COMMA), *within("content", inner), Word(COMMA)]
