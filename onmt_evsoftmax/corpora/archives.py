"""One file out of a tar, zip or gz archive, with errors that say when the archive is broken."""

from __future__ import annotations

import gzip
import lzma
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import decode_line

_TAR = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
_BROKEN = (
    EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile,
    RuntimeError,  # a zip archive that is encrypted, or packed in a way that Python cannot unpack
)  # fmt: skip


@contextmanager
def _broken_is_told(archive: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise UserError(
            f"{archive} is truncated or damaged ({error or type(error).__name__}); "
            "delete it and fetch it again"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read {archive}: {error.strerror or error}") from error


def member_lines(archive: Path, member: str | None) -> Iterator[str]:
    """Stream the lines of the file called ``member``, in whatever folder of ``archive`` it is.

    ``member`` is None for a ``.gz`` or a plain file, which hold one text. Errors name both.
    """
    where = f"{archive}:{member}" if member else str(archive)
    with _broken_is_told(archive), _opened(archive, member) as stream:
        for number, line in enumerate(stream, start=1):
            yield decode_line(where, number, line.removesuffix(b"\n"))


def check_whole(archive: Path) -> None:
    """Read an archive to its end, so that one which was cut off is told."""
    with _broken_is_told(archive):
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as zipped:
                damaged = zipped.testzip()
            if damaged is not None:
                raise zipfile.BadZipFile(f"its file {damaged}")
        elif archive.name.endswith(_TAR):
            with tarfile.open(archive, "r:*") as tar:
                for _ in tar:
                    pass
        elif archive.suffix == ".gz":
            with gzip.open(archive, "rb") as stream:
                while stream.read(1 << 20):
                    pass


@contextmanager
def _opened(archive: Path, member: str | None) -> Iterator[IO[bytes]]:
    if member is None:
        if archive.name.endswith((".zip", *_TAR)):
            raise UserError(f"{archive} is an archive; name the file inside it: {archive}::FILE")
        opener = gzip.open if archive.suffix == ".gz" else open
        with opener(archive, "rb") as stream:
            yield stream  # type: ignore[misc]
    elif zipfile.is_zipfile(archive) or archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            name = _find(archive, member, zipped.namelist())
            with zipped.open(name) as stream:
                yield stream
    else:
        with tarfile.open(archive, "r:*") as tar:
            names = {}
            for entry in tar:
                if entry.isfile():
                    names[entry.name] = entry
                    if posixpath.basename(entry.name) == member:
                        break  # a gigabyte need not be read to its end
            extracted = tar.extractfile(names[_find(archive, member, list(names))])
            assert extracted is not None  # it is a regular file
            with extracted:
                yield extracted


def _find(archive: Path, member: str, names: list[str]) -> str:
    for name in names:
        if posixpath.basename(name) == member:
            return name
    some = ", ".join(sorted(posixpath.basename(name) for name in names)[:8]) or "nothing"
    raise UserError(f"{archive} has no file {member}; it has {some}")
