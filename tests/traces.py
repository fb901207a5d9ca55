"""Traces made of random numbers, for tests that need attention but no model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onmt_evsoftmax.corpora.marks import Tokens, group
from onmt_evsoftmax.trace.record import KINDS, Attention, Record, available, encode, prefix_of
from onmt_evsoftmax.trace.storage import Header, Kind, TraceWriter

PAIRS = (
    ("▁does ▁that ▁make ▁you ▁cur ious ▁?", "▁macht ▁sie ▁das ▁neu gier ig ▁?"),
    ("▁a ▁man ▁rides ▁a ▁horse .", "▁ein ▁Mann ▁reitet ▁auf ▁einem ▁Pferd ."),
    ("▁two ▁dogs", "▁zwei ▁H unde"),
    ("▁hi", "▁hallo"),
)


def normalize(scores: NDArray[np.float64], allowed: NDArray[np.bool_], name: str) -> Attention:
    """Plain numpy normalizers over the last axis: an implementation the package does not share."""
    scores = np.where(allowed, scores, -np.inf)
    top = np.exp(scores - scores.max(-1, keepdims=True))
    count = np.broadcast_to(allowed, scores.shape).sum(-1, keepdims=True)
    if name == "softmax":
        support = np.broadcast_to(allowed, scores.shape)
        weights = top
    elif name == "evsoftmax":
        mean = np.where(allowed, scores, 0).sum(-1, keepdims=True) / count
        support = allowed & (scores >= np.minimum(mean, scores.max(-1, keepdims=True)))
        weights = np.where(support, top, 0)
    else:  # sparsemax, by sorting
        ordered = -np.sort(-scores, axis=-1)
        ranks = np.arange(1, scores.shape[-1] + 1)
        sums = np.cumsum(np.where(np.isfinite(ordered), ordered, 0), axis=-1)
        kept = np.isfinite(ordered) & (1 + ranks * ordered > sums)
        size = kept.sum(-1, keepdims=True)
        threshold = (np.take_along_axis(sums, size - 1, -1) - 1) / size
        support = scores > threshold
        weights = np.where(support, scores - threshold, 0)
    weights = weights / weights.sum(-1, keepdims=True)
    return Attention(weights.astype(np.float32), np.array(support))


def header(
    normalizer: str = "evsoftmax", layers: int = 2, heads: int = 4, kinds: Sequence[str] = KINDS
) -> Header:
    return Header(
        kinds={kind: Kind(normalizer, layers, heads) for kind in kinds},
        model={"name": f"{normalizer}.pt", "sha256": "0" * 64, "type": "transformer"},
        source={"name": "test.en", "sha256": "1" * 64},
        target={"name": "test.de", "sha256": "2" * 64},
        subwords={"source": "sentencepiece", "target": "sentencepiece"},
        versions={"onmt_evsoftmax": "0"},
    )


def record(
    index: int = 0,
    source: str | None = None,
    target: str | None = None,
    normalizer: str = "evsoftmax",
    layers: int = 2,
    heads: int = 4,
    scheme: str = "sentencepiece",
    kinds: Sequence[str] = KINDS,
) -> Record:
    """A sentence with random scores of varying sharpness; the same index gives the same record."""
    rng = np.random.default_rng(index)
    text = PAIRS[index % len(PAIRS)]
    source_side = group((source if source is not None else text[0]).split(), scheme)
    target_side = group([*(target if target is not None else text[1]).split(), "</s>"], scheme)
    prefix = prefix_of(target_side)
    bare = Record(index, source_side, target_side, prefix, (), 0.0)
    attention = {}
    for kind in KINDS:
        rows, keys = (len(side) for side in bare.axes(kind))
        sharpness = rng.uniform(0.5, 4, (layers, heads, 1, 1))
        scores = rng.normal(size=(layers, heads, rows, keys)) * sharpness
        # A diagonal, as attention has; it also makes the pictures look like something.
        distance = np.arange(rows)[:, None] / max(rows, 1) - np.arange(keys) / max(keys, 1)
        scores -= 30 * distance**2
        if kind in kinds:
            attention[kind] = normalize(scores, available(kind, rows, keys), normalizer)
    scores = tuple(float(-value) for value in rng.exponential(size=len(target_side)))
    return Record(index, source_side, target_side, prefix, scores, sum(scores), attention)


def blank(index: int = 0, layers: int = 2, heads: int = 4) -> Record:
    """What an empty source line leaves in a trace."""
    nothing = Attention(
        np.zeros((layers, heads, 0, 0), np.float32), np.zeros((layers, heads, 0, 0), bool)
    )
    side = Tokens((), ())
    return Record(index, side, side, side, (), 0.0, dict.fromkeys(KINDS, nothing))


def write(path: Path, count: int = 4, normalizer: str = "evsoftmax", **shape: int) -> Path:
    with TraceWriter(path, header(normalizer, **shape)) as trace:
        for index in range(count):
            trace.append(encode(record(index, normalizer=normalizer, **shape)))
        trace.finish()
    return path


def brute_force_rows(item: Record, kind: str) -> list[tuple[int, int, int, int]]:
    """(layer, head, row, attended) by four nested loops over the rows that are text."""
    attention, rows = item.attention[kind], item.axes(kind)[0]
    layers, heads, _, keys = attention.shape
    return [
        (layer, head, row, sum(bool(attention.support[layer, head, row, k]) for k in range(keys)))
        for layer in range(layers)
        for head in range(heads)
        for row in range(len(rows))
        if not rows.special[row]
    ]
