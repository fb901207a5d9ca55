"""Which layers, heads and sentences the user means: ``1,3-5,last``, ``all``, ``mean``."""

from __future__ import annotations

from onmt_evsoftmax.report.console import UserError

#: Stands for the mean over heads.
MEAN = -1


def parse(text: str, count: int, option: str, mean: bool = False) -> list[int]:
    """Numbers from 0, in the order given. ``text`` counts from 1; ``mean`` allows that word."""
    chosen: list[int] = []
    for part in text.replace(" ", "").split(","):
        if part == "all":
            chosen += range(count)
        elif part == "last":
            chosen.append(count - 1)
        elif part == "mean" and mean:
            chosen.append(MEAN)
        else:
            chosen += _range(part, count, option, mean)
    return list(dict.fromkeys(chosen))


def one(text: str, count: int, option: str) -> int:
    """The only number, from 1."""
    chosen = parse(text, count, option)
    if len(chosen) != 1:
        raise UserError(f"{option} {text}: this file shows one; a page (.html) shows many")
    return chosen[0] + 1


def _range(part: str, count: int, option: str, mean: bool) -> range:
    first, dash, last = part.partition("-")
    try:
        start = int(first)
        stop = (count if last in ("", "last") else int(last)) if dash else start
    except ValueError:
        words = "all, last, mean" if mean else "all, last"
        raise UserError(
            f"{option} {part}: must be numbers such as 2 or 1,3-5, or one of {words}"
        ) from None
    if not 1 <= start <= stop <= count:
        raise UserError(f"{option} {part}: there are {count}, counted from 1")
    return range(start - 1, stop)
