"""Constructions of several clauses: relative, subordinate, dependent, coordinated, anaphoric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grammar import english_order, german_order
from grammar.adjunct import PrepositionalPhrase
from grammar.asking import question_word
from grammar.clause import Clause, Comparison, Complement, Content, Object, Oblique
from grammar.dice import Unfit
from grammar.draw_clause import ClauseDraw, Wish, related
from grammar.draw_verb import can_be_asked_for
from grammar.entries import Verb
from grammar.nominal import PRONOUNS, NounPhrase, Pronoun
from grammar.simple import be, predicable, rain, sentence, unadorned
from grammar.words import COMMA, Sentence, Word, finish, within, words

TIMES = ("present", "past", "perfect", "future")
FINITE = (*TIMES, "modal")

INFINITIVE = Wish(("present",), negation=0, adverbials=0, front=False, frequency=False)
# Training has no modal verb in a relative clause; only the hard test set does.
RELATIVE = Wish(TIMES, negation=0.08, adverbials=0.2, front=False)


def relative(draw: ClauseDraw) -> Sentence:
    """Draw a main clause with a relative clause at its subject or at its last complement."""
    return sentence(with_relative(draw, draw.clause(Wish(negation=0.08, adverbials=0.2))))


Extend = Callable[[Clause], Clause]


def with_relative(
    draw: ClauseDraw,
    clause: Clause,
    wish: Wish = RELATIVE,
    extend: Extend | None = None,
    at_end: float = 0.65,
) -> Clause:
    """Give the subject or the last complement of a clause a relative clause.

    ``extend`` may add something to the relative clause; ``at_end`` is how often it is the
    complement and not the subject that gets it.
    """

    def longer(head: NounPhrase) -> NounPhrase:
        inner = draw.relative_clause(_head(head), wish)
        return related(head, extend(inner) if extend else inner)

    last = clause.complements[-1] if clause.complements else None
    if last and last.role != clause.gap and _is_last(clause) and draw.dice.chance(at_end):
        phrase = last.phrase
        if isinstance(phrase, PrepositionalPhrase) and isinstance(phrase.nominal, NounPhrase):
            longer_phrase = replace(phrase, nominal=longer(phrase.nominal))
            changed: Complement = Oblique(last.role, longer_phrase)
        elif isinstance(phrase, NounPhrase):
            changed = Object(last.role, longer(phrase))
        else:
            raise Unfit
        return replace(clause, complements=(*clause.complements[:-1], changed))
    if not isinstance(clause.subject, NounPhrase) or clause.gap == "subject":
        raise Unfit
    return replace(clause, subject=longer(clause.subject))


def _is_last(clause: Clause) -> bool:
    """Tell whether nothing follows the last complement in English, nor *nicht* in German."""
    adverbials = any(part.kind != "frequency" for part in clause.adverbials)
    to = any(isinstance(part, Object) and part.to for part in clause.complements)
    return not (adverbials or to or clause.negated or clause.content)


def _head(phrase: NounPhrase) -> NounPhrase:
    """Return the phrase if a relative clause can follow: not after a genitive or a bare noun."""
    determined = phrase.determiner is not None or phrase.numeral > 0
    if phrase.owner or not determined or phrase.noun.number not in ("", "pl/sg", "sg"):
        raise Unfit
    return phrase


# English and German conjunction, and the tenses that the main and the subordinate clause may have.
Conjunction = tuple[str, str, tuple[tuple[str, str], ...]]
FREE = tuple((a, b) for a in FINITE for b in FINITE if "past" not in (a, b) or a == b)
TOGETHER = (("past", "past"), ("present", "present"))
LATER = (("future", "present"), ("present", "present"), ("modal", "present"))
CONJUNCTIONS: dict[Conjunction, float] = {
    ("because", "weil", FREE): 24,
    ("although", "obwohl", FREE): 14,
    ("while", "während", TOGETHER): 10,
    ("when", "als", (("past", "past"),)): 14,
    ("when", "wenn", LATER): 10,
    ("if", "wenn", LATER): 12,
    ("before", "bevor", TOGETHER): 8,
    ("after", "nachdem", (("past", "pluperfect"),)): 10,
    ("as soon as", "sobald", LATER): 5,
    ("until", "bis", (("past", "past"),)): 5,
}


def subordinate(draw: ClauseDraw) -> Sentence:
    """Draw two clauses joined by a conjunction, the subordinate one first or second."""
    conjunction, main, clause, first = clause_pair(draw)
    return joined(main, conjunction, clause, first)


def clause_pair(draw: ClauseDraw) -> tuple[Conjunction, Clause, Clause, bool]:
    """Draw a conjunction, the two clauses it joins, and whether the subordinate one is first."""
    conjunction = draw.dice.weighted(CONJUNCTIONS)
    free = conjunction[2] is FREE
    outer, inner = draw.dice.pick(conjunction[2])
    first = draw.dice.chance(0.45)
    wish = Wish((outer,), negation=0.1, adverbials=0.2, front=not first, past_modal=free)
    main = draw.clause(wish)
    # "before it did not rain", "until no woman came", "as soon as he often comes": only reasons are
    # free of that.
    wish = Wish(
        (inner,), negation=0, adverbials=0.1, front=False, subjects="object", frequency=False
    )
    if free:
        wish = replace(wish, negation=0.1, adverbials=0.25, subjects="any", frequency=True)
    if draw.dice.chance(0.06) and inner != "modal":
        clause = draw.clause(replace(wish, subject=PRONOUNS["it n"]), rain(draw))
    else:
        clause = draw.clause(wish)
    return conjunction, main, clause, first


def joined(main: Clause, conjunction: Conjunction, clause: Clause, first: bool) -> Sentence:
    """Join a main and a subordinate clause; ``first`` puts the subordinate one in front."""
    tags = {conjunction[1], *clause.tags(), *main.tags()}
    source, target = subordinated(conjunction, clause)
    if first:
        comma = words(COMMA, "comma")
        source = [*source, *comma, *within("main", english_order.statement(main))]
        target = [*target, *comma, *within("main", german_order.main(main, []))]
        return finish(source, target, ".").tagged("subordinate-first", *tags)
    source = within("main", english_order.statement(main)) + source
    target = [*within("main", german_order.main(main)), Word(COMMA), *target]
    return finish(source, target, ".").tagged("subordinate-last", *tags)


def subordinated(conjunction: Conjunction, clause: Clause) -> tuple[list[Word], list[Word]]:
    """Return a clause behind its conjunction in both languages."""
    source, target, _ = conjunction
    english = words(source, "conjunction") + within("sub", english_order.statement(clause))
    german = words(target, "conjunction") + within("sub", german_order.verb_final(clause))
    return english, german


def content(draw: ClauseDraw) -> Sentence:
    """Draw a clause as an object: *knows that*, *asks whether*, *knows why*, *tries to*."""
    kind = draw.dice.weighted({"that": 9, "whether": 4, "wh": 4, "to": 7})
    return sentence(content_clause(draw, kind))


def content_clause(draw: ClauseDraw, kind: str) -> Clause:
    """Draw a clause with a dependent clause of that kind as its object."""
    verb = draw.verb_saying(kind)
    ahead = verb.english in ("promise", "hope") and kind == "that"
    outer = ("present", "perfect") if ahead else ("present", "past", "perfect")
    main = draw.clause(Wish(outer, negation=0.12, adverbials=0), verb)
    if kind == "to":
        wish = replace(INFINITIVE, subject=main.subject, adverbials=0.3)
        inner = draw.clause(wish, draw.verb(can_be_asked_for))
        return replace(main, content=Content("to", inner))
    tenses = {"past": ("past",), "perfect": ("past", "perfect")}.get(main.tense, FINITE)
    wish = Wish(("future",) if ahead else tenses, negation=0.1, adverbials=0.25, front=False)
    if kind != "wh":
        return replace(main, content=Content(kind, draw.clause(wish)))
    word, inner = question_word(draw, draw.clause(replace(wish, frequency=False)))
    return replace(main, content=Content("wh", inner, word))


def purpose(draw: ClauseDraw) -> Sentence:
    """Draw *went to the shop in order to buy bread*, *um Brot zu kaufen*."""
    verb = draw.verb(can_be_asked_for)
    subject = draw.nominals.subject(frozenset({"person"}), "definite")
    main = draw.clause(Wish(FINITE, subject, negation=0, adverbials=0.2), verb)
    inner = draw.clause(replace(INFINITIVE, subject=subject), draw.verb(can_be_asked_for))
    if inner.verb is verb:
        raise Unfit
    source = within("main", english_order.statement(main)) + words("in order", "um")
    source += within("purpose", english_order.infinitive(inner))
    target = [*within("main", german_order.main(main)), Word(COMMA), *words("um", "um")]
    target += within("purpose", german_order.infinitive(inner))
    return finish(source, target, ".").tagged("purpose", *main.tags(), *inner.tags())


def coordination(draw: ClauseDraw) -> Sentence:
    """Draw two main clauses joined by *and*, *but* or *or*; each may have a dependent clause."""
    return coordinated(draw, [main_clause(draw) for _ in range(2)])


def main_clause(draw: ClauseDraw, plain: float = 0.75) -> Clause:
    """Draw a main clause, ``plain`` or with one dependent clause."""
    if draw.dice.chance(plain):
        return draw.clause(Wish(adverbials=0.3))
    if draw.dice.chance(0.5):
        return with_relative(draw, draw.clause(Wish(adverbials=0.2)))
    return content_clause(draw, draw.dice.pick(("that", "whether", "to")))


def coordinated(draw: ClauseDraw, clauses: list[Clause]) -> Sentence:
    """Join main clauses, each with a comma and a conjunction before it but the first."""
    source: list[Word] = []
    target: list[Word] = []
    for index, clause in enumerate(clauses):
        if index:
            pair = draw.dice.weighted({("and", "und"): 6, ("but", "aber"): 4, ("or", "oder"): 1})
            comma = words(COMMA, f"comma{index}")
            source += comma + words(pair[0], f"joint{index}")
            target += comma + words(pair[1], f"joint{index}")
        source += within(f"clause{index}", english_order.statement(clause))
        target += within(f"clause{index}", german_order.main(clause))
    tags = {tag for clause in clauses for tag in clause.tags()}
    return finish(source, target, ".").tagged("coordination", *tags)


def anaphora(draw: ClauseDraw) -> Sentence:
    """Draw *it* for a thing named before: German *er, sie, es* follow the noun's gender."""
    things = frozenset({"goods", "lost", "gift", "text", "machine", "luggage", "upright"})
    main, phrase = _about_thing(draw, things)
    pronoun = it(phrase)
    if draw.dice.chance(0.5):
        return _shared_subject(draw, main, phrase, pronoun)
    reasons: tuple[Conjunction, ...] = (("because", "weil", ()), ("although", "obwohl", ()))
    conjunction = draw.dice.pick(reasons)
    adjectives = predicable(draw, phrase.noun)
    if not adjectives:
        raise Unfit
    adjective = draw.dice.common(adjectives)
    tense = "present" if main.tense in ("present", "future") else "past"
    main = replace(main, complements=(Object("acc", unadorned(phrase)),))
    parts = (Oblique("predicate", Comparison(adjective)),)
    clause = Clause(be(draw), pronoun, tense, parts, negated=draw.dice.chance(0.15))
    return joined(main, conjunction, clause, False).tagged("anaphora")


