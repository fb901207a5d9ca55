"""English inflection by rule; irregular forms come from the tables."""

from __future__ import annotations

from collections.abc import Sequence

VOWELS = "aeiou"

# Words whose first letter misleads about the article they take.
AN_DESPITE_CONSONANT = ("honest", "hour")
A_DESPITE_VOWEL = ("university", "uni", "euro", "used", "useful", "one")

BE = {"present": ("am", "is", "are"), "past": ("was", "was", "were")}


def article(following: str) -> str:
    """Return ``a`` or ``an`` before the word ``following``."""
    if following.startswith(AN_DESPITE_CONSONANT):
        return "an"
    if following.startswith(A_DESPITE_VOWEL):
        return "a"
    return "an" if following[0].lower() in VOWELS else "a"


def plural(noun: str) -> str:
    """Return the regular plural of a noun."""
    if noun.endswith(("s", "x", "z", "ch", "sh", "potato", "tomato")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in VOWELS:
        return noun[:-1] + "ies"
    return noun + "s"


def third_person(verb: str) -> str:
    """Return the third person singular of the present."""
    if verb == "have":
        return "has"
    if verb.endswith(("s", "x", "z", "ch", "sh", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ies"
    return verb + "s"


def past(verb: str) -> str:
    """Return the regular past and past participle."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ied"
    return _doubled(verb) + "ed"


def present_participle(verb: str) -> str:
    """Return the ``-ing`` form."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return _doubled(verb) + "ing"


def be(tense: str, person: int, number: str) -> str:
    """Return the form of *be*; ``person`` is 1, 2 or 3 and ``number`` ``sg`` or ``pl``."""
    first, third, other = BE[tense]
    if number == "pl" or person == 2:
        return other
    return first if person == 1 else third


def degree(adjective: str, comparison: Sequence[str], which: str) -> str:
    """Return the comparative or superlative: ``er``, ``more`` or two irregular forms."""
    index = ("comparative", "superlative").index(which)
    if comparison[0] == "more":
        return f"{('more', 'most')[index]} {adjective}"
    if comparison[0] != "er":
        return comparison[index]
    suffix = ("er", "est")[index]
    if adjective.endswith("e"):
        return adjective + suffix[1:]
    if adjective.endswith("y") and adjective[-2] not in VOWELS:
        return adjective[:-1] + "i" + suffix
    return _doubled(adjective) + suffix


def _doubled(word: str) -> str:
    """Double the last consonant of a short syllable: ``stop`` → ``stopp``."""
    groups = sum(
        1
        for before, letter in zip("-" + word, word, strict=False)
        if letter in VOWELS and before not in VOWELS
    )
    short = (
        groups == 1
        and len(word) > 2
        and word[-1] not in VOWELS + "wxy"
        and word[-2] in VOWELS
        and word[-3] not in VOWELS
    )
    return word + word[-1] if short else word
