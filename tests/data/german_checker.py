"""A second opinion on the corpus's German, written from a grammar book and not from the generator.

It has its own tables of endings and its own idea of noun phrases, verb-second and verb-final order.
``problems`` lists what is wrong with a sentence pair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from german_words import (
    CASES,
    CONTRACTED,
    DEFINITE,
    DER_WORDS,
    DIESER,
    EIN,
    EIN_WORDS,
    FINITE,
    FIXED,
    GOVERNED,
    MIXED,
    NAMES,
    NOUNS,
    NUMERALS,
    PRONOUNS,
    RELATIVE,
    STEMS,
    STRONG,
    STRONG_WORDS,
    SUBORDINATORS,
    WEAK,
    Reading,
    cells,
)

RELATIVE_FORMS = set(cells(RELATIVE).values())
TIMES = (r"um \w+ Uhr", r"vor \w+ (Tagen|Wochen|Monaten|Jahren)", r"im Jahr \d+")
PREPOSITIONS = {"for", "about", "of", "to", "in", "against", "with", "through", "from", "on", "at"}


def problems(source: str, target: str, align: str, tags: set[str]) -> list[str]:
    """List everything that is wrong with a pair; ``align`` is in Pharaoh's format."""
    parts = clauses(source, target, align)
    if "vocative" in tags:
        parts = parts[1:]
    found = []
    for index, part in enumerate(parts):
        found += _phrase_faults(part, "während" in tags)
        found += _order_faults(part, index, parts, target[-1], tags)
    return found + _relative_faults(source.split(), target.split(), _links(align))


def _links(align: str) -> list[tuple[int, int]]:
    return [(int(i), int(j)) for i, j in (pair.split("-") for pair in align.split())]


# ---- clauses ------------------------------------------------------------------------------------


@dataclass
class Part:
    """The tokens between two commas."""

    tokens: list[str]
    relative: bool
    first: bool

    @property
    def text(self) -> str:
        return " ".join(self.tokens)


def clauses(source: str, target: str, align: str) -> list[Part]:
    """Split at commas and drop the final mark; English tells what a relative clause is."""
    english, tokens = source.split(), target.split()
    pronouns = {
        j
        for i, j in _links(align)
        if english[i] in ("who", "whom", "that", "which") and tokens[j] in RELATIVE_FORMS
    }
    parts: list[Part] = []
    start = 0
    for end, token in enumerate(tokens):
        if token == "," or end == len(tokens) - 1:
            inside = tokens[start:end]
            head = start + 1 if inside[0] in GOVERNED else start
            parts.append(Part(inside, start > 0 and head in pronouns, start == 0))
            start = end + 1
    return parts


def subordinate(part: Part, tags: set[str]) -> bool:
    """Tell whether a clause must have its verb at the end."""
    if part.relative:
        return True
    if is_infinitive(part) or (part.first and "subordinate-first" not in tags):
        return False
    return part.tokens[0] in SUBORDINATORS


def is_infinitive(part: Part) -> bool:
    """Tell whether the clause is an infinitive with *zu*: *das Zimmer aufzuräumen*."""
    joined = re.fullmatch(r"\w{2,}zu\w+n", part.tokens[-1])
    return "zu" in part.tokens[-2:-1] or bool(joined)


def _order_faults(
    part: Part, index: int, parts: list[Part], mark: str, tags: set[str]
) -> list[str]:
    interrupted = index + 1 < len(parts) and parts[index + 1].relative
    if subordinate(part, tags):
        if part.tokens[-1] in FINITE or interrupted:
            return []
        return [f"no finite verb at the end: {part.text}"]
    if len(parts) > 1 or tags & {"imperative", "vocative"}:
        return []
    if "question-polar" in tags:
        return [] if part.tokens[0] in FINITE else [f"question without its verb: {part.text}"]
    for place in range(1, len(part.tokens)):
        if one_constituent(part.tokens[:place]) and part.tokens[place] in FINITE:
            return [] if mark == "?" else _subject_faults(part, place)
    return [f"the verb is not second: {part.text}"]


def _subject_faults(part: Part, place: int) -> list[str]:
    """Check a subject before the verb: it is in the nominative, and plural verbs end in -n."""
    first = " ".join(part.tokens[:place])
    read = phrase_at(part.tokens, 0)
    if not read or read[0] != place or first in FIXED:
        return []
    genders = {gender for gender, case in read[1] if case == "nom"}
    if not genders:
        return [f"no nominative: {first}"]
    plural = bool(re.search(r"(en|ern|eln|sind)$", part.tokens[place]))
    if (plural and "p" not in genders) or (not plural and genders == {"p"}):
        return [f"subject and verb disagree: {part.text}"]
    return []


# ---- noun phrases -------------------------------------------------------------------------------


def determiner(token: str) -> tuple[str, set[Reading]] | None:
    """Return the adjective table that a determiner asks for, and what it can agree with."""
    declensions = (
        ("weak", DEFINITE, ("",)),
        ("mixed", EIN, EIN_WORDS),
        ("weak", DIESER, DER_WORDS),
        ("strong", DIESER, STRONG_WORDS),
    )
    for kind, table, stems in declensions:
        same = set()
        for stem in stems:
            forms = {reading: stem + ending for reading, ending in cells(table).items()}
            if stem == "eur":
                forms = {r: "euer" if form == stem else form for r, form in forms.items()}
            same |= {reading for reading, form in forms.items() if form == token}
        if token.startswith("ein") and kind == "mixed":
            same = {reading for reading in same if reading[0] != "p"}
        if same:
            return kind, same
    return None


