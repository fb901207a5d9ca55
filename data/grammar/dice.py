"""Random choices that give the same result for the same seed on every supported Python."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
HEAD = 12


@cache
def _limits(count: int) -> list[float]:
    """Return the running sums of the weights of ``count`` words."""
    return list(accumulate(1 / (rank + HEAD) for rank in range(count)))


class Unfit(Exception):
    """What was drawn does not fit together; draw the sentence again."""


class Dice:
    """A seeded source of choices; only ``random.Random.random`` is used, whose bits are fixed."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """Return True with that probability."""
        return self._rng.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely."""
        return options[int(self._rng.random() * len(options))]

    def common(self, options: Sequence[T]) -> T:
        """Return an option, the earlier in the sequence the likelier, as words are in a language.

        Tables list common words first; the n-th word has a weight of 1 / (n + HEAD).
        """
        limits = _limits(len(options))
        return options[bisect(limits, self._rng.random() * limits[-1])]

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
