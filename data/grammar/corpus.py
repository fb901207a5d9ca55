"""Drawing whole sets of sentences that do not overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grammar.constructions import HARD, WEIGHTS, draw_one
from grammar.dice import Dice
from grammar.draw_clause import ClauseDraw
from grammar.lexicon import Lexicon
from grammar.words import Sentence
from onmt_evsoftmax.report.console import UserError

# Test sets first, so that they stay the same whatever the size of the training set.
ORDER = ("test", "valid", "test-hard", "train")
PATIENCE = 5000  # sentences drawn in vain before a set is called exhausted

Progress = Callable[[str, int], None]


def draw_sets(
    lexicon: Lexicon, sizes: Mapping[str, int], seed: int, progress: Progress
) -> dict[str, list[Sentence]]:
    """Draw each set of ``sizes``; no sentence of one side is in two sets, nor a source twice."""
    sets: dict[str, list[Sentence]] = {}
    taken: set[str] = set()
    for name in ORDER:
        sets[name] = _draw_set(lexicon, name, sizes[name], seed, taken, progress)
        for sentence in sets[name]:
            taken.update((sentence.source, sentence.target))
    return sets


def _draw_set(
    lexicon: Lexicon, name: str, size: int, seed: int, taken: set[str], progress: Progress
) -> list[Sentence]:
    draw = ClauseDraw(lexicon, Dice(f"{seed}/{name}"))
    weights = dict.fromkeys(HARD, 1.0) if name == "test-hard" else WEIGHTS
    found: dict[str, Sentence] = {}
    vain = 0
    while len(found) < size:
        sentence = draw_one(draw, draw.dice.weighted(weights))
        if sentence.source in found or sentence.source in taken or sentence.target in taken:
            vain += 1
            if vain > PATIENCE:
                raise UserError(
                    f"the grammar has no more than {len(found)} sentences for {name} that are in "
                    f"no other set; ask for fewer than {size}"
                )
            continue
        vain = 0
        found[sentence.source] = sentence
        progress(name, len(found))
    return list(found.values())