def adjective(token: str) -> str | None:
    """Return the ending if the token is a declined adjective."""
    for ending in ("en", "er", "em", "es", "e"):
        if token.endswith(ending) and token.removesuffix(ending) in STEMS:
            return ending
    return None


def is_number(token: str) -> bool:
    return token in NUMERALS or bool(re.fullmatch(r"\w+und\w+ig", token)) or token.isdigit()


def phrase_at(tokens: list[str], start: int) -> tuple[int, set[Reading], list[str]] | None:
    """Read a noun phrase from ``start``: its end, the readings that agree, and faults."""
    index = start
    kind, agreed = "strong", {(gender, case) for gender in "mfnp" for case in CASES}
    found = determiner(tokens[index])
    if found and index + 1 < len(tokens):
        kind, agreed = found
        index += 1
    if index + 1 < len(tokens) and is_number(tokens[index]) and tokens[index + 1] != "Uhr":
        agreed = {reading for reading in agreed if reading[0] == "p"}
        index += 1
    endings = []
    while index < len(tokens) and (ending := adjective(tokens[index])):
        endings.append(ending)
        index += 1
    if index >= len(tokens) or tokens[index] not in NOUNS:
        return None
    text = " ".join(tokens[start : index + 1])
    agreed = agreed & NOUNS[tokens[index]]
    if not agreed and tokens[start] == "ihr":  # *gibt ihr Bücher*: a pronoun
        return phrase_at(tokens, start + 1)
    if not agreed:
        return index + 1, agreed, [f"determiner, number and noun disagree: {text}"]
    table = cells({"strong": STRONG, "weak": WEAK, "mixed": MIXED}[kind])
    agreed = {reading for reading in agreed if all(table[reading] == e for e in endings)}
    return index + 1, agreed, [] if agreed else [f"adjective ending: {text}"]


def _phrase_faults(part: Part, conjunction: bool) -> list[str]:
    """Check agreement in every noun phrase, and the case after every preposition."""
    found: list[str] = []
    tokens = list(part.tokens)
    index = 0
    if part.relative:
        index = 2 if tokens[0] in GOVERNED else 1
    elif tokens[0] == "um" and is_infinitive(part):
        index = 1
    while index < len(tokens):
        token, begin, allowed = tokens[index], index, set(CASES)
        if token in CONTRACTED:
            preposition, tokens[index] = CONTRACTED[token]
            allowed = set(GOVERNED[preposition].split())
        elif token in GOVERNED and not (token == "während" and conjunction):
            allowed = set(GOVERNED[token].split())
            begin = index + 1
        if tokens[begin : begin + 2] == ["ein", "Uhr"]:  # one o'clock, not one watch
            begin += 1
        read = phrase_at(tokens, begin) if begin < len(tokens) else None
        if not read:
            index += 1
            continue
        end, agreed, faults = read
        found += faults
        if not faults and not {case for _, case in agreed} & allowed:
            found.append(f"wrong case after {token}: {part.text}")
        index = end
    return found


def one_constituent(tokens: list[str]) -> bool:
    """Tell whether the tokens are one constituent: adverb, pronoun, name, noun or preposition."""
    text = " ".join(tokens)
    if text in FIXED or text in PRONOUNS or text in SUBORDINATORS:
        return True
    if text in ("wer", "wen", "wem", "was", "wie oft"):
        return True
    if any(re.fullmatch(pattern, text) for pattern in TIMES):
        return True
    rest = list(tokens)
    if rest[0] in CONTRACTED:
        rest[0] = CONTRACTED[rest[0]][1]
    elif rest[0] in GOVERNED:
        rest = rest[1:]
    elif rest[:2] == ["wie", "viele"]:
        rest = rest[2:]
    while rest:
        end = _nominal_end(rest)
        if end == len(rest):
            return True
        if not end or rest[end] != "und":
            return False
        rest = rest[end + 1 :]
    return False


def _nominal_end(tokens: list[str]) -> int:
    """Return where a name or noun phrase ends that starts the tokens, genitives included."""
    if tokens[0] in NAMES:
        end = 1
        while end < len(tokens) and tokens[end] in NAMES:
            end += 1
        owned = phrase_at(tokens, end) if end < len(tokens) else None
        return owned[0] if owned else end  # *Annas altes Auto*
    read = phrase_at(tokens, 0)
    if not read:
        return 0
    end = read[0]
    genitive = phrase_at(tokens, end) if end < len(tokens) else None
    if genitive and any(case == "gen" for _, case in genitive[1]):
        return genitive[0]
    return end


# ---- relative pronouns --------------------------------------------------------------------------


def _relative_faults(
    source: list[str], target: list[str], align: list[tuple[int, int]]
) -> list[str]:
    """Check that the pronoun has gender and number of the noun that English puts before it."""
    found = []
    for i, token in enumerate(source):
        pronouns = [target[j] for k, j in align if k == i and target[j] in RELATIVE_FORMS]
        if token not in ("who", "whom", "that", "which") or not i or not pronouns:
            continue
        head = i - 2 if source[i - 1] in PREPOSITIONS else i - 1
        nouns = [target[j] for k, j in align if k == head and target[j] in NOUNS]
        genders = {gender for noun in nouns for gender, _ in NOUNS[noun]}
        cases = {"nom"} if token == "who" else {"nom", "acc", "dat"}
        table = cells(RELATIVE).items()
        fitting = {g for (g, case), form in table if form == pronouns[0] and case in cases}
        if not genders & fitting:
            found.append(f"relative pronoun {pronouns[0]} of {nouns}: {' '.join(target)}")
    return found
