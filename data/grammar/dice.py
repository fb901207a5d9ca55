"""Random choices that give the same result for the same seed on every supported Python."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
HEAD = 3


@cache
def _limits(count: int) -> list[float]:
    """Return the running sums of the weights of ``count`` words."""
    return list(accumulate(1 / (rank + HEAD) for rank in range(count)))


class Unfit(Exception):
    """What was drawn does not fit together; draw the sentence again."""


class Dice:
    """A seeded source of choices.

    Only ``random.Random.random`` is used, whose bits are fixed, and plain additions: ``sum`` rounds
    in another way since Python 3.12.
    """

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
        return options[self._index(_limits(len(options)))]

    def weighted(self, weights: Mapping[T, float]) -> T:
        """Return a key with a probability in proportion to its weight."""
        return list(weights)[self._index(list(accumulate(weights.values())))]

    def _index(self, limits: Sequence[float]) -> int:
        """Return where a random point falls among running sums of weights."""
        return min(bisect(limits, self._rng.random() * limits[-1]), len(limits) - 1)

    def between(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``, both included."""
        return low + int(self._rng.random() * (high - low + 1))
