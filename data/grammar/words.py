"""Words that know what they translate: tokens of the two sides that share a link are aligned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

COMMA = ","
FINAL = (".", "?", "!")


class Word(NamedTuple):
    """One token and the names of the parts of the meaning that it expresses.

    A link is a path in the tree, such as ``subject.noun``. A word without links is aligned to
    nothing.
    """

    form: str
    links: frozenset[str] = frozenset()

    def linked(self, *links: str) -> Word:
        """Return the same word with more links."""
        return Word(self.form, self.links.union(links))


def words(text: str, *links: str) -> list[Word]:
    """Split ``text`` at spaces into words that all carry ``links``."""
    return [Word(form, frozenset(links)) for form in text.split()]


def within(role: str, phrase: Iterable[Word]) -> list[Word]:
    """Move the links of a phrase below ``role``, as the phrase becomes a part of a larger one."""
    return [Word(w.form, frozenset(f"{role}.{link}" for link in w.links)) for w in phrase]


@dataclass(frozen=True)
class Sentence:
    """A sentence pair as two lists of words, with the names of the constructions in it."""

    english: list[Word]
    german: list[Word]
    tags: frozenset[str] = frozenset()

    @property
    def source(self) -> str:
        """English tokens, separated by spaces."""
        return " ".join(w.form for w in self.english)

    @property
    def target(self) -> str:
        """German tokens, separated by spaces."""
        return " ".join(w.form for w in self.german)

    @cached_property
    def alignment(self) -> list[tuple[int, int]]:
        """Pairs (English index, German index), 0-based, sorted."""
        where: dict[str, list[int]] = {}
        for j, target in enumerate(self.german):
            for link in target.links:
                where.setdefault(link, []).append(j)
        return sorted(
            {
                (i, j)
                for i, source in enumerate(self.english)
                for link in source.links
                for j in where.get(link, ())
            }
        )

    @property
    def pharaoh(self) -> str:
        """The alignment as ``i-j`` pairs, the format of alignment tools since Pharaoh."""
        return " ".join(f"{i}-{j}" for i, j in self.alignment)

    def tagged(self, *tags: str) -> Sentence:
        """Return the same sentence with more construction names."""
        return replace(self, tags=self.tags.union(tags))


def finish(english: Sequence[Word], german: Sequence[Word], mark: str) -> Sentence:
    """Close two word sequences with ``mark`` and mend commas."""
    end = Word(mark, frozenset({"mark"}))
    return Sentence(_written([*english, end]), _written([*german, end]))


def _written(phrase: Sequence[Word]) -> list[Word]:
    """Drop commas that punctuation makes needless.

    Every German clause brings a comma on either side; where two meet one is left, and none is left
    before the final mark.
    """
    kept: list[Word] = []
    for current in phrase:
        if kept and kept[-1].form == COMMA:
            if current.form == COMMA:
                kept[-1] = kept[-1].linked(*current.links)
                continue
            if current.form in FINAL:
                kept.pop()
        kept.append(current)
    return kept


def detokenise(line: str) -> str:
    """Attach punctuation and the possessive ``'s`` to the word before, and begin with a capital."""
    text = re.sub(r" ([,.?!]|'s\b)", r"\1", line)
    return text[:1].upper() + text[1:]
