"""Fonts for the letters of a figure, in any script; letters that no font has are reported."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

#: Comes with matplotlib, so figures of European text look the same on every machine.
BASE = "DejaVu Sans"


def choose(texts: Iterable[str]) -> tuple[list[str], str]:
    """Font families that together have a glyph for every character, and the characters none has.

    The list is for ``rcParams["font.family"]``: matplotlib takes each glyph from the first family
    that has it.
    """
    missing = {char for text in texts for char in text if _needs_glyph(char)}
    families = [BASE]
    missing -= _glyphs(font_manager.findfont(BASE))
    candidates = _candidates() if missing else []
    while missing and candidates:
        best = max(candidates, key=lambda font: len(missing & _glyphs(font.fname)))
        found = missing & _glyphs(best.fname)
        if not found:
            break
        families.append(best.name)
        missing -= found
    return families, "".join(sorted(missing))


def _needs_glyph(char: str) -> bool:
    """Whether the character shows: not spaces, controls, joiners or variation selectors."""
    category = unicodedata.category(char)
    invisible = category in ("Zs", "Cc", "Cf", "Zl", "Zp")
    return not (invisible or "VARIATION" in unicodedata.name(char, ""))


@lru_cache(maxsize=512)
def _glyphs(path: str) -> frozenset[str]:
    try:
        return frozenset(chr(code) for code in FT2Font(path).get_charmap())
    except (RuntimeError, OSError):  # a bitmap or a damaged font
        return frozenset()


@lru_cache(maxsize=1)
def _candidates() -> list[Any]:
    """Upright fonts of normal weight, the plainest first: the first of equals is chosen."""
    fonts = [
        font
        for font in font_manager.fontManager.ttflist
        if font.style == "normal"
        and font.weight in (400, "normal", "regular")
        and "LastResort" not in font.name.replace(" ", "")  # boxes for every character
    ]
    return sorted(fonts, key=lambda font: (_rank(font.name), len(font.name), font.name))


def _rank(name: str) -> int:
    """Plain sans serif fonts of large families before others."""
    for rank, start in enumerate(("DejaVu Sans", "Noto Sans", "Noto")):
        if name.startswith(start) and "Mono" not in name:
            return rank
    return 9 if "Mono" in name or "Serif" in name else 5
