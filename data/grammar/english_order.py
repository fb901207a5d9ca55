"""English word order: subject, verb, object; *do* in questions and negation."""

from __future__ import annotations

from grammar import english
from grammar.adjunct import FixedPhrase
from grammar.clause import Clause, Content, Modal, Object
from grammar.words import Word, within, words

ORDER = ("agent", "manner", "company", "goal", "place", "cause", "duration", "time")


def statement(clause: Clause) -> list[Word]:
    """Return a main or subordinate clause, without mark or conjunction."""
    front = within("front", clause.front.english()) if clause.front else []
    subject = [] if clause.gap == "subject" else _subject(clause)
    return front + subject + _predicate(clause, _chain(clause, do=clause.negated))


def question(clause: Clause) -> list[Word]:
    """Return a clause with the finite verb before the subject."""
    finite, *rest = _chain(clause, do=True)
    return [finite, *_subject(clause), *_not(clause), *_frequency(clause), *rest, *_after(clause)]


def infinitive(clause: Clause) -> list[Word]:
    """Return *to buy a car*; *to* expresses *zu*."""
    verb = words("to", "zu") + words(clause.verb.english, "verb")
    return (words("not", "not") if clause.negated else []) + verb + _after(clause)


def imperative(clause: Clause) -> list[Word]:
    """Return *buy a car* or *do not buy a car*."""
    before = words("do", "verb") + words("not", "not") if clause.negated else []
    return before + words(clause.verb.english, "verb") + _after(clause)


def _subject(clause: Clause) -> list[Word]:
    return within("subject", clause.subject.english("subject"))


def _predicate(clause: Clause, chain: list[Word]) -> list[Word]:
    finite, *rest = chain
    if clause.negated and finite.form == "can":
        return [Word("cannot", finite.links | {"not"}), *rest, *_after(clause)]
    if _has_auxiliary(clause, rest):
        return [finite, *_not(clause), *_frequency(clause), *rest, *_after(clause)]
    return [*_frequency(clause), finite, *rest, *_after(clause)]


def _has_auxiliary(clause: Clause, rest: list[Word]) -> bool:
    """Tell whether *often* and *not* follow the finite verb: *had often read*, *did not want to*.

    They do not follow a full verb: *often read*, *often had to read*, *often likes to read*.
    """
    if clause.negated or clause.verb.english == "be":
        return True
    full = clause.fond or (clause.modal is not None and clause.modal.kind == "verb")
    return bool(rest) and not full


def _not(clause: Clause) -> list[Word]:
    return words("not", "not") if clause.negated else []


def _frequency(clause: Clause) -> list[Word]:
    found = [part for part in clause.adverbials if part.kind == "frequency"]
    return [word for part in found for word in within("frequency", part.english())]


def _chain(clause: Clause, do: bool) -> list[Word]:
    """Return the verbs, the finite one first; ``do`` asks for *do* where no auxiliary is there."""
    verb, (person, number) = clause.verb, clause.subject.english_agreement
    third = person == 3 and number == "sg"
    base = words(verb.english, "verb")
    if clause.modal:
        return _modal(clause.modal, clause, do) + base
    if clause.fond:
        return words("likes to" if third else "like to", "gern") + words(
            verb.english, "verb", "tense"
        )
    if clause.passive:
        form = english.be(clause.tense, person, number)
        return words(form, "tense") + words(verb.english_participle, "verb")
    if clause.tense == "progressive":
        form = english.be("present", person, number)
        return words(form, "tense", "progressive") + words(verb.english_ing, "verb")
    if clause.tense in ("perfect", "pluperfect"):
        form = {"perfect": "has" if third else "have", "pluperfect": "had"}[clause.tense]
        return words(form, "tense") + words(verb.english_participle, "verb")
    if clause.tense == "future":
        return words("will", "tense") + base
    if verb.english == "be":
        return words(english.be(clause.tense, person, number), "tense", "verb")
    if do:
        form = "did" if clause.tense == "past" else ("does" if third else "do")
        return words(form, "tense") + base
    if clause.tense == "past":
        return words(verb.english_past, "tense", "verb")
    return words(english.third_person(verb.english) if third else verb.english, "tense", "verb")


def _modal(modal: Modal, clause: Clause, do: bool) -> list[Word]:
    person, number = clause.subject.english_agreement
    present, singular, past = modal.forms
    third = person == 3 and number == "sg"
    if modal.kind == "be":
        form = english.be(clause.tense, person, number)
    elif modal.kind == "verb" and do:
        form = "did" if clause.tense == "past" else ("does" if third else "do")
        return words(f"{form} {present} {modal.rest}", "modal")
    else:
        form = past if clause.tense == "past" else (singular if third else present)
    return words(f"{form} {modal.rest}", "modal")


def _after(clause: Clause) -> list[Word]:
    """Return what follows the verb: particle, complements, adverbials, dependent clause."""
    particle = words(clause.verb.english_particle, clause.particle_link)
    present = [part for part in clause.complements if part.role != clause.gap]
    if any(isinstance(part, Object) and part.to for part in present):
        present.sort(key=lambda part: part.role == "dat")
    result: list[Word] = []
    first = present[0] if present else None
    pronoun = isinstance(first, Object) and first.phrase.pronominal
    split = pronoun and clause.verb.english_separable
    if not split:
        result += particle
    for index, part in enumerate(present):
        result += part.english()
        if split and index == 0:
            result += particle
    later = [part for part in clause.adverbials if part.kind != "frequency"]
    for adverbial in sorted(later, key=lambda part: ORDER.index(part.kind)):
        result += within(adverbial.kind, adverbial.english())
    return result + _content(clause.content)


def _content(content: Content | None) -> list[Word]:
    if not content:
        return []
    if content.kind == "to":
        return within("content", infinitive(content.clause))
    if content.wh:
        start = within("wh", FixedPhrase(content.wh).english())
    else:
        start = words(content.kind, "conjunction")
    return within("content", start + statement(content.clause))
