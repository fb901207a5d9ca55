"""Traces: the attention of a checkpoint on a text, recorded on disk sentence by sentence.

>>> from onmt_evsoftmax.trace import TraceReader
>>> with TraceReader("ev.trace") as trace:                    # doctest: +SKIP
...     trace[17].attention["context"].weights.shape          # layers, heads, rows, keys
"""

from onmt_evsoftmax.corpora.marks import SCHEMES, Tokens, detect_scheme, group
from onmt_evsoftmax.trace.grid import Grid, grid
from onmt_evsoftmax.trace.record import (
    KINDS,
    Attention,
    Record,
    available,
    decode,
    encode,
    prefix_of,
)
from onmt_evsoftmax.trace.storage import Header, Kind, TraceReader, TraceWriter, is_complete

__all__ = [
    "KINDS",
    "SCHEMES",
    "Attention",
    "Grid",
    "Header",
    "Kind",
    "Record",
    "Tokens",
    "TraceReader",
    "TraceWriter",
    "available",
    "decode",
    "detect_scheme",
    "encode",
    "grid",
    "group",
    "is_complete",
    "prefix_of",
]
