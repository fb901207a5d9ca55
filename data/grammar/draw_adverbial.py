"""Drawing adverbials: when, how often, how, where, with whom, why."""

from __future__ import annotations

from functools import cache

from grammar.adjunct import FixedPhrase, PrepositionalPhrase
from grammar.clause import Adverbial
from grammar.draw_nominal import PERSON, NominalDraw
from grammar.entries import Fixed, Noun, ProperName, Verb
from grammar.nominal import Nominal, NounPhrase
from grammar.numbers import cardinal

# English unit, its plural, and the German dative plural after *vor* and accusative before *lang*.
AGO = (("day", "Tagen"), ("week", "Wochen"), ("month", "Monaten"), ("year", "Jahren"))
LONG = (("minute", "Minuten"), ("hour", "Stunden"), ("day", "Tage"), ("week", "Wochen"))
POSITIONS = (
    ("in front of", "vor"),
    ("behind", "hinter"),
    ("next to", "neben"),
)
CAUSES = (
    ("because of", "wegen", "weather"),
    ("despite", "trotz", "weather"),
    ("during", "während", "event"),
)


def to_case(preposition: str) -> str:
    """Return the case of a German preposition of direction."""
    return "dat" if preposition in ("zu", "nach", "aus", "von") else "acc"


class AdverbialDraw:
    """Draws adverbials, with the nominals of ``nominals``."""

    def __init__(self, nominals: NominalDraw) -> None:
        self.nominals = nominals
        self.dice = nominals.dice
        self.of_kind = cache(self._of_kind)

    def _of_kind(self, kind: str, tense: str = "") -> tuple[Fixed, ...]:
        found = self.nominals.lexicon.adverbs
        return tuple(a for a in found if a.kind == kind and (not tense or tense in a.tenses))

    def fixed(self, kind: str) -> FixedPhrase:
        """Draw an adverb of a kind that does not depend on the tense."""
        return FixedPhrase(self.dice.common(self.of_kind(kind)))

    def maybe(self, kind: str, tense: str) -> FixedPhrase | None:
        """Draw an adverb of a kind that goes with the tense, if there is one."""
        found = self.of_kind(kind, tense)
        return FixedPhrase(self.dice.common(found)) if found else None

    def time(self, tense: str, negated: bool = False) -> Adverbial | None:
        """Draw a time: a fixed one, *at eight o'clock*, *three days ago* or *in 1998*."""
        dice = self.dice
        if tense in ("past", "present", "future", "modal") and dice.chance(0.12):
            return self._clock()
        if tense == "past" and dice.chance(0.2):
            return self._ago() if dice.chance(0.7) else self._year()
        drawn = self.maybe("time", tense)
        if drawn and negated and drawn.fixed.english.startswith("every"):
            return None  # "not every day" is not what "every day … not" says
        return drawn

    def _clock(self) -> FixedPhrase:
        source, target = cardinal(self.dice.between(1, 12))
        align = ((0, 0), (1, 1), (2, 2))
        return FixedPhrase(Fixed(f"at {source} o'clock", f"um {target} Uhr", align, "time"))

    def _ago(self) -> FixedPhrase:
        unit, plural = self.dice.pick(AGO)
        source, target = cardinal(self.dice.between(2, 20))
        align = ((2, 0), (0, 1), (1, 2))
        return FixedPhrase(Fixed(f"{source} {unit}s ago", f"vor {target} {plural}", align, "time"))

    def _year(self) -> FixedPhrase:
        year = self.dice.between(1990, 2020)
        return FixedPhrase(Fixed(f"in {year}", f"im Jahr {year}", ((0, 0), (0, 1), (1, 2)), "time"))

    def duration(self) -> FixedPhrase:
        """Draw *for three hours*, *drei Stunden lang*."""
        unit, plural = self.dice.pick(LONG)
        source, target = cardinal(self.dice.between(2, 12))
        align = ((0, 2), (1, 0), (2, 1))
        fixed = Fixed(f"for {source} {unit}s", f"{target} {plural} lang", align, "duration")
        return FixedPhrase(fixed)

    def manner(self, verb: Verb) -> FixedPhrase:
        """Draw one of the manners in which the verb is done."""
        manners = [self.nominals.lexicon.adverb(form, "manner") for form in verb.manner]
        return FixedPhrase(self.dice.common(manners))

    def place(self, verb: Verb) -> Adverbial:
        """Draw a place where the verb is done."""
        if "place" in verb.where and self.dice.chance(0.2):
            return self.fixed("place")
        return self.at(self.nominals.phrase(verb.where, "object"))

    def at(self, phrase: NounPhrase, case: str = "dat") -> PrepositionalPhrase:
        """Put a place noun behind its prepositions; some buildings have more than one."""
        assert phrase.noun.at
        source, target = phrase.noun.at
        if case == "dat" and phrase.noun.belongs(frozenset({"building"})) and self.dice.chance(0.2):
            source, target = self.dice.pick(POSITIONS)
        return PrepositionalPhrase(source, target, case, phrase)

    def to(self, phrase: NounPhrase) -> PrepositionalPhrase:
        """Return *to the kitchen*: *in die Küche*, but *zum Bahnhof*."""
        target = phrase.noun.to
        return PrepositionalPhrase("to", target, to_case(target), phrase, "goal")

    def origin(self, phrase: NounPhrase) -> PrepositionalPhrase:
        """Return *from the kitchen*: *aus der Küche*, but *vom Bahnhof*."""
        assert phrase.noun.at
        target = "aus" if phrase.noun.at[1] == "in" else "von"
        return PrepositionalPhrase("from", target, "dat", phrase, "origin")

    def name_of_place(self, kinds: frozenset[str], towards: bool) -> FixedPhrase:
        """Return *in Berlin* or *to Switzerland*, with the article that some countries take."""
        names = [n for n in self.nominals.lexicon.names if n.kind in kinds]
        name: ProperName = self.dice.pick(names)
        source = f"{'to' if towards else 'in'} {name.english}"
        if name.feminine:
            target = f"in {'die' if towards else 'der'} {name.german}"
            return FixedPhrase(Fixed(source, target, ((0, 0), (1, 1), (1, 2)), "goal"))
        target = f"{'nach' if towards else 'in'} {name.german}"
        return FixedPhrase(Fixed(source, target, ((0, 0), (1, 1)), "goal"))

    def company(self, subject: Nominal) -> PrepositionalPhrase:
        """Draw *with her friend*, *with us*."""
        nominal = self.nominals.object(PERSON, subject, "definite")
        return PrepositionalPhrase("with", "mit", "dat", nominal, "company")

    def cause(self) -> PrepositionalPhrase:
        """Draw *because of the rain*, with the genitive in German."""
        source, target, kind = self.dice.pick(CAUSES)
        lexicon = self.nominals.lexicon
        noun: Noun = self.dice.pick(self.nominals.nouns(frozenset({kind})))
        phrase = NounPhrase(noun, "sg", lexicon.determiners["the"])
        if noun.english == "rain" and self.dice.chance(0.3):
            heavy = next(a for a in lexicon.adjectives if "rainfall" in a.classes)
            phrase = NounPhrase(noun, "sg", phrase.determiner, adjectives=((heavy, "positive"),))
        return PrepositionalPhrase(source, target, "gen", phrase, "cause")
