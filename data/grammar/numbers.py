"""Numbers in words, in both languages."""

from __future__ import annotations

from functools import cache

from grammar.tables import NONE, read_table


@cache
def _cardinals() -> dict[int, tuple[str, str]]:
    rows = read_table("numbers")
    return {int(row["number"]): (row["english"], row["german"]) for row in rows}


def cardinal(number: int) -> tuple[str, str]:
    """Return a number below one hundred, one token each: *forty-seven*, *siebenundvierzig*."""
    words = _cardinals()
    if number in words:
        return words[number]
    tens, ones = words[number // 10 * 10], words[number % 10]
    return f"{tens[0]}-{ones[0]}", f"{ones[1]}und{tens[1]}"


@cache
def ordinals() -> tuple[tuple[str, str], ...]:
    """Return *first* and the stem *erst*, and so on."""
    rows = read_table("numbers")
    pairs = [(row["english_ordinal"], row["german_ordinal"]) for row in rows]
    return tuple(pair for pair in pairs if pair[0] != NONE)
