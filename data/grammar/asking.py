"""Constructions that address somebody: questions, requests, and calling by name."""

from __future__ import annotations

from dataclasses import replace

from grammar import english_order, german_order
from grammar.adjunct import FixedPhrase
from grammar.clause import Clause
from grammar.dice import Unfit
from grammar.draw_clause import ClauseDraw, Wish
from grammar.draw_verb import can_be_asked_for
from grammar.entries import Fixed, Verb
from grammar.nominal import PRONOUNS, Nominal, NounPhrase
from grammar.words import COMMA, Sentence, finish, within, words

PEOPLE = frozenset({"person", "child", "adult", "kin", "baby"})
ASKED = ("present", "past", "perfect", "future", "modal")

POLAR = Wish(ASKED, negation=0, adverbials=0.6, front=False, subjects="object")


def _word(source: str, target: str) -> Fixed:
    align = tuple((i, i) for i, _ in enumerate(source.split()))
    return Fixed(source, target, align, "wh")


WHY = _word("why", "warum")
WHEN = _word("when", "wann")
WHERE = _word("where", "wo")
WHERE_TO = _word("where", "wohin")
HOW = _word("how", "wie")
HOW_OFTEN = _word("how often", "wie oft")
HOW_MANY = _word("how many", "wie viele")
# English "who" and "what" hide the case that German shows.
PRONOUN_WORDS = {
    ("subject", True): _word("who", "wer"),
    ("acc", True): _word("who", "wen"),
    ("dat", True): _word("who", "wem"),
    ("acc", False): _word("what", "was"),
}


def polar(draw: ClauseDraw) -> Sentence:
    """Draw *Did the man buy the car?*."""
    clause = draw.clause(POLAR)
    whole = finish(english_order.question(clause), german_order.main(clause, []), "?")
    return whole.tagged("question-polar", *clause.tags())


def adverbial_question(draw: ClauseDraw) -> Sentence:
    """Draw *Why did the man buy the car?*, *Where is he going?*."""
    wish = replace(POLAR, negation=0.05, adverbials=0.3, frequency=False)
    word, clause = question_word(draw, draw.clause(wish))
    return asked(word, clause)


def asked(word: Fixed, clause: Clause) -> Sentence:
    """Put a question word before a clause with the verb in front of the subject."""
    source = within("wh", FixedPhrase(word).english()) + english_order.question(clause)
    target = german_order.main(clause, within("wh", FixedPhrase(word).german().all))
    return finish(source, target, "?").tagged("question-wh", *clause.tags())


def question_word(draw: ClauseDraw, clause: Clause) -> tuple[Fixed, Clause]:
    """Choose a question word for a clause, and take away what it asks for."""
    used = {adverbial.kind for adverbial in clause.adverbials}
    options = {WHY: 3.0} if "cause" not in used else {}
    if not clause.negated:
        if not used & {"time", "frequency", "duration", "manner"}:
            options[WHEN] = 3
            if clause.tense in ("present", "past") and not clause.modal:
                options[HOW_OFTEN] = 1
        if "place" in clause.verb.where and "place" not in used:
            options[WHERE] = 3
        if clause.verb.slot("goal") and len(clause.verb.slots) == 1:
            options[WHERE_TO] = 8
        if clause.verb.manner and "manner" not in used and "state" not in clause.verb.flags:
            options[HOW] = 1
    if not options:
        raise Unfit
    word = draw.dice.weighted(options)
    return word, replace(clause, gap="oblique") if word is WHERE_TO else clause


def pronoun_question(draw: ClauseDraw) -> Sentence:
    """Draw *Who bought the car?*, *What did he buy?*, *Who did he help?*.

    Only verbs with one translation: *What did he paint?* could be *malen* or *streichen*.
    """
    role = draw.dice.weighted({"subject": 4, "acc": 5, "dat": 2})
    if role == "subject":
        verb = draw.verb(_clearly_of_person)
        wish = Wish(ASKED, subject=PRONOUNS["he"], negation=0.05, adverbials=0.6, front=False)
        clause = replace(draw.clause(wish, verb), gap="subject")
        word = PRONOUN_WORDS["subject", True]
        source = within("wh", FixedPhrase(word).english()) + english_order.statement(clause)
        target = german_order.main(clause, within("wh", FixedPhrase(word).german().all))
        return finish(source, target, "?").tagged("question-wh", *clause.tags())
    verb = draw.verb(_clear_with_dative if role == "dat" else _clear_with_accusative)
    clause = draw.clause(replace(POLAR, adverbials=0.5), verb)
    slot = verb.slot(role)
    assert slot
    human = slot.classes <= PEOPLE
    if not human and slot.classes & PEOPLE:
        raise Unfit  # "who" or "what"? It depends on the answer.
    return asked(PRONOUN_WORDS[role, human], replace(clause, gap=role))


