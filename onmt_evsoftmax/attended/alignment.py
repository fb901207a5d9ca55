"""Word alignments in Pharaoh format, and how well attention recovers them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import read_lines
from onmt_evsoftmax.trace import Header, Record, grid

_LINK = re.compile(r"(\d{1,9})([-?p])(\d{1,9})")
#: How attention becomes an alignment: a target word is linked to the source word with the largest
#: weight, or to every source word that it attends to.
RULES = ("argmax", "support")


@dataclass(frozen=True)
class Gold:
    """The links (source word, target word) of one sentence, from 0. Sure links are possible too."""

    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]


def parse_line(line: str, where: str, first: int = 0) -> Gold:
    """``0-0 1-2 2?1``: source-target, ``-`` sure, ``?`` or ``p`` possible, from ``first`` up."""
    sure, possible = set(), set()
    for item in line.split():
        match = _LINK.fullmatch(item)
        if match is None:
            raise UserError(
                f"{where}: {item!r} is not an alignment link; write 3-4 for a sure link and 3?4 "
                "for a possible one, source word first"
            )
        link = (int(match[1]) - first, int(match[3]) - first)
        if min(link) < 0:
            raise UserError(f"{where}: {item!r} counts from 0, not from 1; leave out --one-based")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def read_gold(path: str | Path, first: int = 0) -> list[Gold]:
    """A file of alignments, one sentence per line; ``first`` is 1 if its words count from 1."""
    lines = read_lines(path)
    return [parse_line(line, f"{path}, line {n}", first) for n, line in enumerate(lines, 1)]


def gold_of(record: Record, gold: Sequence[Gold], name: str) -> Gold:
    """The links of a traced sentence, which must be of words that it has; ``name``: of the file."""
    if record.index >= len(gold):
        raise UserError(
            f"{name} has {len(gold)} lines, none for sentence {record.index + 1}; it must be "
            "parallel to the traced text, line by line"
        )
    links, where = gold[record.index], f"{name}, line {record.index + 1}"
    sides = {"source": record.source.word_count, "target": record.target.word_count}
    for link in links.possible:
        for word, (side, count) in zip(link, sides.items(), strict=True):
            if word >= count:
                raise UserError(
                    f"{where}: link {link[0]}-{link[1]} needs {word + 1} {side} words, but the "
                    f"traced sentence has {count}; the alignment must be of the words that the "
                    "traced text has between its spaces"
                )
    return links


class Links:
    """Sizes whose ratios are alignment error rate, precision and recall, for ``shape`` heads."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.found, self.found_sure, self.found_possible = np.zeros((3, *shape), np.int64)
        self.sure = 0

    def add(
        self, links: NDArray[np.bool_], sure: NDArray[np.bool_], possible: NDArray[np.bool_]
    ) -> None:
        """One sentence. ``links``: ``(*shape, source words, target words)``, True where linked."""
        self.found += links.sum((-2, -1))
        self.found_sure += (links & sure).sum((-2, -1))
        self.found_possible += (links & possible).sum((-2, -1))
        self.sure += int(sure.sum())

    @property
    def precision(self) -> NDArray[np.float64]:
        """|A ∩ P| / |A|."""
        return _ratio(self.found_possible, self.found)

    @property
    def recall(self) -> NDArray[np.float64]:
        """|A ∩ S| / |S|."""
        return _ratio(self.found_sure, np.int64(self.sure))

    @property
    def error_rate(self) -> NDArray[np.float64]:
        """1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|) (Och and Ney, 2003)."""
        return 1 - _ratio(self.found_sure + self.found_possible, self.found + self.sure)


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64] | np.int64) -> NDArray[np.float64]:
    undefined = np.full(part.shape, np.nan)
    return np.asarray(np.divide(part, whole, out=undefined, where=np.asarray(whole) > 0))


class AlignmentScores:
    """Context attention of every head, and of the mean head of each layer, as an alignment.

    ``links[rule]`` has shape (layers, heads + 1); the last column is the layer's mean over heads.
    """

    def __init__(self, header: Header, gold: Sequence[Gold], name: str) -> None:
        if "context" not in header.kinds:
            raise UserError(f"{name}: alignments need context attention, which this trace lacks")
        about = header.kinds["context"]
        self.gold, self.name, self.header = gold, name, header
        self.links = {rule: Links((about.layers, about.heads + 1)) for rule in RULES}

    def add(self, record: Record) -> None:
        """Compare one sentence with its gold alignment."""
        gold = gold_of(record, self.gold, self.name)
        if not record.source.word_count or not record.target.word_count:
            return
        view = grid(record, "context", "word", self.header.subwords)
        rows, keys = np.ix_(view.row_is_text, view.key_is_text)
        weights = view.weights[:, :, rows, keys]
        support = view.support[:, :, rows, keys]
        weights = np.concatenate([weights, weights.mean(1, keepdims=True)], 1).swapaxes(-1, -2)
        support = np.concatenate([support, support.any(1, keepdims=True)], 1).swapaxes(-1, -2)
        sure, possible = (_mask(links, weights.shape[-2:]) for links in (gold.sure, gold.possible))
        best = np.arange(weights.shape[-2])[:, None] == weights.argmax(-2)[..., None, :]
        self.links["argmax"].add(best, sure, possible)
        self.links["support"].add(support, sure, possible)


def _mask(links: Iterable[tuple[int, int]], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    mask = np.zeros(shape, dtype=bool)
    for source, target in links:
        mask[source, target] = True
    return mask
