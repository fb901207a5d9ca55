"""The text that is traced: checked whole before the work starts, then read line by line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import lines_of, need_file

Split = Callable[[str], list[str]]


@dataclass(frozen=True)
class Text:
    """A file of sentences, one per line, that is known to be readable."""

    path: str
    sha256: str
    sentences: int

    def facts(self) -> dict[str, str | int]:
        """What a trace's header says about the file."""
        return {"name": Path(self.path).name, "sha256": self.sha256, "sentences": self.sentences}

    def lines(self, start: int = 0) -> Iterator[str]:
        """The lines from number ``start`` (from 0) on, one in memory at a time."""
        return islice(lines_of(self.path), start, None)


def check_text(path: str) -> Text:
    """Read the whole file once: its checksum and length, or a sentence about what is wrong."""
    need_file(path)
    count = sum(1 for _ in lines_of(path))
    return Text(path, checksum([path]), count)


def checksum(paths: Iterable[str | Path]) -> str:
    """SHA-256 of the content of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with open(path, "rb") as file:
                hashlib.file_digest(file, lambda: digest)  # adds to it
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def splitter(model: str | None) -> Split | None:
    """How a SentencePiece model or BPE codes split a line; without one, the traced model knows."""
    if model is None:
        return None
    from onmt_evsoftmax.corpora.subwords import encoder

    encode = encoder(Path(model))
    return lambda line: encode(line).split()
