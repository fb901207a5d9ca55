"""What is known about one sentence: its tokens, its scores, and its attention, exact zeros kept.

Axes of the three kinds of attention, the same everywhere in this package:

=========  ==========================  ===============================================
kind       rows (queries)              keys
=========  ==========================  ===============================================
encoder    source tokens               source tokens
decoder    target tokens, as predicted target tokens read so far: ``<s>`` and the prefix
context    target tokens, as predicted source tokens
=========  ==========================  ===============================================

Row *t* of decoder and context attention is the step that predicts target token *t*; it has read
the start token and target tokens 0 … t − 1, so key *j* of the decoder is available when j ≤ t.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onmt_evsoftmax.corpora.marks import NO_WORD, Tokens

KINDS = ("encoder", "decoder", "context")
_LENGTH = struct.Struct("<I")
#: zlib's fastest level: on shuffled floats level 9 saves 1 % and takes three times as long.
_LEVEL = 1


@dataclass(frozen=True)
class Attention:
    """One kind of attention of one sentence, all layers and heads.

    ``weights``: float32 ``(layers, heads, rows, keys)``. ``support``: boolean, the same shape,
    True where the normalizer kept the key. A weight outside the support is exactly 0; one inside
    may be 0 too, since a small exponential can underflow.
    """

    weights: NDArray[np.float32]
    support: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.weights.ndim != 4 or self.weights.shape != self.support.shape:
            raise ValueError(
                "weights and support must both be (layers, heads, rows, keys), "
                f"not {self.weights.shape} and {self.support.shape}"
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, rows, keys."""
        layers, heads, rows, keys = self.weights.shape
        return layers, heads, rows, keys


@dataclass(frozen=True)
class Record:
    """One traced sentence. ``prefix`` is what the decoder read: the start token, then the target.

    ``scores[t]`` is the natural log-probability of target token *t*, −inf if the model excludes it;
    ``score`` is their sum. A model with copy attention has no scores.
    """

    index: int
    source: Tokens
    target: Tokens
    prefix: Tokens
    scores: tuple[float, ...]
    score: float
    attention: Mapping[str, Attention] = field(default_factory=dict)

    def axes(self, kind: str) -> tuple[Tokens, Tokens]:
        """The tokens along the rows and along the keys of one kind of attention."""
        rows = self.source if kind == "encoder" else self.target
        keys = self.prefix if kind == "decoder" else self.source
        return rows, keys


def available(kind: str, rows: int, keys: int) -> NDArray[np.bool_]:
    """Boolean ``(rows, keys)``, True where a query may look: all, or in the decoder the past."""
    everything = np.ones((rows, keys), dtype=bool)
    # In a language model the keys may start before the first predicted token.
    return np.tril(everything, keys - rows) if kind == "decoder" else everything


def prefix_of(target: Tokens, start: str = "<s>") -> Tokens:
    """What the decoder reads while it predicts ``target``: the start token, then all but the last.

    A word keeps its index, so that a word is the same word on both axes.
    """
    return Tokens((start, *target.tokens[:-1]), (NO_WORD, *target.words[:-1]))


def encode(record: Record, precision: str = "float32") -> bytes:
    """A record as one compressed block; ``docs/trace-format.md`` describes every byte."""
    dtype = np.dtype("<f4" if precision == "float32" else "<f2")
    meta: dict[str, Any] = {
        "index": record.index,
        "source": record.source.tokens,
        "source_words": record.source.words,
        "target": record.target.tokens,
        "target_words": record.target.words,
        "start": record.prefix.tokens[0] if record.prefix.tokens else None,
        "scores": [_finite(score) for score in record.scores],
        "score": _finite(record.score),
        "dtype": dtype.str,
        "attention": {kind: a.shape for kind, a in record.attention.items()},
    }
    text = json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode()
    parts = [_LENGTH.pack(len(text)), text]
    for attention in record.attention.values():
        values = np.ascontiguousarray(attention.weights[attention.support], dtype=dtype)
        parts.append(np.packbits(attention.support).tobytes())
        # The sign-and-exponent bytes of neighbours are alike, their mantissas are noise: kept
        # apart ("shuffled") they compress better and faster.
        parts.append(values.view(np.uint8).reshape(-1, dtype.itemsize).T.tobytes())
    return zlib.compress(b"".join(parts), _LEVEL)


def decode(block: bytes) -> Record:
    """The record of one block; raises ValueError if the block is not one."""
    try:
        data = zlib.decompress(block)
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        meta = json.loads(data[_LENGTH.size : at])
        dtype = np.dtype(meta["dtype"])
        attention: dict[str, Attention] = {}
        for kind, shape in meta["attention"].items():
            size = int(np.prod(shape))
            bits = np.frombuffer(data, np.uint8, (size + 7) // 8, at)
            at += bits.size
            support = np.unpackbits(bits, count=size).view(bool).reshape(shape)
            count = int(support.sum())
            shuffled = np.frombuffer(data, np.uint8, count * dtype.itemsize, at)
            at += shuffled.size
            values = np.ascontiguousarray(shuffled.reshape(dtype.itemsize, count).T).view(dtype)
            weights = np.zeros(shape, np.float32)
            weights[support] = values[:, 0]
            attention[kind] = Attention(weights, support)
        target = _side(meta["target"], meta["target_words"])
        return Record(
            index=meta["index"],
            source=_side(meta["source"], meta["source_words"]),
            target=target,
            prefix=prefix_of(target, meta["start"]) if target.tokens else Tokens((), ()),
            scores=tuple(_infinite(score) for score in meta["scores"]),
            score=_infinite(meta["score"]),
            attention=attention,
        )
    except (
        zlib.error, struct.error, LookupError, TypeError, AttributeError, RecursionError,
        MemoryError, OverflowError,
    ) as error:  # fmt: skip
        raise ValueError(f"not a sentence record: {error}") from error


def _side(tokens: list[str], words: list[int]) -> Tokens:
    """The tokens of one side; ValueError if they have not a word each."""
    for token, word in zip(tokens, words, strict=True):
        if not isinstance(token, str) or word not in range(NO_WORD, len(tokens)):
            raise ValueError(f"the token {token!r} cannot belong to word {word!r}")
    return Tokens(tuple(tokens), tuple(words))


def _finite(score: float) -> float | None:
    """JSON has no infinity; a probability of 0 has the logarithm null."""
    return score if math.isfinite(score) else None


def _infinite(score: float | None) -> float:
    return -math.inf if score is None else score
