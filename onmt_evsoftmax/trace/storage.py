"""Trace files: the attention of a checkpoint on a text, one record per sentence, on disk.

A trace is a text line with the format's name, a text line of JSON with everything about the run,
then one compressed, checksummed, length-prefixed block per sentence (``docs/trace-format.md``).
Such a file can be appended to without knowing how long it gets, cut anywhere by a kill and
continued, read sentence by sentence in constant memory, and opened at any sentence by hopping over
the lengths; a zip or HDF5 file keeps its table of contents at the end and loses it with the kill.

Writing goes to ``NAME.part``, renamed to ``NAME`` when complete:

    with TraceWriter("ev.trace", header) as trace:
        for record in records(start=trace.count):     # .count > 0 after an interruption
            trace.append(encode(record))
        trace.finish()

    with TraceReader("ev.trace") as trace:
        print(trace.header.kinds["context"].normalizer, len(trace), trace[17].source.tokens)
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onmt_evsoftmax.corpora.marks import SCHEMES
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import check_replaceable, need_file
from onmt_evsoftmax.trace.record import KINDS, Record, decode

_FORMAT = b"onmt_evsoftmax trace "
MAGIC = _FORMAT + b"1\n"
_FRAME = struct.Struct("<cII")  # type, length of the payload, CRC-32 of type and payload
_SENTENCE, _END = b"S", b"E"
_HEADER_LIMIT = 1 << 20


@dataclass(frozen=True)
class Kind:
    """What one kind of attention is made of. ``alphas``: learned, ``[layer][head]``, or None."""

    normalizer: str
    layers: int
    heads: int
    alphas: list[list[float]] | None = None


@dataclass(frozen=True)
class Header:
    """Everything about a run that is the same for each of its sentences.

    ``model``: name, sha256, type, … of the checkpoint. ``source``: name and sha256 of the text.
    ``target``: name and sha256 of the text that was forced, or the search that made the output.
    ``subwords``: side → one of ``marks.SCHEMES``.
    """

    kinds: Mapping[str, Kind]
    model: Mapping[str, Any]
    source: Mapping[str, Any]
    target: Mapping[str, Any]
    subwords: Mapping[str, str]
    precision: str = "float32"
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name for tables and figures: the normalizer, or one per kind if they differ."""
        names = {kind: about.normalizer for kind, about in self.kinds.items()}
        if len(set(names.values())) == 1:
            return next(iter(names.values()))
        return ", ".join(f"{kind} {name}" for kind, name in names.items())

    @property
    def forced(self) -> bool:
        """Whether the target was given, not searched for."""
        return "search" not in self.target

    def line(self) -> bytes:
        """The header as the second line of a trace."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Header:
        """The inverse of ``line``; keys of a later minor version are ignored."""
        fields = json.loads(line)
        fields = {key: fields[key] for key in cls.__dataclass_fields__ if key in fields}
        given = fields["kinds"]
        fields["kinds"] = {kind: Kind(**given[kind]) for kind in KINDS if kind in given}
        header = cls(**fields)
        header._check()
        return header

    def _check(self) -> None:
        """ValueError for a header whose fields are of other types: it was not written by us."""
        told = (self.model, self.source, self.target, self.subwords, self.versions)
        sizes = [size for kind in self.kinds.values() for size in (kind.layers, kind.heads)]
        if (
            not self.kinds
            or not all(isinstance(fields, dict) for fields in told)
            or not all(isinstance(size, int) and size > 0 for size in sizes)
            or not all(isinstance(kind.normalizer, str) for kind in self.kinds.values())
            or not all(self.subwords.get(side) in SCHEMES for side in ("source", "target"))
        ):
            raise ValueError("fields of other types")


class TraceReader:
    """A trace opened for reading: ``len``, ``trace[i]`` and iteration, one sentence in memory.

    A last block cut by a kill is ignored; ``complete`` says whether the file has its end mark.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        need_file(path)
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 (closed by __exit__)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        try:
            self.header, start = _read_header(self._file.fileno(), self.path)
            self._starts, self.complete = _index(self._file.fileno(), start)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Record:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        frame = _read_frame(self._file.fileno(), self._starts[index])
        if frame is None:
            raise self._damaged(index, "its checksum does not match")
        try:
            record = decode(frame[1])
        except ValueError as error:
            raise self._damaged(index, str(error)) from error
        for kind, about in self.header.kinds.items():
            shape = (about.layers, about.heads, *map(len, record.axes(kind)))
            if kind not in record.attention or record.attention[kind].shape != shape:
                raise self._damaged(index, f"it lacks {kind} attention of the shape {shape}")
        return record

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _damaged(self, index: int, reason: str) -> UserError:
        return UserError(
            f"{self.path}: sentence {index % len(self) + 1} is damaged ({reason}); "
            "run onmt_trace_attention again"
        )


