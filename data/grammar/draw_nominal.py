"""Drawing noun phrases, names and pronouns that fit a class such as ``food`` or ``person``."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from grammar.dice import Dice, Unfit
from grammar.entries import Adjective, Compound, Determiner, Noun, ProperName
from grammar.lexicon import Lexicon
from grammar.nominal import HELD_OUT_NUMBERS, PRONOUNS, Name, Nominal, NounPhrase, Pair, Pronoun
from grammar.numbers import ordinals

PERSON = frozenset({"person"})
# What somebody can own: *my father's car*.
OWNED = frozenset({"goods", "lost", "gift", "pet", "kin", "clothes", "home", "lostkey"})
POSSESSIVES = ("my", "your", "his", "her", "our", "their")
COLOURS = frozenset({"red", "blue", "green", "yellow", "white", "black", "brown", "grey"})

# Which determiners a phrase may have, by what the sentence allows there. "bare" is none at all,
# "number" a cardinal alone, "possessive" one of POSSESSIVES.
SINGULAR = {"the": 50, "a": 20, "possessive": 18, "this": 6, "every": 3, "no": 3}
PLURAL = {
    "the": 34,
    "bare": 14,
    "possessive": 14,
    "number": 14,
    "this": 7,
    "many": 6,
    "some": 5,
    "all": 4,
    "several": 3,
}
MASS = {"bare": 50, "the": 32, "possessive": 12, "this": 6}
ALLOWED = {
    "any": frozenset({*SINGULAR, *PLURAL}),
    "object": frozenset({*SINGULAR, *PLURAL}) - {"every", "no"},
    "definite": frozenset({"the", "possessive", "this"}),
    "bare": frozenset({"bare"}),
    "negated": frozenset({"the", "possessive", "this", "a", "bare"}),
    "genitive": frozenset({"the", "possessive", "this"}),
}
NUMBERS = tuple(n for n in range(2, 100) if n not in HELD_OUT_NUMBERS)
FAMILIAR = {"du": "dein", "ihr": "euer"}


class NominalDraw:
    """Draws nominals. ``address`` is who *you* is: ``you`` (polite), ``du`` or ``ihr``."""

    def __init__(self, lexicon: Lexicon, dice: Dice) -> None:
        self.lexicon = lexicon
        self.dice = dice
        self.address = "you"
        self.held_out = ""  # "compound" or "number": draw those that training does not show
        self.nouns = cache(self._nouns)
        self.adjectives = cache(self._adjectives)
        self.firsts = cache(self._firsts)

    def _nouns(self, classes: frozenset[str]) -> tuple[Noun, ...]:
        return tuple(noun for noun in self.lexicon.nouns if noun.belongs(classes))

    def _adjectives(self, noun: Noun) -> tuple[Adjective, ...]:
        return tuple(a for a in self.lexicon.adjectives if noun.belongs(a.classes))

    def _firsts(self, noun: Noun, held_out: bool) -> tuple[Compound, ...]:
        found = self.lexicon.compounds
        return tuple(c for c, head in found if head is noun and c.held_out == held_out)

    def phrase(
        self,
        classes: frozenset[str],
        kind: str = "any",
        number: str = "",
        plain: bool = False,
        noun: Noun | None = None,
    ) -> NounPhrase:
        """Draw a noun phrase; ``kind`` is a key of ALLOWED, ``plain`` is without genitives."""
        dice = self.dice
        noun = noun or dice.common(self.nouns(classes))
        if not number:
            plural = 1.0 if kind == "bare" else 0.25
            number = "pl" if not noun.number and dice.chance(plural) else "sg"
        phrase = NounPhrase(noun, number, first=self._first(noun))
        if noun.of != "-":
            return self._with_whole(phrase, frozenset({noun.of}))
        if not plain and kind not in ("bare", "genitive"):
            owned = self._owned(phrase)
            if owned:
                return owned
        phrase = self._with_determiner(phrase, kind)
        return self.with_adjectives(phrase)

    def _first(self, noun: Noun) -> Compound | None:
        unseen = self.held_out == "compound"
        firsts = self.firsts(noun, unseen)
        wanted = unseen or self.dice.chance(0.2)
        return self.dice.common(firsts) if firsts and wanted else None

    def _owned(self, phrase: NounPhrase) -> NounPhrase | None:
        dice, noun = self.dice, phrase.noun
        if noun.belongs(OWNED) and dice.chance(0.07):
            if dice.chance(0.4):
                owner: NounPhrase | Name = Name(dice.pick(self._first_names()))
            else:
                owner = self.phrase(PERSON, "genitive", "sg")
                if owner.english_number == "pl":  # *my parents' car*: a mark of its own
                    return None
            # German says the article of what is owned: das Auto meines Vaters.
            article = self.lexicon.determiners["the"]
            owned = replace(phrase, determiner=article, owner=owner, owner_first=True)
            return self.with_adjectives(owned)
        wholes = [classes for part, classes in self.lexicon.parts if part is noun]
        if wholes and not phrase.first and dice.chance(0.3):
            return self._with_whole(phrase, wholes[0])
        return None

    def _with_whole(self, phrase: NounPhrase, classes: frozenset[str]) -> NounPhrase:
        owner = self.phrase(classes, "genitive", "sg", plain=True)
        article = self.lexicon.determiners["the"]
        return self.with_adjectives(replace(phrase, determiner=article, owner=owner))

    def _with_determiner(self, phrase: NounPhrase, kind: str) -> NounPhrase:
        noun, allowed = phrase.noun, ALLOWED[kind]
        if noun.english_kind == "bare":
            return phrase
        if "mass" in (noun.english_kind, noun.german_kind):
            weights = MASS
        else:
            weights = PLURAL if phrase.english_number == "pl" else SINGULAR
            if noun.number == "sg":
                allowed = allowed - {"every", "no"}
            elif noun.number:  # *trousers*, *parents*: not counted, and not without a determiner
                allowed = allowed & ALLOWED["definite"]
        weights = {name: weight for name, weight in weights.items() if name in allowed}
        if "kin" in noun.classes and "possessive" in weights:
            weights["possessive"] *= 3
        if not weights:
            raise Unfit
        return self._determined(phrase, self.dice.weighted(weights))

    def _determined(self, phrase: NounPhrase, choice: str) -> NounPhrase:
        if choice == "bare":
            return phrase
        if choice == "number":
            return replace(phrase, numeral=self.number())
        if choice == "possessive":
            return replace(phrase, determiner=self.possessive())
        numeral = 0
        several = choice == "the" and phrase.english_number == "pl" and not phrase.noun.number
        if several and self.dice.chance(0.1):
            numeral = self.dice.between(2, 12)
        return replace(phrase, determiner=self.lexicon.determiners[choice], numeral=numeral)

    def number(self) -> int:
        """Draw a number of things: small ones are the most frequent."""
        if self.held_out == "number":
            return self.dice.pick(sorted(HELD_OUT_NUMBERS))
        return self.dice.between(2, 12) if self.dice.chance(0.85) else self.dice.pick(NUMBERS)

    def possessive(self) -> Determiner:
        """Draw a possessive; *your* goes with who is addressed."""
        chosen = self.lexicon.determiners[self.dice.pick(POSSESSIVES)]
        if chosen.english == "your" and self.address in FAMILIAR:
            return replace(chosen, german=FAMILIAR[self.address])
        return chosen

    def with_adjectives(self, phrase: NounPhrase) -> NounPhrase:
        """Perhaps add an ordinal, a superlative, or one or two adjectives that fit the noun."""
        dice = self.dice
        fitting = self.adjectives(phrase.noun)
        determiner = phrase.determiner.english if phrase.determiner else ""
        # *the third house*, *her best book*; but not *this best book*, *his third father*
        single = determiner == "the" and phrase.english_number == "sg" and not phrase.noun.number
        unique = phrase.definite and determiner != "this" and not phrase.numeral
        if single and not phrase.owner and dice.chance(0.04):
            ordinal = Adjective(*dice.pick(ordinals()))
            return replace(phrase, adjectives=((ordinal, "positive"),))
        if not fitting or not dice.chance(0.2):
            return phrase
        adjective = dice.pick(fitting)
        if unique and adjective.comparison and dice.chance(0.07):
            return replace(phrase, adjectives=((adjective, "superlative"),))
        colours = [a for a in fitting if a.english in COLOURS]
        chosen = [(adjective, "positive")]
        if colours and adjective.english not in COLOURS and dice.chance(0.15):
            chosen.append((dice.pick(colours), "positive"))
        return replace(phrase, adjectives=tuple(chosen))

    def _first_names(self) -> list[ProperName]:
        return [name for name in self.lexicon.names if name.kind in ("m", "f")]

    def first_name(self) -> Name:
        """Draw *Anna* or *Peter*."""
        return Name(self.dice.pick(self._first_names()))

    def titled_name(self) -> Name:
        """Draw *Mr Weber* or *Mrs Weber*."""
        surnames = [name for name in self.lexicon.names if name.kind == "surname"]
        return Name(self.dice.pick(surnames), self.dice.pick(("Mr", "Mrs")))

    def name(self) -> Name:
        """Draw a person's name."""
        return self.titled_name() if self.dice.chance(0.4) else self.first_name()

    def subject(self, classes: frozenset[str], kind: str = "any") -> Nominal:
        """Draw a subject; pronouns and names only where persons fit."""
        if classes.isdisjoint({"person", "adult"}):
            return self.phrase(classes, kind)
        choice = self.dice.weighted({"pronoun": 30, "name": 14, "phrase": 53, "pair": 3})
        if choice == "pronoun":
            return self.pronoun(("I", "you", "he", "she", "we", "they"))
        if choice == "name":
            return self.name()
        if choice == "pair":
            people = frozenset({"person"})
            return Pair(self.name(), self.phrase(people, "definite", "sg", plain=True))
        return self.phrase(classes, kind)

    def pronoun(self, keys: tuple[str, ...]) -> Pronoun:
        """Draw one of the pronouns; *you* is who is addressed."""
        key = self.dice.pick(keys)
        return PRONOUNS[self.address if key == "you" else key]

    def object(self, classes: frozenset[str], subject: Nominal, kind: str = "object") -> Nominal:
        """Draw an object; a pronoun is never the same person as the subject."""
        if "person" in classes:
            choice = self.dice.weighted({"pronoun": 20, "name": 12, "phrase": 68})
            if choice == "pronoun":
                taken = subject.english_agreement[0]
                others = {"I": 1, "you": 2, "he": 3, "she": 3, "we": 1, "they": 3}
                keys = tuple(k for k, person in others.items() if person != taken or person == 3)
                return self.pronoun(keys)
            name = self.name()
            if choice == "name" and name != subject:
                return name
        return self.phrase(classes, kind)
