"""Records of attention → attended counts, density, entropy, head diversity, alignment error.

>>> from onmt_evsoftmax.attended import Counts, Entry, Report
>>> from onmt_evsoftmax.trace import TraceReader
>>> with TraceReader("ev.trace") as trace:                    # doctest: +SKIP
...     counts = Counts(trace.header)
...     for record in trace:
...         counts.add(record)
>>> print(Report([Entry("ev", counts)]).tables()[0].text())   # doctest: +SKIP
"""

from onmt_evsoftmax.attended.alignment import AlignmentScores, Gold, parse_line, read_gold
from onmt_evsoftmax.attended.counts import Counts, KindCounts, entropy
from onmt_evsoftmax.attended.moments import RowMeans, Summary
from onmt_evsoftmax.attended.tables import Entry, Report

__all__ = [
    "AlignmentScores",
    "Counts",
    "Entry",
    "Gold",
    "KindCounts",
    "Report",
    "RowMeans",
    "Summary",
    "entropy",
    "parse_line",
    "read_gold",
]
