"""Text as models write it, back to text as people write it; and signs that it was not done."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPACE = "▁"  # SentencePiece writes a space as U+2581, spaces between pieces mean nothing
_JOIN = re.compile(r"@@( |$)")  # subword-nmt: this piece continues in the next


def undo_bpe(lines: Sequence[str]) -> list[str]:
    """Lines with their subwords joined; text that has none stays as it is."""
    if _share(_SPACE in line for line in lines if line) > 0.5:
        return [line.replace(" ", "").replace(_SPACE, " ").strip() for line in lines]
    return [_JOIN.sub("", line) for line in lines]


def looks_split(lines: Sequence[str]) -> bool:
    """Whether many lines still have the marks of subwords."""
    return _share(_SPACE in line or "@@ " in line for line in lines if line) > 0.1


def looks_tokenised(lines: Sequence[str]) -> bool:
    """sacreBLEU's own rule: a hundred lines end in a period that stands alone."""
    return sum(line.endswith(" .") for line in lines) >= 100


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / max(len(values), 1)
