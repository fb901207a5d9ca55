"""Random choices that give the same result for the same seed on every supported Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
FEW = 4


class Unfit(Exception):
    """What was drawn does not fit together; draw the sentence again."""


class Dice:
    """A seeded source of choices; only ``random.Random.random`` is used, whose bits are fixed."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._used: Counter[object] = Counter()

    def chance(self, probability: float) -> bool:
        """Return True with that probability."""
        return self._rng.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely."""
        return options[int(self._rng.random() * len(options))]

    def rarest(self, options: Sequence[T]) -> T:
        """Return the option that was used the least among a few drawn: no word stays rare."""
        drawn = [self.pick(options) for _ in range(FEW)]
        chosen = min(drawn, key=lambda option: self._used[option])
        self._used[chosen] += 1
        return chosen

    def weighted(self, weights: Mapping[T, float]) -> T:
        """Return a key with a probability in proportion to its weight."""
        point = self._rng.random() * sum(weights.values())
        for option, weight in weights.items():
            point -= weight
            if point < 0:
                return option
        return option

    def between(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``, both included."""
        return low + int(self._rng.random() * (high - low + 1))
