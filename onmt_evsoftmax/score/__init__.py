"""Hypotheses and references → BLEU, chrF++, TER, ROUGE and METEOR, signed and tested.

>>> from onmt_evsoftmax.score import score
>>> report = score({"softmax": [lines_1], "evsoftmax": [lines_2]}, [references],
...                lang="de", baseline="softmax")          # doctest: +SKIP
>>> print(report.text())                                           # doctest: +SKIP
"""

from onmt_evsoftmax.score.core import score
from onmt_evsoftmax.score.metrics import DEFAULT_METRICS, METRICS
from onmt_evsoftmax.score.score_translations import entry, main
from onmt_evsoftmax.score.scores import Cell, Comparison, Report, Row

__all__ = [
    "DEFAULT_METRICS",
    "METRICS",
    "Cell",
    "Comparison",
    "Report",
    "Row",
    "entry",
    "main",
    "score",
]
