"""A sentence's attention with labelled axes, over subwords as traced or over whole words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onmt_evsoftmax.corpora.marks import NO_WORD, Tokens, labels, word_texts
from onmt_evsoftmax.trace.record import Record, available

LEVELS = ("subword", "word")


@dataclass(frozen=True)
class Grid:
    """One kind of attention of one sentence, ready to be counted or drawn.

    ``weights``: float ``(layers, heads, rows, keys)``; ``support``: boolean, the same shape, True
    where the key is attended; ``available``: boolean ``(rows, keys)``, True where the query may
    look. ``row_words`` and ``key_words`` are the indices of their words, ``NO_WORD`` for what the
    model added, such as ``</s>``.
    """

    weights: NDArray[np.floating]
    support: NDArray[np.bool_]
    available: NDArray[np.bool_]
    rows: tuple[str, ...]
    keys: tuple[str, ...]
    row_words: NDArray[np.int_]
    key_words: NDArray[np.int_]

    @property
    def row_is_text(self) -> NDArray[np.bool_]:
        return self.row_words != NO_WORD

    @property
    def key_is_text(self) -> NDArray[np.bool_]:
        return self.key_words != NO_WORD


def grid(record: Record, kind: str, level: str, subwords: Mapping[str, str]) -> Grid:
    """The attention of ``kind`` at the level of subwords or words.

    Attention between words: to a word is the *sum* over its subwords, from a word is the *mean*
    over its subwords, so rows still sum to 1; a word is attended if any of its subwords is, by any
    subword of the row. Special tokens stay units of their own. ``subwords`` is the header's.
    """
    attention = record.attention[kind]
    rows, keys = record.axes(kind)
    allowed = available(kind, len(rows), len(keys))
    row_scheme = subwords["source" if kind == "encoder" else "target"]
    key_scheme = subwords["target" if kind == "decoder" else "source"]
    if level == "subword":
        return Grid(
            attention.weights,
            attention.support,
            allowed,
            labels(rows, row_scheme),
            labels(keys, key_scheme),
            np.array(rows.words, dtype=int),
            np.array(keys.words, dtype=int),
        )
    of_row, row_names, row_words = _units(rows, row_scheme)
    of_key, key_names, key_words = _units(keys, key_scheme)
    mean = of_row / np.maximum(of_row.sum(1, keepdims=True), 1)
    return Grid(
        mean @ attention.weights.astype(np.float64) @ of_key.T,
        (of_row @ attention.support.astype(np.float32) @ of_key.T) > 0,
        (of_row @ allowed.astype(np.float32) @ of_key.T) > 0,
        row_names,
        key_names,
        row_words,
        key_words,
    )


def _units(
    side: Tokens, scheme: str
) -> tuple[NDArray[np.float32], tuple[str, ...], NDArray[np.int_]]:
    """Membership matrix ``(units, tokens)``, the units' names, and the words that they are.

    Units are words and single special tokens, in the order of the line.
    """
    texts = word_texts(side, scheme)
    member = np.zeros((len(side), len(side)), np.float32)
    names: list[str] = []
    words: list[int] = []
    for position, (token, word) in enumerate(zip(side.tokens, side.words, strict=True)):
        if word == NO_WORD or not words or word != words[-1]:
            names.append(token if word == NO_WORD else texts[word])
            words.append(word)
        member[len(names) - 1, position] = 1
    return member[: len(names)], tuple(names), np.array(words, dtype=int)
