"""Constructions of one clause: statements, predicates, passive, *gern*, *there is*, weather."""

from __future__ import annotations

from dataclasses import replace

from grammar import english, english_order, german_order
from grammar.adjunct import FixedPhrase, PrepositionalPhrase
from grammar.clause import Clause, Comparison, Oblique, Profession
from grammar.dice import Unfit
from grammar.draw_clause import ClauseDraw, Wish, is_person
from grammar.draw_nominal import PERSON
from grammar.entries import Adjective, Fixed, Noun, Verb
from grammar.nominal import PRONOUNS, Nominal, NounPhrase
from grammar.numbers import cardinal
from grammar.words import Sentence, finish, within, words

# Adjectives for what passes: with them one can say when.
MOODS = frozenset(
    {"sad", "happy", "angry", "tired", "sick", "hungry", "thirsty", "nervous", "careful"}
)
BUILDINGS = frozenset({"museum", "theatre", "church", "castle", "park", "school", "factory"})


def sentence(clause: Clause, mark: str = ".") -> Sentence:
    """Return a clause as a sentence of its own."""
    whole = finish(english_order.statement(clause), german_order.main(clause), mark)
    return whole.tagged(*clause.tags())


def statement(draw: ClauseDraw) -> Sentence:
    """Draw a main clause with any verb."""
    return sentence(draw.clause(Wish(adverbials=0.75)))


def passive(draw: ClauseDraw) -> Sentence:
    """Draw *The house was built by the man*."""
    verb = draw.verb(_has_passive)
    slot = verb.slot("acc")
    assert slot
    subject = draw.nominals.phrase(slot.classes, "object")
    tense = draw.dice.weighted({"past": 7, "present": 3})
    clause = Clause(verb, subject, tense, passive=True, negated=draw.dice.chance(0.1))
    clause = draw.with_adverbials(clause, Wish())
    if not clause.negated and draw.dice.chance(0.35):
        agent = draw.nominals.subject(verb.subject, "object")
        phrase = PrepositionalPhrase("by", "von", "dat", agent, "agent")
        clause = replace(clause, adverbials=(*clause.adverbials, phrase))
    return sentence(clause)


def fond(draw: ClauseDraw) -> Sentence:
    """Draw *likes to read books*, *liest gern Bücher*."""
    verb = draw.verb(_can_be_liked)
    subject = draw.nominals.subject(verb.subject, "definite")
    wish = Wish(("present",), subject, negation=0, adverbials=0.3, front=False, frequency=False)
    clause = draw.clause(replace(wish, objects="bare"), verb)
    return sentence(replace(clause, fond=True))


def _has_passive(verb: Verb) -> bool:
    return "passive" in verb.flags


def _can_be_liked(verb: Verb) -> bool:
    return not verb.flags.isdisjoint({"lasting", "command"}) and verb.slot("dat") is None


def be(draw: ClauseDraw) -> Verb:
    """Return the verb *be*."""
    return next(verb for verb in draw.lexicon.verbs if verb.english == "be")


def describable(draw: ClauseDraw) -> Noun:
    """Draw a noun with adjectives whose English word has only one translation."""
    noun = draw.dice.common(draw.lexicon.nouns)
    if noun.ambiguous or not predicable(draw, noun):
        raise Unfit
    return noun


def predicable(draw: ClauseDraw, noun: Noun) -> list[Adjective]:
    """Return the adjectives that can be said of the noun with *be*."""
    return [a for a in draw.nominals.adjectives(noun) if not a.attributive_only]


def predicate(draw: ClauseDraw) -> Sentence:
    """Draw *The house is old*, *older than the church*, *as old as the church*."""
    clause = predicate_clause(draw)
    (part,) = clause.complements
    assert isinstance(part.phrase, Comparison)
    passing = part.phrase.adjective.english in MOODS and not part.phrase.standard
    return sentence(draw.with_adverbials(clause, Wish(adverbials=0.7)) if passing else clause)


def predicate_clause(draw: ClauseDraw) -> Clause:
    """Draw a clause with an adjective as its predicate."""
    dice, nominals = draw.dice, draw.nominals
    noun = describable(draw)
    negated = dice.chance(0.12)
    kind = "definite" if negated else "any"
    adjective = dice.common(predicable(draw, noun))
    subject: Nominal = unadorned(nominals.phrase(frozenset(), kind, noun=noun))
    if "person" in noun.classes and "person" in adjective.classes and dice.chance(0.4):
        subject = nominals.subject(PERSON, kind)
    tense = dice.pick(("present", "past", "future"))
    comparison = Comparison(adjective)
    if adjective.comparison and tense != "future" and dice.chance(0.45):
        degree = dice.weighted({"comparative": 7, "positive": 3})
        standard: Nominal
        if is_person(subject) and dice.chance(0.4):
            standard = nominals.object(PERSON, subject, "definite")
        else:
            peer = _peer(draw, noun, adjective)
            standard = unadorned(nominals.phrase(frozenset(), "definite", noun=peer))
        comparison = Comparison(adjective, degree, standard)
    parts = (Oblique("predicate", comparison),)
    return Clause(be(draw), subject, tense, parts, negated=negated)


