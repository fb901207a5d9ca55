"""What every command line of this package shares: help, errors a user can act on, exit codes."""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import onmt_evsoftmax


class UserError(Exception):
    """One sentence for the user: what is wrong, where (file, line, key) and what to do."""


class _Parser(argparse.ArgumentParser):
    """A parser that knows the version, completes for the shell and tells mistakes in a sentence.

    Its help keeps the lines of description and epilog; so does that of its sub-commands.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})
        self.add_argument(
            "--version",
            action="version",
            version=f"onmt_evsoftmax {onmt_evsoftmax.__version__}",
            help="print the version of onmt_evsoftmax",
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(self)
        return super().parse_args(*args, **kwargs)


def command_line(description: str | None, epilog: str) -> argparse.ArgumentParser:
    """A parser without options, for the program that the user called."""
    return _Parser(prog=_program(), description=description, epilog=epilog)


def whole(least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """For argparse's ``type``: a whole number from ``least`` to ``most``."""
    return _ranged(int, "a whole number", least, most)


def real(least: float = 0, most: float | None = None) -> Callable[[str], float]:
    """For argparse's ``type``: a finite number from ``least`` to ``most``."""
    return _ranged(float, "a number", least, most)


def _ranged(
    kind: Callable[[str], Any], what: str, least: float, most: float | None
) -> Callable[[str], Any]:
    span = f"from {least} up" if most is None else f"from {least} to {most}"

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        # NaN compares as False, and infinity is no number to count or measure with.
        if not (value >= least and (value <= most if most is not None else value < math.inf)):
            shown = text if len(text) <= 40 else f"{text[:40]}…"
            raise argparse.ArgumentTypeError(f"must be {what} {span}, not {shown}")
        return value

    return parse


def warn(message: str) -> None:
    """One line on standard error about something that is odd but no reason to stop."""
    print(f"warning: {message}", file=sys.stderr)


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is, or None if it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The start of a sentence: this name is unknown, the nearest one, and all there are."""
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {nearest[0]}?)" if nearest else ""
    return f"unknown {kind} {name!r}{hint}; known: {', '.join(names) or 'none'}"


def run(main: Callable[[Sequence[str] | None], int | None]) -> NoReturn:
    """Run ``main(argv)`` as a process: exit 0 or its result, 2 with one line on a UserError."""
    signal.signal(signal.SIGTERM, _terminated)
    _open_output()
    try:
        code = main(None) or 0
        sys.stdout.flush()
    except UserError as error:
        code = _failed(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # the reader (``| head``) went away
        _drop_output()
        code = 141
    except OSError as error:
        message = _explained(error)
        if message is None:
            raise
        code = _failed(message)
    except UnicodeEncodeError as error:  # what Python makes of such a name is no text
        near = error.object[max(error.start - 20, 0) : error.end + 20]
        code = _failed(f"{near!a}: a name must be UTF-8; give the file another one")
    sys.exit(code)


def _failed(message: str) -> int:
    print(f"{_program()}: error: {message}".replace("\n", r"\n"), file=sys.stderr)
    return 2


def _open_output() -> None:
    """Texts and tables are UTF-8 in every locale; output that was closed is thrown away."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    elif sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)


def _drop_output() -> None:
    """Keep the interpreter from complaining at exit that what is left cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explained(error: OSError) -> str | None:
    """A sentence for what can be wrong with any file, wherever it is looked at."""
    if error.errno == errno.ENAMETOOLONG:
        return f"{os.fsdecode(error.filename)[:40]}…: the name of the file is too long"
    if error.errno == errno.EACCES and error.filename is not None:
        return f"cannot use {os.fsdecode(error.filename)}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error.filename is None:
        _drop_output()
        return f"cannot write standard output: {error.strerror}"
    return None


def _terminated(*_: object) -> NoReturn:
    """Schedulers send SIGTERM; exit cleanly so that temporary files are removed."""
    sys.exit(128 + signal.SIGTERM)


def _program() -> str:
    """The name the user typed: of the script, or of the package after ``python -m``."""
    folder, name = os.path.split(sys.argv[0])
    return os.path.basename(folder) if name == "__main__.py" else name
