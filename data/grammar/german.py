"""German inflection by rule: nouns, determiners, adjectives, verbs; irregulars come from tables."""

from __future__ import annotations

import re
from functools import cache

from grammar.tables import read_table

CASES = ("nom", "acc", "dat", "gen")

# Endings in the columns masculine, feminine, neuter, plural; one row per case of CASES.
ENDINGS = {
    "strong": ("er e es e", "en e es e", "em er em en", "en er en er"),
    "weak": ("e e e en", "en e e en", "en en en en", "en en en en"),
    "mixed": ("er e es en", "en e es en", "en en en en", "en en en en"),
    "der": ("er e es e", "en e es e", "em er em en", "es er es er"),
    "ein": ("- e - e", "en e - e", "em er em en", "es er es er"),
    "article": ("er ie as ie", "en ie as ie", "em er em en", "es er es er"),
}
# The adjective ending that follows each kind of determiner; none at all is like "strong".
ADJECTIVES_AFTER = {"article": "weak", "der": "weak", "ein": "mixed", "strong": "strong"}

RELATIVE = ("der die das die", "den die das die", "dem der dem denen", "dessen deren dessen deren")

CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
}

INSEPARABLE = ("be", "emp", "ent", "er", "ge", "miss", "ver", "zer")
# Stems that need -e- before -t and -st: a dental, or m or n after another consonant.
LINKING_E = re.compile(r"[td]$|[^aeiouäöülrmnh][mn]$|ch[mn]$")


