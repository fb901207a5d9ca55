"""Which sentence pairs are worth training on, and a count of why the others were dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from onmt_evsoftmax.corpora.parallel import Pair


@dataclass
class Cleaning:
    """Rules, in words separated by spaces; ``dropped`` counts what each of them refused."""

    max_words: int = 150
    max_ratio: float = 9.0  # longer side over shorter side
    unique: bool = True
    held_out: Collection[str] = ()  # source sentences that must not be trained on
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set, repr=False)

    def __call__(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        for source, target in pairs:
            pair = " ".join(source.split()), " ".join(target.split())
            reason = self._refuses(*pair)
            if reason:
                self.dropped[reason] = self.dropped.get(reason, 0) + 1
            else:
                self.kept += 1
                yield pair

    def _refuses(self, source: str, target: str) -> str | None:
        if not source or not target:
            return "empty"
        lengths = len(source.split()), len(target.split())
        if max(lengths) > self.max_words:
            return "too long"
        if max(lengths) > self.max_ratio * min(lengths):
            return "lopsided"
        if source in self.held_out:
            return "held out"
        if self.unique:
            # A 64-bit hash keeps millions of pairs in memory where the text would not fit.
            key = hash((source, target))
            if key in self._seen:
                return "repeated"
            self._seen.add(key)
        return None

    def __str__(self) -> str:
        total = self.kept + sum(self.dropped.values())
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"kept {self.kept} of {total} pairs" + (f" (dropped: {why})" if why else "")
