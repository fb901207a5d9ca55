"""Drawing clauses: a verb, what it takes, and adverbials that go with its tense."""

from __future__ import annotations

from dataclasses import dataclass, replace

from grammar.adjunct import FixedPhrase, PrepositionalPhrase
from grammar.clause import MODALS, Adverbial, Clause, Complement, Modal, Object, Oblique
from grammar.dice import Dice, Unfit
from grammar.draw_adverbial import AdverbialDraw
from grammar.draw_nominal import NominalDraw
from grammar.draw_verb import VerbDraw
from grammar.entries import Fixed, Slot, Verb
from grammar.lexicon import Lexicon
from grammar.nominal import PRONOUNS, Nominal, NounPhrase
from grammar.numbers import cardinal
from grammar.relative import Relative

TENSES = {"present": 24, "progressive": 7, "past": 32, "perfect": 16, "future": 8, "modal": 13}
MODAL_WEIGHTS = {"can": 5, "must": 4, "have to": 3, "want to": 5, "should": 3, "may": 2,
                 "be allowed to": 2, "would like to": 3}  # fmt: skip
PAST_MODALS = ("can", "have to", "want to", "be allowed to")
PERSONS = frozenset({"person", "baby"})
COUNTED = frozenset({"sg", "pl"})
QUALITY = ("gut", "schlecht", "schön")
RELATIVE_ROLES = {"subject": 40, "acc": 34, "dat": 12, "oblique": 14}


@dataclass(frozen=True)
class Wish:
    """What a construction asks of a clause; everything else is drawn."""

    tenses: tuple[str, ...] = tuple(TENSES)
    subject: Nominal | None = None
    negation: float = 0.14
    adverbials: float = 1.0  # scales how often there are any
    front: bool = True
    subjects: str = "any"  # a key of draw_nominal.ALLOWED
    objects: str = "object"  # another
    frequency: bool = True  # whether "often" may be there
    past_modal: bool = True  # whether "could" and "had to" may be there


