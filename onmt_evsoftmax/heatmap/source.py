"""Traces to draw, each under the name it has in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onmt_evsoftmax.console import UserError
from onmt_evsoftmax.heatmap.style import pretty
from onmt_evsoftmax.trace import Record, TraceReader


@dataclass(frozen=True)
class Source:
    """An open trace and its name."""

    name: str
    trace: TraceReader

    def sentence(self, line: int) -> Record:
        """The record of a source line, counted from 1."""
        if not 1 <= line <= len(self.trace):
            raise UserError(
                f"{self.trace.path} has sentences 1 to {len(self.trace)}, not {line}; "
                "choose one of them with --sentence"
            )
        return self.trace[line - 1]


def name_traces(arguments: Sequence[str], traces: Sequence[TraceReader]) -> list[str]:
    """NAME of NAME=FILE; else the normalizer if that tells the traces apart, else the file name."""
    explicit = [split_name(argument)[0] for argument in arguments]
    normalizers = [pretty(trace.header.label) for trace in traces]
    repeated = {name for name, count in Counter(normalizers).items() if count > 1}
    names = [
        given or (Path(trace.path).stem if normalizer in repeated else normalizer)
        for given, normalizer, trace in zip(explicit, normalizers, traces, strict=True)
    ]
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"two traces are called {name!r}; name them apart with NAME=FILE")
    return names


def split_name(argument: str) -> tuple[str, str]:
    """``NAME=FILE`` or ``FILE``; a file whose name has an = is taken as it is."""
    name, equals, path = argument.partition("=")
    if not equals or "/" in name or Path(argument).exists():
        return "", argument
    return name, path
