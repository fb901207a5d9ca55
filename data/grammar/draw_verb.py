"""Drawing verbs by what they can be used for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from grammar.dice import Dice, Unfit
from grammar.entries import Noun, Verb
from grammar.lexicon import Lexicon
from grammar.tables import NONE


class VerbDraw:
    """Draws verbs; which ones fit a question is worked out once."""

    def __init__(self, lexicon: Lexicon, dice: Dice) -> None:
        self.lexicon = lexicon
        self.dice = dice
        self.plain = [verb for verb in lexicon.verbs if _is_plain(verb)]
        self._fitting = cache(self._all_fitting)
        self._taking = cache(self._all_taking)
        self._saying = cache(self._all_saying)

    def verb(self, fits: Callable[[Verb], bool]) -> Verb:
        """Draw a verb without a dependent clause."""
        return self._pick(self._fitting(fits))

    def verb_taking(self, noun: Noun, role: str) -> Verb:
        """Draw a verb that the noun can be the subject, object or prepositional object of."""
        return self._pick(self._taking(noun, role))

    def verb_saying(self, kind: str) -> Verb:
        """Draw a verb with a dependent clause of a kind: that, whether, wh or to."""
        return self._pick(self._saying(kind))

    def _pick(self, found: Sequence[Verb]) -> Verb:
        if not found:
            raise Unfit
        return self.dice.common(found)

    def _all_fitting(self, fits: Callable[[Verb], bool]) -> list[Verb]:
        return [verb for verb in self.plain if fits(verb)]

    def _all_saying(self, kind: str) -> list[Verb]:
        slots = [(verb, verb.slot("clause")) for verb in self.lexicon.verbs]
        return [verb for verb, slot in slots if slot and kind in slot.classes]

    def _all_taking(self, noun: Noun, role: str) -> list[Verb]:
        if role == "subject":
            return [verb for verb in self.plain if noun.belongs(verb.subject)]
        found = []
        for verb in self.plain:
            slot = verb.slot(role)
            alone = role != "dat" or len(verb.slots) == 1
            said = role != "oblique" or (slot is not None and slot.english != NONE)
            if slot and alone and said and noun.belongs(slot.classes):
                found.append(verb)
        return found


def can_be_asked_for(verb: Verb) -> bool:
    """Tell whether one can ask somebody to do it."""
    return "command" in verb.flags


def _is_plain(verb: Verb) -> bool:
    special = verb.subject & {"it", "nobody"}
    return not special and not any(slot.role == "clause" for slot in verb.slots)