class ClauseDraw(VerbDraw):
    """Draws clauses and relative clauses."""

    def __init__(self, lexicon: Lexicon, dice: Dice) -> None:
        super().__init__(lexicon, dice)
        self.nominals = NominalDraw(lexicon, dice)
        self.adverbials = AdverbialDraw(self.nominals)

    def clause(self, wish: Wish, verb: Verb | None = None) -> Clause:
        """Draw a clause."""
        verb = verb or self.dice.common(self.plain)
        negated = self.dice.chance(wish.negation)
        subject = wish.subject or self.nominals.subject(
            verb.subject, "definite" if negated else wish.subjects
        )
        tense, modal = self.tense(verb, subject, wish, negated)
        parts = self._complements(verb, subject, "negated" if negated else wish.objects)
        clause = Clause(verb, subject, tense, tuple(parts), modal=modal, negated=negated)
        return self.with_adverbials(clause, wish)

    def tense(
        self, verb: Verb, subject: Nominal, wish: Wish, negated: bool = False
    ) -> tuple[str, Modal | None]:
        """Draw a tense, or a modal verb in the present or past."""
        dice = self.dice
        weights = {tense: TENSES.get(tense, 1) for tense in wish.tenses}
        if "state" in verb.flags or negated:
            weights.pop("progressive", None)
        if not is_person(subject) or "unwilled" in verb.flags:  # nobody "wants to know him"
            weights.pop("modal", None)
        if subject.german_agreement[0] == 2:  # nobody says "du lasest"
            weights.pop("past", None)
        bare = not negated and subject.english_agreement != (3, "sg")
        if bare and verb.english_past == verb.english:  # "they put" hides its tense
            weights.pop("present", None)
            weights.pop("past", None)
        if not weights:
            raise Unfit
        tense = dice.weighted(weights)
        if tense != "modal":
            return tense, None
        name = dice.weighted(MODAL_WEIGHTS)
        may_be_past = name in PAST_MODALS and subject.german_agreement[0] != 2 and wish.past_modal
        past = may_be_past and dice.chance(0.4)
        return "past" if past else "present", MODALS[name]

    def _complements(self, verb: Verb, subject: Nominal, kind: str) -> list[Complement]:
        parts = [
            self.complement(verb, slot, subject, kind)
            for slot in verb.slots
            if slot.role != "clause" and not (slot.optional and self.dice.chance(0.4))
        ]
        if [part.role for part in parts] == ["dat", "acc"]:
            return self._ditransitive(verb, parts)
        return parts

    def _ditransitive(self, verb: Verb, parts: list[Complement]) -> list[Complement]:
        """Decide whether English says *to*, and keep German from *einem Mann das Buch*."""
        dative, accusative = parts
        slot = verb.slot("dat")
        assert slot
        assert isinstance(dative, Object)
        assert isinstance(accusative, Object)
        known = accusative.phrase.definite
        # "gives her books" could be "her books"
        unclear = dative.phrase is PRONOUNS["she"] and not known
        to = slot.english == "to" or unclear or self.dice.chance(0.35)
        phrase = dative.phrase
        if known and not phrase.definite:
            phrase = self.nominals.phrase(slot.classes, "definite", plain=True)
        return [Object("dat", phrase, to), accusative]

    def complement(self, verb: Verb, slot: Slot, subject: Nominal, kind: str) -> Complement:
        """Fill one slot of a verb with a phrase of a kind of ``draw_nominal.ALLOWED``."""
        nominals, adverbials = self.nominals, self.adverbials
        if slot.role == "acc":
            if verb.flags & COUNTED:  # one marries one person, but collects many stamps
                (flag,) = verb.flags & COUNTED
                return Object("acc", nominals.phrase(slot.classes, kind, flag))
            return Object("acc", nominals.object(slot.classes, subject, kind))
        known = "definite" if kind == "negated" else "object"
        if slot.role == "dat":
            return Object("dat", nominals.object(slot.classes, subject, known))
        if slot.role == "amount":
            return Oblique("predicate", self._price())
        return Oblique("oblique", self._oblique(slot, subject, known, adverbials))

    def _oblique(
        self, slot: Slot, subject: Nominal, kind: str, adverbials: AdverbialDraw
    ) -> Adverbial:
        if slot.role == "oblique":
            inner = self.nominals.object(slot.classes, subject, kind)
            return PrepositionalPhrase(slot.english, slot.german, slot.case, inner, "oblique")
        if slot.role in ("in", "towards"):
            return adverbials.name_of_place(slot.classes, towards=slot.role == "towards")
        if slot.role == "goal" and slot.classes & {"place", "town"} and self.dice.chance(0.08):
            return adverbials.fixed("goal")
        target = self.nominals.phrase(slot.classes, kind)
        if slot.role == "goal":
            return adverbials.to(target)
        if slot.role == "from":
            return adverbials.origin(target)
        return adverbials.at(target, "acc" if slot.role == "onto" else "dat")

    def _price(self) -> FixedPhrase:
        source, target = cardinal(self.nominals.number())
        align = ((0, 0), (1, 1))
        return FixedPhrase(Fixed(f"{source} euros", f"{target} Euro", align, "number"))

    def with_adverbials(self, clause: Clause, wish: Wish) -> Clause:
        """Add adverbials that fit; one of them may move to the front of the sentence."""
        dice, verb = self.dice, clause.verb
        tense = "modal" if clause.modal and clause.tense == "present" else clause.tense

        scale = wish.adverbials * (0.4 if "state" in verb.flags and verb.english != "be" else 1)
        active = is_person(clause.subject) and not clause.passive

        def drawn(probability: float) -> bool:
            return dice.chance(probability * scale)

        found: list[Adverbial | None] = []
        if verb.manner and not clause.negated and drawn(0.2):
            found.append(self._manner(clause))
        if verb.where and drawn(0.16):
            found.append(self.adverbials.place(verb))
        if "company" in verb.flags and active and drawn(0.2):
            found.append(self.adverbials.company(clause.subject))
        lasting = "lasting" in verb.flags and tense in ("past", "perfect")
        if lasting and not clause.negated and not clause.passive and drawn(0.25):
            found.append(self.adverbials.duration())
        elif wish.frequency and _repeatable(clause) and drawn(0.13):
            found.append(self.adverbials.maybe("frequency", tense))
        elif drawn(0.36):
            found.append(self.adverbials.time(tense, clause.negated))
        elif drawn(0.06):
            found.append(self.adverbials.cause())
        chosen = [adverbial for adverbial in found if adverbial][-2:]
        front: Adverbial | None = None
        if wish.front and drawn(0.06):
            front = self.adverbials.maybe("sentence", tense)
        elif wish.front and chosen and chosen[-1].kind in ("time", "place", "cause"):
            front = chosen.pop() if dice.chance(0.5) else None
        return replace(clause, adverbials=tuple(chosen), front=front)

    def _manner(self, clause: Clause) -> Adverbial | None:
        """Draw a manner; *gut* would stand badly before a new object: *er lehrt gut ein Kind*."""
        manner = self.adverbials.manner(clause.verb)
        part = clause.complement("acc")
        phrase = part.phrase if part else None
        new = isinstance(phrase, NounPhrase) and not phrase.definite
        named = isinstance(phrase, NounPhrase) and phrase.noun.english_kind == "bare"
        return None if new and not named and manner.fixed.german in QUALITY else manner

    def relative_clause(self, head: NounPhrase, wish: Wish) -> Clause:
        """Draw a clause that says something about ``head``, which is its gap."""
        role = self.dice.weighted(RELATIVE_ROLES)
        if role == "subject":
            verb = self.verb_taking(head.noun, "subject")
            clause = self.clause(replace(wish, subject=head), verb)
        else:
            clause = self._with_filled(role, head, wish)
        return replace(clause, gap=role)

    def _with_filled(self, role: str, phrase: NounPhrase, wish: Wish) -> Clause:
        """Draw a clause in which ``phrase`` has the given role."""
        clause = self.clause(wish, self.verb_taking(phrase.noun, role))
        parts = []
        for part in clause.complements:
            if part.role != role:
                parts.append(part)
            elif isinstance(part, Object):
                parts.append(replace(part, phrase=phrase))
            else:
                assert isinstance(part.phrase, PrepositionalPhrase)
                parts.append(replace(part, phrase=replace(part.phrase, nominal=phrase)))
        if role not in [part.role for part in parts]:  # an optional slot that was left out
            raise Unfit
        return replace(clause, complements=tuple(parts))


def related(head: NounPhrase, clause: Clause) -> NounPhrase:
    """Attach a relative clause to a noun phrase."""
    return replace(head, relative=Relative(clause, head.noun.belongs(PERSONS)))


def is_person(nominal: Nominal) -> bool:
    """Tell whether somebody, and not something, is meant; pronouns that are drawn are persons."""
    if isinstance(nominal, NounPhrase):
        return "person" in nominal.noun.classes
    return True


def _repeatable(clause: Clause) -> bool:
    """Tell whether *often* or *never* can be said: not of a state, nor beside *not* or *no*."""
    subject = clause.subject
    determiner = subject.determiner if isinstance(subject, NounPhrase) else None
    denied = clause.negated or (determiner is not None and determiner.english == "no")
    return not denied and "state" not in clause.verb.flags