class TraceWriter:
    """Writes ``path`` through ``path.part``, continuing such a file if an earlier run left one."""

    def __init__(
        self, path: str | os.PathLike[str], header: Header, *, restart: bool = False
    ) -> None:
        self.path, self.part = Path(path), part_of(path)
        self.count = 0
        begin = MAGIC + header.line()
        for file in (self.path, self.part):
            _refuse_other_files(file)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(None, "it is a folder")
            self._file = open(self.part, "ab+")  # noqa: SIM115 (closed by __exit__)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from (
                error
            )
        try:
            _lock(self._file.fileno(), self.part)
            kept = 0 if restart else self._resume(header, begin)
            self._file.truncate(kept)
            if not kept:
                self._write(begin)
        except BaseException:
            with suppress(OSError):
                self._file.close()
            raise

    def _resume(self, header: Header, begin: bytes) -> int:
        """Count the whole blocks an earlier run left and return how many bytes of it to keep."""
        descriptor = self._file.fileno()
        present = os.pread(descriptor, _HEADER_LIMIT, 0)
        if not present.startswith(MAGIC) or b"\n" not in present[len(MAGIC) :]:
            return 0  # killed before its header was on disk
        if not present.startswith(begin):
            other, _ = _read_header(descriptor, self.part)
            raise UserError(
                f"{self.part} was begun with other settings ({_difference(other, header)}); "
                "repeat that command to continue it, or start over with --restart"
            )
        end = len(begin)
        # After a power cut a block may have its length but not its bytes: check every checksum.
        while (frame := _read_frame(descriptor, end)) and frame[0] == _SENTENCE:
            end += _FRAME.size + len(frame[1])
            self.count += 1
        return end

    def append(self, block: bytes) -> None:
        """Add one encoded record."""
        self._write(_frame(_SENTENCE, block))
        self.count += 1

    def finish(self) -> None:
        """Mark the trace complete and give it its final name."""
        self._write(_frame(_END, json.dumps({"sentences": self.count}).encode()))
        with self._as_user_error():
            os.fsync(self._file.fileno())
            os.replace(self.part, self.path)

    def discard(self) -> None:
        """Leave no file behind."""
        self.part.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        with self._as_user_error():
            self._file.write(data)
            self._file.flush()  # so that a kill costs one sentence, not a buffer of them

    @contextmanager
    def _as_user_error(self) -> Iterator[None]:
        """Turn a full disk into a sentence that says how to continue."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot write {self.part}: {error.strerror}; make room and repeat the command: "
                f"it continues after sentence {self.count}"
            ) from error

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error the disk may still be full; the first message is the one to show.
        with self._as_user_error() if kind is None else suppress(OSError):
            self._file.close()


def part_of(path: str | os.PathLike[str]) -> Path:
    """Where a trace is written until it is complete."""
    return Path(path).with_name(f"{Path(path).name}.part")


def _refuse_other_files(path: Path) -> None:
    """Refuse to replace a file that is neither empty nor a trace, whole or cut anywhere."""
    check_replaceable(path)
    try:
        with open(path, "rb") as file:
            begin = file.read(len(MAGIC))
    except OSError:  # it does not exist, or whoever opens it for writing says what is wrong
        return
    if not begin.startswith(_FORMAT) and not MAGIC.startswith(begin.rstrip(b"\0")):
        raise UserError(
            f"{path} exists and is not a trace; give the trace another name, or delete that file"
        )


def is_complete(path: str | os.PathLike[str], header: Header) -> bool:
    """Whether ``path`` already is the complete trace of this very run."""
    try:
        with TraceReader(path) as trace:
            return trace.complete and trace.header.line() == header.line()
    except UserError:
        return False


def _frame(kind: bytes, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload), zlib.crc32(payload, zlib.crc32(kind))) + payload


def _read_frame(descriptor: int, start: int) -> tuple[bytes, bytes] | None:
    """Type and payload of the block at ``start``, or None if it is cut or damaged."""
    head = os.pread(descriptor, _FRAME.size, start)
    if len(head) < _FRAME.size:
        return None
    kind, length, checksum = _FRAME.unpack(head)
    if start + _FRAME.size + length > os.fstat(descriptor).st_size:
        return None
    payload = os.pread(descriptor, length, start + _FRAME.size)
    if zlib.crc32(payload, zlib.crc32(kind)) != checksum:
        return None
    return kind, payload


def _read_header(descriptor: int, path: Path) -> tuple[Header, int]:
    """The header, and where the first block starts."""
    begin = os.pread(descriptor, _HEADER_LIMIT, 0)
    if not begin.startswith(MAGIC):
        raise UserError(
            f"{path} is not a trace of this version; make one with onmt_trace_attention "
            f"(its first line would be {MAGIC.decode().strip()!r})"
        )
    end = begin.find(b"\n", len(MAGIC)) + 1
    try:
        return Header.parse(begin[len(MAGIC) : end]), end
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: its header is damaged; run onmt_trace_attention again") from error


def _index(descriptor: int, start: int) -> tuple[array[int], bool]:
    """Where every whole block starts, and whether the end mark follows the last of them."""
    starts: array[int] = array("Q")
    size = os.fstat(descriptor).st_size
    while start + _FRAME.size <= size:
        kind, length, _ = _FRAME.unpack(os.pread(descriptor, _FRAME.size, start))
        if kind == _END:
            return starts, _counts(_read_frame(descriptor, start), len(starts))
        if kind != _SENTENCE or start + _FRAME.size + length > size:
            break
        starts.append(start)
        start += _FRAME.size + length
    return starts, False


def _counts(end: tuple[bytes, bytes] | None, sentences: int) -> bool:
    """Whether this block is an end mark that counts so many sentences."""
    try:
        return end is not None and json.loads(end[1])["sentences"] == sentences
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


def _difference(old: Header, new: Header) -> str:
    """The first setting in which two runs differ, for a message."""
    for key, before in asdict(old).items():
        after = asdict(new)[key]
        if before != after:
            return f"{key}: {json.dumps(before)} then, {json.dumps(after)} now"
    return "format"


def _lock(descriptor: int, part: Path) -> None:
    """Keep two processes from writing one file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UserError(f"another process is writing {part}; wait for it to end") from error
