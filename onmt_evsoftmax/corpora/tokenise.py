"""Moses tokenisation in Python (sacremoses), and back to text as people write it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from multiprocessing import get_context

from onmt_evsoftmax.report.progress import progress

_BLOCK = 50_000  # lines in memory at a time per process


@functools.cache
def _moses(language: str, back: bool) -> Callable[[str], str]:
    from sacremoses import MosesDetokenizer, MosesTokenizer

    if back:
        detokenizer = MosesDetokenizer(lang=language)
        return lambda line: detokenizer.detokenize(line.split(), return_str=True)
    tokenizer = MosesTokenizer(lang=language)
    # Without escapes: the text stays readable, and OpenNMT-py has no special characters of its own.
    return lambda line: tokenizer.tokenize(line, return_str=True, escape=False)


def tokenise_line(language: str, line: str) -> str:
    """``Hello, world!`` → ``Hello , world !``."""
    return _moses(language, False)(line)


def detokenise_line(language: str, line: str) -> str:
    """``Hello , world !`` → ``Hello, world!``."""
    return _moses(language, True)(line)


def mapped(
    function: Callable[[str], str], lines: Iterable[str], jobs: int, title: str
) -> Iterator[str]:
    """``map(function, lines)`` in order, on ``jobs`` processes, with progress on stderr."""
    with progress(title, unit="lines", lines=lines) as bar:
        stream = iter(bar)
        block = list(islice(stream, _BLOCK))
        if jobs == 1 or len(block) < _BLOCK:  # other processes would take longer to start
            yield from map(function, chain(block, stream))
            return
        with get_context("spawn").Pool(jobs) as pool:
            while block:
                yield from pool.map(function, block, chunksize=500)
                block = list(islice(stream, _BLOCK * jobs))