def _of_person(verb: Verb) -> bool:
    return "person" in verb.subject


def _clearly_of_person(verb: Verb) -> bool:
    return _of_person(verb) and not verb.ambiguous


def _with_accusative(verb: Verb) -> bool:
    return [slot.role for slot in verb.slots] == ["acc"]


def _clear_with_accusative(verb: Verb) -> bool:
    """Tell whether *what* can stand for the object: not for a language or a sport."""
    named = {"language", "sport"}
    return _with_accusative(verb) and not verb.ambiguous and not verb.slots[0].classes & named


def _clear_with_dative(verb: Verb) -> bool:
    return [slot.role for slot in verb.slots] == ["dat"] and not verb.ambiguous


def phrase_question(draw: ClauseDraw) -> Sentence:
    """Draw *Which book did he read?*, *How many books did he read?*."""
    verb = draw.verb(_with_accusative)
    clause = draw.clause(replace(POLAR, adverbials=0.4), verb)
    slot = verb.slot("acc")
    assert slot
    noun = draw.dice.pick(draw.nominals.nouns(slot.classes))
    if noun.number or noun.of != "-":
        raise Unfit
    many = draw.dice.chance(0.4)
    number = "pl" if many or draw.dice.chance(0.3) else "sg"
    phrase = NounPhrase(noun, number, None if many else draw.lexicon.determiners["which"])
    phrase = draw.nominals.with_adjectives(phrase)
    source, target = phrase.english("object"), phrase.german("acc").all
    if many:
        start = FixedPhrase(HOW_MANY)
        source = within("many", start.english()) + source
        target = within("many", start.german().all) + target
    clause = replace(clause, gap="acc")
    source = within("acc", source) + english_order.question(clause)
    whole = finish(source, german_order.main(clause, within("acc", target)), "?")
    return whole.tagged("question-wh", *phrase.tags(), *clause.tags())


def request(draw: ClauseDraw) -> Sentence:
    """Draw *Please open the door.*, politely in German since nobody is named."""
    clause = command(draw)
    please = draw.dice.chance(0.5)
    source, target = english_order.imperative(clause), german_order.imperative(clause)
    if please:
        source, target = words("please", "please") + source, words("bitte", "please") + target
    return finish(source, target, "." if please else "!").tagged("imperative", *clause.tags())


def command(draw: ClauseDraw) -> Clause:
    """Draw a clause that can be a request to whom the draw addresses."""
    verb = draw.verb(can_be_asked_for)
    subject = PRONOUNS[draw.nominals.address]
    wish = Wish(("present",), subject, negation=0.15, adverbials=0)
    clause = draw.clause(wish, verb)
    if draw.dice.chance(0.3):
        time = draw.adverbials.maybe("time", "command")
        clause = replace(clause, adverbials=(time,) if time else ())
    return clause


def vocative(draw: ClauseDraw) -> Sentence:
    """Call somebody by name: first names are *du*, children *ihr*, and *Mr Weber* is *Sie*."""
    dice, nominals = draw.dice, draw.nominals
    address = dice.weighted({"du": 5, "ihr": 2, "you": 3})
    nominals.address = address
    try:
        name = _called(draw, address)
        return _addressed(draw, name)
    finally:
        nominals.address = "you"


def _called(draw: ClauseDraw, address: str) -> Nominal:
    if address == "du":
        return draw.nominals.first_name()
    if address == "you":
        return draw.nominals.titled_name()
    return NounPhrase(draw.lexicon.noun("child"), "pl")


def _addressed(draw: ClauseDraw, name: Nominal) -> Sentence:
    comma = words(COMMA, "called")
    source = within("called", name.english("subject")) + comma
    target = within("called", name.german("nom").all) + comma
    kind = draw.dice.pick(("statement", "question", "request"))
    if kind == "request":
        clause = command(draw)
        source += english_order.imperative(clause)
        target += german_order.imperative(clause)
        mark = "!"
    else:
        subject = PRONOUNS[draw.nominals.address]
        verb = draw.verb(_of_person)
        tenses = ("present", "perfect", "future", "modal")
        asks = kind == "question"
        wish = Wish(tenses, subject, negation=0 if asks else 0.1, adverbials=0.5, front=False)
        clause = draw.clause(wish, verb)
        source += english_order.question(clause) if asks else english_order.statement(clause)
        target += german_order.main(clause, [] if asks else None)
        mark = "?" if asks else "."
    return finish(source, target, mark).tagged("vocative", *clause.tags())
