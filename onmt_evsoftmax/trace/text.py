"""The text that is traced: checked whole before the work starts, then read line by line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import decode_line, need_file

Split = Callable[[str], list[str]]


@dataclass(frozen=True)
class Text:
    """A file of sentences, one per line, that is known to be readable."""

    path: str
    sha256: str
    sentences: int

    def facts(self) -> dict[str, str | int]:
        """What a trace's header says about the file."""
        return {
            "name": Path(self.path).name,
            "sha256": self.sha256,
            "sentences": self.sentences,
        }

    def lines(self, start: int = 0) -> Iterator[str]:
        """The lines from number ``start`` (from 0) on, one in memory at a time."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file):
                if number >= start:
                    yield decode_line(self.path, number + 1, line.removesuffix(b"\n"))


def check_text(path: str) -> Text:
    """Read the whole file once: its checksum and length, or a sentence about what is wrong."""
    need_file(path)
    digest, count = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                decode_line(path, number, line.removesuffix(b"\n"))
                digest.update(line)
                count = number
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if not count:
        raise UserError(f"{path} is empty; it must have at least one line")
    return Text(path, digest.hexdigest(), count)


def splitter(model: str | None) -> Split:
    """How a line becomes tokens: at its spaces, or by a SentencePiece model or BPE codes."""
    if model is None:
        return str.split
    try:
        data = Path(model).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {model}: {error.strerror}") from error
    if model.endswith(".model"):
        from sentencepiece import SentencePieceProcessor

        try:
            pieces = SentencePieceProcessor(model_proto=data)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{model} is not a SentencePiece model") from error
        return lambda line: list(pieces.encode(line, out_type=str))
    import io

    from subword_nmt.apply_bpe import BPE

    try:
        codes = BPE(io.StringIO(data.decode("utf-8")))
    except (UnicodeDecodeError, ValueError, IndexError, SystemExit) as error:
        raise UserError(f"{model} is neither a SentencePiece .model nor BPE codes") from error
    return lambda line: codes.process_line(line).split()
