"""Records of attention → how many tokens are attended, how densely, and how the heads differ."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onmt_evsoftmax.attended.moments import Array, RowMeans
from onmt_evsoftmax.trace import KINDS, Grid, Header, Record, grid
from onmt_evsoftmax.trace.derived import DERIVED, rollout_kinds

#: Upper ends of the bins; the last one is open.
LENGTHS = (10, 20, 30, 40, 50, 75, 100)
POSITIONS = (1, 2, 3, 4, 5, 10, 20, 30, 50)


@dataclass(frozen=True)
class Bins:
    """Whole numbers from 1 up, in bins that end at ``ends`` and one open bin after the last."""

    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ends) + 1

    def of(self, number: NDArray[np.integer] | int) -> NDArray[np.intp]:
        """The bin of each number."""
        return np.searchsorted(self.ends, np.asarray(number), side="left")

    def bounds(self, index: int) -> tuple[int, int | None]:
        """First and last number of a bin; the last bin has no last number."""
        first = self.ends[index - 1] + 1 if index else 1
        return first, self.ends[index] if index < len(self.ends) else None

    def name(self, index: int) -> str:
        """A bin as text: 3, 11–20, 101+."""
        first, last = self.bounds(index)
        if last is None:
            return f"{first}+"
        return str(first) if first == last else f"{first}–{last}"


class KindCounts:
    """Everything counted about one kind of attention. Groups: all rows, by length, by position.

    ``measures``: ``attended`` keys of a row; ``available`` keys of it; ``density``, their ratio;
    ``entropy`` of the weights, in nats. ``diversity``: the Jensen–Shannon divergence between the
    heads of a layer, H(mean of heads) − mean of H(head), in nats (Correia et al., 2019).
    ``histogram[l, h, n]``: rows of that head that attend to *n* keys.
    """

    def __init__(self, layers: int, heads: int) -> None:
        self.layers, self.heads = layers, heads
        self.lengths, self.positions = Bins(LENGTHS), Bins(POSITIONS)
        groups = 1 + len(self.lengths) + len(self.positions)
        self.measures = {
            name: RowMeans(layers, heads, groups)
            for name in ("attended", "available", "density", "entropy")
        }
        self.diversity = RowMeans(layers, 1, groups)
        self.histogram = np.zeros((layers, heads, 1), np.int64)

    def add(self, view: Grid, length: int, specials: bool) -> None:
        """One sentence of ``length`` source units. ``specials`` also counts rows such as </s>."""
        chosen = np.ones(len(view.rows), dtype=bool) if specials else view.row_is_text
        if not chosen.any():
            return
        member = self._member(np.flatnonzero(chosen) + 1, length)
        weights = view.weights[:, :, chosen].astype(np.float64)
        attended = view.support[:, :, chosen].sum(-1)
        available = view.available[chosen].sum(-1)
        head_entropy = entropy(weights)
        self.measures["attended"].add(attended.astype(np.float64), member)
        self.measures["density"].add(attended / available, member)
        self.measures["entropy"].add(head_entropy, member)
        broadcast = np.broadcast_to(available.astype(np.float64), attended.shape)
        self.measures["available"].add(broadcast, member)
        if self.heads > 1:
            shared = entropy(weights.mean(1)) - head_entropy.mean(1)
            self.diversity.add(np.maximum(shared, 0)[:, None], member)
        self._tally(attended)

    def _member(self, positions: NDArray[np.intp], length: int) -> Array:
        """Which groups each row belongs to, ``(rows, groups)`` of 0 and 1."""
        member = np.zeros((len(positions), 1 + len(self.lengths) + len(self.positions)))
        member[:, 0] = 1
        member[:, 1 + self.lengths.of(length)] = 1
        offset = 1 + len(self.lengths)
        member[np.arange(len(positions)), offset + self.positions.of(positions)] = 1
        return member

    def _tally(self, attended: NDArray[np.integer]) -> None:
        most = int(attended.max())
        if most >= self.histogram.shape[-1]:
            wider = np.zeros((self.layers, self.heads, most + 1), np.int64)
            wider[:, :, : self.histogram.shape[-1]] = self.histogram
            self.histogram = wider
        layer, head = np.indices(attended.shape)[:2]
        np.add.at(self.histogram, (layer, head, attended), 1)

    def length_groups(self) -> list[tuple[int, str]]:
        """(group, name) of the lengths that occurred."""
        return self._groups(self.lengths, 1)

    def position_groups(self) -> list[tuple[int, str]]:
        """(group, name) of the row positions that occurred."""
        return self._groups(self.positions, 1 + len(self.lengths))

    def _groups(self, bins: Bins, offset: int) -> list[tuple[int, str]]:
        rows = self.measures["attended"].rows
        return [(offset + i, bins.name(i)) for i in range(len(bins)) if rows(offset + i)]


class Counts:
    """The counts of a whole trace: feed it every record, then ask ``kinds``.

    Without ``derived``, whose rows take longer than all heads together, those stay uncounted.
    """

    def __init__(
        self,
        header: Header,
        level: str = "subword",
        specials: bool = False,
        kinds: Collection[str] = KINDS,
        derived: bool = True,
    ) -> None:
        self.header, self.level, self.specials = header, level, specials
        self.sentences = self.empty = 0
        self.kinds = {
            kind: KindCounts(about.layers, about.heads)
            for kind, about in header.kinds.items()
            if kind in kinds
        }
        #: Derived row → kind → its counts, one head per layer.
        self.derived = {
            name: {
                kind: KindCounts(counts.layers, 1)
                for kind, counts in self.kinds.items()
                if name != "rollout" or kind in rollout_kinds(header.kinds)
            }
            for name in (DERIVED if derived else ())
        }

    def add(self, record: Record) -> None:
        """Count one sentence; an empty one is only counted as such."""
        self.sentences += 1
        if not record.target.tokens and not record.source.tokens:
            self.empty += 1
            return
        side = record.source if record.source.tokens else record.target
        length = len(side) - sum(side.special) if self.level == "subword" else side.word_count
        made = [(record, self.kinds)]
        made += [(DERIVED[name](record), kinds) for name, kinds in self.derived.items()]
        for source, kinds in made:
            for kind, counts in kinds.items():
                view = grid(source, kind, self.level, self.header.subwords)
                counts.add(view, max(length, 1), self.specials)


def entropy(weights: Array) -> Array:
    """Shannon entropy in nats over the last axis; a zero weight adds nothing."""
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -np.asarray((weights * logs).sum(-1))