@cache
def irregular() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the verbs whose whole paradigm is listed, by infinitive and tense."""
    persons = ("ich", "du", "er", "wir", "ihr", "sie")
    return {
        (row["infinitive"], row["tense"]): tuple(row[person] for person in persons)
        for row in read_table("irregular")
    }


def ending(table: str, case: str, gender: str, number: str) -> str:
    """Look up an ending; ``gender`` is ``m``, ``f`` or ``n`` and counts only in the singular."""
    form = _cell(ENDINGS[table][CASES.index(case)], gender, number)
    return "" if form == "-" else form


def relative_pronoun(case: str, gender: str, number: str) -> str:
    """Return *der, die, das, …* as a relative pronoun."""
    return _cell(RELATIVE[CASES.index(case)], gender, number)


def _cell(row: str, gender: str, number: str) -> str:
    return row.split()[3 if number == "pl" else "mfn".index(gender)]


def determiner(stem: str, declension: str, case: str, gender: str, number: str) -> str:
    """Decline a determiner such as ``d`` (*der*), ``dies``, ``ein``, ``viel``."""
    suffix = ending(declension, case, gender, number)
    if suffix and stem == "euer":
        stem = "eur"
    return stem + suffix


def adjective(stem: str, after: str | None, case: str, gender: str, number: str) -> str:
    """Decline an attributive adjective ``after`` a determiner of that declension, or none."""
    table = ADJECTIVES_AFTER[after] if after else "strong"
    return _inflecting(stem) + ending(table, case, gender, number)


def _inflecting(stem: str) -> str:
    """Return the stem that takes endings: *dunkl-e, teur-e, müd-e, hoh-e*."""
    if stem == "hoch":
        return "hoh"
    if stem.endswith("e"):
        return stem[:-1]
    if stem.endswith("el"):
        return stem[:-2] + "l"
    return re.sub(r"(au|eu)er$", r"\1r", stem)


def comparative(stem: str) -> str:
    """Return the regular comparative stem."""
    return _inflecting(stem) + "er"


def superlative(stem: str) -> str:
    """Return the regular superlative stem, to which endings are added."""
    if stem.endswith("end"):
        return stem + "st"
    return stem + ("est" if re.search(r"([dtsßzx]|sch|eu)$", stem) else "st")


def noun(lemma: str, gender: str, plural: str, case: str, number: str, weak: bool) -> str:
    """Decline a noun; ``weak`` nouns (*Student*) take -n in every case but the nominative."""
    if number == "pl":
        return plural + ("n" if case == "dat" and plural[-1] not in "ns" else "")
    if weak and case != "nom":
        return lemma + ("n" if lemma.endswith("e") or lemma in ("Bauer", "Nachbar") else "en")
    if case == "gen" and gender != "f":
        return genitive(lemma)
    return lemma


def genitive(lemma: str) -> str:
    """Return the genitive of a strong masculine or neuter noun: -s, or -es where it is usual."""
    if lemma.endswith("nis"):
        return lemma + "ses"
    if re.search(r"([sßxz]|sch|st)$", lemma):
        return lemma + "es"
    vowels = re.findall(r"ie|ei|ai|au|äu|eu|aa|ee|oo|[aeiouäöüy]", lemma.lower())
    open_syllable = lemma[-1] in "aeiouäöüh"
    return lemma + ("es" if len(vowels) == 1 and not open_syllable else "s")


def compound(first: str, head: str) -> str:
    """Join the first element (with its linking letter) and the head: *Küchen* + *Tisch*."""
    return first + head[0].lower() + head[1:]


def finite(
    infinitive: str, parts: tuple[str, str, str], tense: str, person: int, number: str
) -> str:
    """Conjugate a verb without its prefix.

    ``parts`` are the stem of *du* and *er* in the present, the past and the participle, each ``-``
    where regular; ``tense`` is ``present`` or ``past``.
    """
    column = person - 1 + (3 if number == "pl" else 0)
    if (infinitive, tense) in irregular():
        return irregular()[infinitive, tense][column]
    stem = _stem(infinitive)
    link = "e" if LINKING_E.search(stem) else ""
    if tense == "past":
        past = parts[1] if parts[1] != "-" else f"{stem}{link}te"
        return past + _past_suffix(past, column)
    changed = parts[0]
    if changed != "-" and column in (1, 2):
        if column == 1:
            return changed + ("t" if changed[-1] in "sßxz" else "st")
        return changed + ("" if changed.endswith("t") else "t")
    if column == 0:
        return (stem[:-2] + "l" if infinitive.endswith("eln") else stem) + "e"
    if column in (3, 5):
        return infinitive
    if column == 1:
        return stem + ("t" if stem[-1] in "sßxz" else f"{link}st")
    return f"{stem}{link}t"


def _past_suffix(past: str, column: int) -> str:
    if past.endswith("te"):
        return ("", "st", "", "n", "t", "n")[column]
    dental = past[-1] in "td"
    du = "est" if dental or past[-1] in "sßz" else "st"
    return ("", du, "", "en", "et" if dental else "t", "en")[column]


def _stem(infinitive: str) -> str:
    return infinitive[:-1] if infinitive.endswith(("eln", "ern")) else infinitive[:-2]


def participle(prefix: str, infinitive: str, listed: str) -> str:
    """Return the past participle; ``listed`` is the irregular one without prefix, or ``-``."""
    if listed != "-":
        return prefix + listed
    stem = _stem(infinitive)
    marked = infinitive.startswith(INSEPARABLE) or infinitive.endswith("ieren")
    return f"{prefix}{'' if marked else 'ge'}{stem}{'e' if LINKING_E.search(stem) else ''}t"


def imperative(infinitive: str, parts: tuple[str, str, str], number: str) -> str:
    """Return the familiar imperative, for one person (*lies!*) or several (*lest!*)."""
    stem = _stem(infinitive)
    if number == "pl":
        return f"{stem}{'e' if LINKING_E.search(stem) else ''}t"
    changed = parts[0]
    if changed != "-" and not re.search("[äöü]", changed):
        return changed
    if infinitive.endswith("eln"):
        return stem[:-2] + "le"
    return stem + ("e" if LINKING_E.search(stem) or stem.endswith(("er", "ig")) else "")
