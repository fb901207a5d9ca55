"""Training, validation and test sets out of one corpus, the same ones on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from onmt_evsoftmax.corpora.parallel import Pair
from onmt_evsoftmax.report.console import UserError


def every(step: int, pairs: Iterable[Pair]) -> Iterator[tuple[str, Pair]]:
    """Label lines ``step``, 2·``step``, … as valid and the others as train."""
    for number, pair in enumerate(pairs, start=1):
        yield ("valid" if number % step == 0 else "train"), pair


def by_source(held_out: int, pairs: Iterable[Pair]) -> Iterator[tuple[str, Pair]]:
    """Hold out ``held_out`` source sentences for test and as many for valid, the rest is train.

    All translations of a sentence are on one side of the split, so that no test sentence was
    trained on; a held-out sentence keeps its first translation. Which ones are held out depends
    on a hash of the sentence alone, not on the order of the file or on the Python version.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair[0], []).append(pair)
    if len(groups) <= 2 * held_out:
        raise UserError(
            f"cannot hold out twice {held_out} source sentences of {len(groups)} distinct ones"
        )
    ranked = sorted(groups, key=lambda text: hashlib.sha256(text.encode()).digest())
    label = dict.fromkeys(ranked[:held_out], "test")
    label |= dict.fromkeys(ranked[held_out : 2 * held_out], "valid")
    for source, group in groups.items():
        part = label.get(source, "train")
        for pair in group if part == "train" else group[:1]:
            yield part, pair
