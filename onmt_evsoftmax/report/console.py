"""What every command line of this package shares: help, errors a user can act on, exit codes."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn


class UserError(Exception):
    """One sentence for the user: what is wrong, where (file, line, key) and what to do."""

    #: What the user called, if it was not the script itself.
    program: str | None = None


class _Parser(argparse.ArgumentParser):
    """A parser that completes the command line when the shell asks for it."""

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(self)
        return super().parse_args(*args, **kwargs)


def command_line(
    description: str | None, epilog: str, prog: str | None = None
) -> argparse.ArgumentParser:
    """A parser without options whose help keeps the lines of ``description`` and ``epilog``."""
    return _Parser(
        prog=prog or _program(),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


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
    try:
        code = main(None) or 0
        sys.stdout.flush()
    except UserError as error:
        print(f"{error.program or _program()}: error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # The reader (``| head``) went away; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code)


def _terminated(*_: object) -> NoReturn:
    """Schedulers send SIGTERM; exit cleanly so that temporary files are removed."""
    sys.exit(128 + signal.SIGTERM)


# Set while ``onmt_evsoftmax COMMAND`` runs a command, whose usage and errors then say so.
_called_as: str | None = None


@contextmanager
def called(name: str) -> Iterator[None]:
    """Let usage and errors inside this block name the program ``name``."""
    global _called_as
    _called_as = name
    try:
        yield
    except UserError as error:
        error.program = name
        raise
    finally:
        _called_as = None


def _program() -> str:
    """The name the user typed: of the script, or of the package after ``python -m``."""
    if _called_as:
        return _called_as
    folder, name = os.path.split(sys.argv[0])
    return os.path.basename(folder) if name == "__main__.py" else name
