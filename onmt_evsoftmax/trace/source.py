"""Traces that a command was given, each under the name it has in tables and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from onmt_evsoftmax.normalizers.registry import title_of
from onmt_evsoftmax.report.console import UserError, warn
from onmt_evsoftmax.report.files import split_name
from onmt_evsoftmax.trace.record import Record
from onmt_evsoftmax.trace.storage import TraceReader


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


def trace_files(arguments: Sequence[str]) -> list[str]:
    """The files of ``[NAME=]FILE`` arguments."""
    return [split_name(argument)[1] for argument in arguments]


@contextmanager
def open_traces(arguments: Sequence[str]) -> Iterator[list[Source]]:
    """Open the traces of ``[NAME=]FILE`` arguments; warn of an unfinished one."""
    with ExitStack() as stack:
        traces = [stack.enter_context(TraceReader(path)) for path in trace_files(arguments)]
        for trace in traces:
            if not len(trace):
                raise UserError(
                    f"{trace.path} has no sentence yet; finish onmt_trace_attention first"
                )
            if not trace.complete:
                warn(
                    f"{trace.path} is not finished, it has {len(trace)} sentences; "
                    "repeat its onmt_trace_attention command to continue it"
                )
        given = [split_name(item)[0] for item in arguments]
        labels = [title_of(trace.header.label) for trace in traces]
        names = tell_apart(given, labels, [trace.path.stem for trace in traces])
        yield [Source(name, trace) for name, trace in zip(names, traces, strict=True)]


def tell_apart(given: Sequence[str], labels: Sequence[str], files: Sequence[str]) -> list[str]:
    """A given name; else the normalizer if only one has it; else the file's name."""
    repeated = {name for name, count in Counter(labels).items() if count > 1}
    names = [
        name or (file if label in repeated else label)
        for name, label, file in zip(given, labels, files, strict=True)
    ]
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"two inputs are called {name!r}; name them apart with NAME=FILE")
    return names