def it(phrase: NounPhrase) -> Pronoun:
    """Return the pronoun for a thing: *it* with the gender of the German noun, or *they*."""
    return PRONOUNS["they" if phrase.number == "pl" else f"it {phrase.noun.gender}"]


def _about_thing(draw: ClauseDraw, things: frozenset[str]) -> tuple[Clause, NounPhrase]:
    """Draw a clause of somebody and one countable thing, so that *it* has one meaning."""
    verb = draw.verb(_acts_on_one)
    clause = draw.clause(Wish(TIMES, negation=0.05, adverbials=0, subjects="object"), verb)
    part = clause.complement("acc")
    phrase = part.phrase if part else None
    named = isinstance(phrase, NounPhrase) and phrase.noun.belongs(things)
    if not named or not isinstance(phrase, NounPhrase) or phrase.noun.number or phrase.owner:
        raise Unfit
    if phrase.noun.ambiguous:
        raise Unfit
    time = draw.adverbials.time(clause.tense) if draw.dice.chance(0.3) else None
    return replace(clause, front=time), phrase


def _acts_on_one(verb: Verb) -> bool:
    """Tell whether the verb is an action of somebody on one object in the accusative."""
    somebody = not verb.subject.isdisjoint({"person", "adult"})
    alone = [slot.role for slot in verb.slots] == ["acc"]
    return somebody and alone and "state" not in verb.flags


def _shared_subject(
    draw: ClauseDraw, main: Clause, phrase: NounPhrase, pronoun: Pronoun
) -> Sentence:
    """Draw *bought the lamp and turned it on*: two verbs, one subject."""
    main = replace(main, front=None, negated=False)
    verb = draw.verb_taking(phrase.noun, "acc")
    if verb is main.verb or "person" not in verb.subject or not _acts_on_one(verb):
        raise Unfit
    wish = Wish((main.tense,), main.subject, negation=0, adverbials=0)
    second = draw.clause(wish, verb)
    second = replace(second, complements=(Object("acc", pronoun),), gap="subject")
    source = within("main", english_order.statement(main)) + words("and", "and")
    source += within("second", english_order.statement(second))
    target = within("main", german_order.main(main)) + words("und", "and")
    target += within("second", german_order.main(second, []))
    return finish(source, target, ".").tagged("anaphora", *main.tags(), *second.tags())
