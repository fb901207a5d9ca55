"""When a beam search ends: as in eole, or as in OpenNMT-py 3.0.

Both wait until the best beam has ended. eole, as OpenNMT-py 3.5, then has enough with ``n_best``
translations; OpenNMT-py 3.0 goes on until it has ``beam_size`` of them, which under a length
penalty are often better.
"""

from __future__ import annotations

import math
from typing import Any

from onmt_evsoftmax.opennmt.patching import around

#: The key: ``n_best``, eole's own rule, or ``beam_size``, that of OpenNMT-py 3.0.
STOP = "stop_search_after"


def patch_search(module: Any) -> None:
    """``eole.predict.beam_search``: a search that was told to waits for ``beam_size``."""

    @around(module.BeamSearchBase)
    def beams_non_finished(stock: Any, self: Any, i: int, *arguments: Any) -> bool:
        """Whether sentence ``i`` of those still searched goes on."""
        best_ended: set[int] | None = getattr(self, "best_ended", None)
        if best_ended is None or self.ratio > 0:
            return bool(stock(self, i, *arguments))
        sentence = int(self._batch_offset[i])
        if self.is_finished_list[i][0]:
            best_ended.add(sentence)
        wanted, self.num_hyp = self.num_hyp, math.inf  # so that it only collects
        goes_on = bool(stock(self, i, *arguments))
        self.num_hyp = wanted
        found = self.hypotheses[sentence]
        if not goes_on or sentence not in best_ended or len(found) < self.beam_size:
            return goes_on
        for score, words, weights, length in sorted(found, key=lambda each: -each[0])[:wanted]:
            self.scores[sentence].append(score)
            self.predictions[sentence].append(words)
            self.attention[sentence].append([] if weights is None else weights)
            self.n_text_tokens[sentence].append(length)
        if self.static_batch_size:
            self.batch_finished[i] = True
        return False


def patch_translator(module: Any) -> None:
    """``eole.predict.translator``: tell the search which rule the options name."""

    @around(module.Translator)
    def __init__(
        original: Any, self: Any, model: Any, vocabs: Any, config: Any, *rest: Any, **keys: Any
    ) -> None:
        original(self, model, vocabs, config, *rest, **keys)
        self.waits = getattr(config, STOP, None) == "beam_size"

    @around(module.Translator)
    def _predict_batch_with_strategy(original: Any, self: Any, batch: Any, strategy: Any) -> Any:
        if self.waits:
            strategy.best_ended = set()
        return original(self, batch, strategy)