def unadorned(phrase: NounPhrase) -> NounPhrase:
    """Return the phrase without adjectives, which a predicate might repeat or contradict."""
    return replace(phrase, adjectives=())


def _peer(draw: ClauseDraw, noun: Noun, adjective: Adjective) -> Noun:
    """Draw something else of the same class, to which the adjective can apply as well."""
    fitting = [n for n in draw.nominals.nouns(adjective.classes) if not n.ambiguous]
    peers = [n for n in fitting if n.classes & noun.classes and n is not noun]
    if not peers:
        raise Unfit
    return draw.dice.common(peers)


def profession(draw: ClauseDraw) -> Sentence:
    """Draw *She is a teacher*, *Sie ist Lehrerin*: the subject decides the German gender."""
    dice, nominals = draw.dice, draw.nominals
    subject, female = _known_person(draw)
    jobs = [n for n in draw.lexicon.nouns if n.feminine != "-"]
    job = dice.common(jobs)
    if female:
        job = replace(job, german=job.feminine, gender="f", weak=False)
    adjectives: tuple[tuple[Adjective, str], ...] = ()
    fitting = [a for a in nominals.adjectives(job) if "person" in a.classes]
    if fitting and dice.chance(0.35):
        adjectives = ((dice.pick(fitting), "positive"),)
    article = draw.lexicon.determiners["a"]
    phrase = NounPhrase(job, "sg", article, adjectives=adjectives)
    tense = dice.weighted({"present": 6, "past": 4})
    parts = (Oblique("predicate", Profession(phrase, bare=not adjectives)),)
    clause = Clause(be(draw), subject, tense, parts, negated=dice.chance(0.2))
    return sentence(clause)


def _known_person(draw: ClauseDraw) -> tuple[Nominal, bool]:
    """Draw a person whose gender English tells, and whether it is a woman."""
    dice = draw.dice
    choice = dice.pick(("pronoun", "first name", "titled name", "kin", "kin"))
    if choice == "pronoun":
        key = dice.pick(("he", "she"))
        return PRONOUNS[key], key == "she"
    if choice == "first name":
        name = draw.nominals.first_name()
        return name, name.name.kind == "f"
    if choice == "titled name":
        name = draw.nominals.titled_name()
        return name, name.title == "Mrs"
    phrase = draw.nominals.phrase(frozenset({"kin"}), "definite", "sg", plain=True)
    if phrase.noun.number:
        raise Unfit
    return phrase, phrase.noun.gender == "f"


def age(draw: ClauseDraw) -> Sentence:
    """Draw *The girl is eight years old*."""
    classes = frozenset({"child", "pet", "building", "vehicle"})
    subject = draw.nominals.phrase(classes, "definite")
    old = subject.noun.belongs(frozenset({"building", "vehicle"}))
    years = draw.nominals.number() if old else draw.dice.between(2, 17)
    source, target = cardinal(years)
    align = ((0, 0), (1, 1), (2, 2))
    phrase = FixedPhrase(Fixed(f"{source} years old", f"{target} Jahre alt", align, "number"))
    tense = draw.dice.weighted({"present": 7, "past": 3})
    return sentence(Clause(be(draw), subject, tense, (Oblique("predicate", phrase),))).tagged(
        "number"
    )


def existential(draw: ClauseDraw) -> Sentence:
    """Draw *There are three museums in the city*, *Es gibt drei Museen in der Stadt*."""
    towns = frozenset({"town"})
    phrase = draw.nominals.phrase(BUILDINGS, "object", plain=True)
    if phrase.definite or (phrase.determiner and phrase.determiner.english == "all"):
        raise Unfit
    where = draw.adverbials.at(draw.nominals.phrase(towns, "definite", "sg"))
    past = draw.dice.chance(0.3)
    number = phrase.english_number
    verb = english.be("past" if past else "present", 3, number)
    source = words("there", "there") + words(verb, "verb")
    source += within("acc", phrase.english("object")) + within("place", where.english())
    target = words("es", "there") + words("gab" if past else "gibt", "verb")
    target += within("acc", phrase.german("acc").all) + within("place", where.german().all)
    return finish(source, target, ".").tagged("existential", *phrase.tags(), *where.tags())


def rain(draw: ClauseDraw) -> Verb:
    """Draw a verb of the weather."""
    return draw.dice.pick([verb for verb in draw.lexicon.verbs if "it" in verb.subject])


def weather(draw: ClauseDraw) -> Sentence:
    """Draw *It is raining heavily*."""
    tenses = ("present", "past", "perfect", "future", "progressive")
    wish = Wish(tenses, PRONOUNS["it n"], negation=0.12, adverbials=1.2)
    return sentence(draw.clause(wish, rain(draw)))
