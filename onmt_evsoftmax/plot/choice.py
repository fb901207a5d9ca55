"""Which layers, heads, sentences the user means: ``1,3-5,last``, ``all``, ``mean``, ``rollout``."""

from __future__ import annotations

from onmt_evsoftmax.report.console import UserError

#: Rows derived from all heads of a layer, beside the numbers of heads.
MEAN, ROLLOUT = -1, -2
_NAMES = {"mean": MEAN, "rollout": ROLLOUT}
#: What they are called where they are shown.
DERIVED = {MEAN: "mean of heads", ROLLOUT: "rollout"}


def parse(text: str, count: int, option: str, derived: bool = False) -> list[int]:
    """Numbers from 0, in the order given. ``text`` counts from 1; ``derived``: mean and rollout."""
    chosen: list[int] = []
    for part in text.replace(" ", "").split(","):
        if part == "all":
            chosen += range(count)
        elif part == "last":
            chosen.append(count - 1)
        elif part in _NAMES and derived:
            chosen.append(_NAMES[part])
        else:
            chosen += _range(part, count, option, derived)
    return list(dict.fromkeys(chosen))


def one(text: str, count: int, option: str) -> int:
    """The only number, from 1."""
    chosen = parse(text, count, option)
    if len(chosen) != 1:
        raise UserError(f"{option} {text}: this file shows one; a page (.html) shows many")
    return chosen[0] + 1


def _range(part: str, count: int, option: str, derived: bool) -> range:
    first, dash, last = part.partition("-")
    try:
        start = int(first)
        stop = (count if last in ("", "last") else int(last)) if dash else start
    except ValueError:
        words = "all, last, mean, rollout" if derived else "all, last"
        raise UserError(
            f"{option} {part}: must be numbers such as 2 or 1,3-5, or one of {words}"
        ) from None
    if not 1 <= start <= stop <= count:
        raise UserError(f"{option} {part}: there are {count}, counted from 1")
    return range(start - 1, stop)
