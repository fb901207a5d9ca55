"""Reading text so that errors name file and line; writing files whole or not at all."""

from __future__ import annotations

import codecs
import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from onmt_evsoftmax.report.console import UserError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it onto ``path`` only if the block succeeds.

    An exception, a kill or a full disk leaves whatever was at ``path`` before.
    """
    target = Path(path)
    check_replaceable(target)
    # Named before it is made: an interruption at any moment finds it and removes it.
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            why = f"cannot write {target}: {error.strerror}; choose another place"
            raise UserError(why) from error
        try:
            yield temporary
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
        except OSError as error:
            raise cannot_write(target, error) from error
    finally:
        with suppress(OSError):  # it was never made
            temporary.unlink()


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse a pipe or a device, which a file with its name would take the place of."""
    if _is_special(Path(path)):
        raise UserError(f"{path} is not a file but a pipe or a device; give the name of a file")


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def cannot_write(path: str | os.PathLike[str], error: OSError) -> UserError:
    """The error for a write that failed, with what to do when the disk is full."""
    told = f"cannot write {path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        folder = Path(path).resolve().parent
        return UserError(f"{told}; free some space and run the same command again ({folder})")
    return UserError(f"{told}; the file was not changed")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def lines_of(path: str | os.PathLike[str]) -> Iterator[str]:
    r"""Stream the lines of a UTF-8 file without their ``\n``; one without any line is refused.

    ``-`` is standard input.
    """
    name = "standard input" if str(path) == "-" else path
    number = 0
    try:
        with open(0 if str(path) == "-" else path, "rb", closefd=str(path) != "-") as stream:
            for number, line in enumerate(stream, start=1):
                yield decode_line(name, number, line.removesuffix(b"\n"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if number == 0:
        raise UserError(f"{name} is empty; it must have at least one line")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of ``lines_of``, all at once."""
    return list(lines_of(path))


def decode_line(path: str | os.PathLike[str], number: int, line: bytes) -> str:
    """Decode one line of ``path``; on invalid UTF-8 say which file and line.

    A byte order mark before the first line and a ``\\r`` before the ``\\n`` are not text.
    """
    if number == 1:
        line = line.removeprefix(codecs.BOM_UTF8)
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not valid UTF-8 (byte {error.start + 1}); "
            "convert the file, for example with iconv"
        ) from error


def need_file(path: str | os.PathLike[str]) -> None:
    """Refuse a pipe, a device or ``-`` where a file is read twice or from its middle."""
    if str(path) == "-" or _is_special(Path(path)):
        raise UserError(f"{path} is not a file that can be read twice; save it to one first")


def split_name(argument: str) -> tuple[str, str]:
    """``NAME=FILE`` or ``FILE``, whose own name may have an =, as in ``lr=0.5/model.pt``."""
    name, equals, path = argument.partition("=")
    in_folder = "/" in name and not Path(path).exists()
    if not equals or in_folder or Path(argument).exists():
        return "", argument
    if not name or not path:
        raise UserError(f"{argument}: must be FILE or NAME=FILE")
    return name, path


def same_length(files: Sequence[tuple[str | os.PathLike[str], int]]) -> None:
    """Refuse parallel files, each with its number of lines, whose numbers differ."""
    for path, lines in files[1:]:
        first, wanted = files[0]
        if lines != wanted:
            raise UserError(
                f"{first} has {wanted} lines but {path} has {lines}; "
                "they must be parallel, line by line"
            )
