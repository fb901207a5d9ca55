"""Forms of German words for the checker: from ``data/lexicon``, by rules of its own."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

LEXICON = Path(__file__).resolve().parents[2] / "data" / "lexicon"
CASES = ("nom", "acc", "dat", "gen")
# One line per case; columns masculine, feminine, neuter, plural.
DEFINITE = "der die das die | den die das die | dem der dem den | des der des der"
EIN = "- e - e | en e - e | em er em en | es er es er"
DIESER = "er e es e | en e es e | em er em en | es er es er"
STRONG = "er e es e | en e es e | em er em en | en er en er"
WEAK = "e e e en | en e e en | en en en en | en en en en"
MIXED = "er e es en | en e es en | en en en en | en en en en"
RELATIVE = "der die das die | den die das die | dem der dem denen | dessen deren dessen deren"

EIN_WORDS = ("ein", "kein", "mein", "dein", "sein", "ihr", "unser", "eur", "Ihr")
DER_WORDS = ("dies", "jed", "all", "welch")
STRONG_WORDS = ("viel", "einig", "mehrer")
CONTRACTED = {"im": ("in", "dem"), "ins": ("in", "das"), "am": ("an", "dem"), "ans": ("an", "das"),
              "zum": ("zu", "dem"), "zur": ("zu", "der"), "vom": ("von", "dem"),
              "beim": ("bei", "dem")}  # fmt: skip
GOVERNED = {
    "mit": "dat", "von": "dat", "zu": "dat", "aus": "dat", "bei": "dat", "nach": "dat",
    "für": "acc", "durch": "acc", "gegen": "acc", "um": "acc", "wegen": "gen", "trotz": "gen",
    "während": "gen", "in": "dat acc", "an": "dat acc", "auf": "dat acc", "vor": "dat acc",
    "hinter": "dat acc", "neben": "dat acc", "über": "acc",
}  # fmt: skip
SUBORDINATORS = {"weil", "obwohl", "dass", "ob", "wenn", "als", "während", "bevor", "nachdem",
                 "sobald", "bis", "warum", "wann", "wo", "wohin", "wie"}  # fmt: skip
PRONOUNS = {"ich", "du", "er", "sie", "es", "wir", "ihr", "Sie", "mich", "dich", "ihn", "uns",
            "euch", "mir", "dir", "ihm", "ihnen", "Ihnen", "sich"}  # fmt: skip

Reading = tuple[str, str]  # (gender or "p" for plural, case)


def cells(table: str) -> dict[Reading, str]:
    rows = [row.split() for row in table.split("|")]
    return {
        (column, case): "" if cell == "-" else cell
        for case, row in zip(CASES, rows, strict=True)
        for column, cell in zip("mfnp", row, strict=True)
    }


def rows(name: str) -> list[dict[str, str]]:
    with (LEXICON / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def _noun_readings() -> dict[str, set[Reading]]:
    """Every form of every noun, with the genders and cases it can be."""
    found: dict[str, set[Reading]] = defaultdict(set)
    firsts = defaultdict(list)
    for row in rows("compounds"):
        firsts[row["head"]].append(row["german"])
    entries = [row for table in ("people", "things", "places") for row in rows(table)]
    for row in entries:
        lemma, gender, plural = row["german"], row["gender"], row["german_plural"]
        forms: list[tuple[str, Reading]] = [(lemma, (gender, "nom"))]
        if row["declension"] == "weak":
            oblique = plural
            forms += [(oblique, (gender, case)) for case in ("acc", "dat")]
            genitives = [row["genitive"] if row["genitive"] != "-" else oblique]
        else:
            forms += [(lemma, (gender, case)) for case in ("acc", "dat")]
            if gender == "f":
                genitives = [lemma]
            else:
                genitives = [row["genitive"]]
                if row["genitive"] == "-":
                    genitives = [lemma + ending for ending in ("s", "es", "ses")]
        forms += [(form, (gender, "gen")) for form in genitives]
        if plural != "-":
            forms += [(plural, ("p", case)) for case in ("nom", "acc", "gen")]
            dative = plural if plural.endswith(("n", "s")) else plural + "n"
            forms.append((dative, ("p", "dat")))
        if row.get("feminine", "-") != "-":
            forms += [(row["feminine"], ("f", case)) for case in CASES]
        for form, reading in forms:
            found[form].add(reading)
            for first in firsts[row["english"]]:
                found[first + form.lower()].add(reading)
    return found


def _adjective_stems() -> set[str]:
    """Stems that endings are added to, in all degrees, and the ordinals."""
    stems = set()
    for row in rows("adjectives"):
        base = row["german"]
        plain = {"hoch": "hoh", "dunkel": "dunkl", "teuer": "teur", "sauer": "saur"}.get(
            base, base.removesuffix("e")
        )
        stems.add(plain)
        if row["german_comparison"] != "-":
            stems.add(row["german_comparison"].split()[1])
        else:
            stems |= {base + "st", base + "est"}
    stems |= {row["german_ordinal"] for row in rows("numbers")} - {"-"}
    return stems


NOUNS = _noun_readings()
STEMS = _adjective_stems()
NAMES = {row["german"] for row in rows("names")} | {"Herr", "Herrn", "Frau"}
NAMES |= {row["german"] + "s" for row in rows("names")}
NUMERALS = {row["german"] for row in rows("numbers")} - {"ein"}
FIXED = {row["german"] for row in rows("adverbs")}


def _finite_forms() -> tuple[set[str], set[str]]:
    """Return what finite verbs look like, prefix joined or apart, and the forms of modal verbs.

    Regular endings are put on every stem, so that there are more forms than exist.
    """
    found: set[str] = set()
    modal: set[str] = set()
    persons = ("ich", "du", "er", "wir", "ihr", "sie")
    for row in rows("irregular"):
        forms = {row[person] for person in persons}
        found |= forms
        modal |= forms if row["infinitive"] in MODAL_VERBS else set()
    for row in rows("verbs"):
        prefix, _, infinitive = row["german"].removeprefix("sich ").rpartition("|")
        stem = re.sub(r"e?n$", "", infinitive)
        forms = {stem + ending for ending in ("e", "st", "est", "t", "et", "en", "n")}
        forms |= {stem + ending for ending in ("te", "ete", "ten", "eten", "test", "tet", "etet")}
        changed, past, _ = row["german_parts"].split() if row["german_parts"] != "-" else "---"
        if changed != "-":
            forms |= {changed, changed + "t", changed + "st"}
        if past != "-":
            forms |= {past + ending for ending in ("", "en", "n", "st", "est", "t", "et")}
        if infinitive.endswith("eln"):
            forms.add(infinitive[:-3] + "le")
        found |= forms | {prefix + form for form in forms}
    return found, modal


MODAL_VERBS = {"können", "müssen", "dürfen", "wollen", "sollten", "möchten"}
FINITE, MODAL = _finite_forms()
