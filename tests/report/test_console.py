"""What every command line shares: one sentence for a mistake, ranges of numbers, the version."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys

import pytest

import onmt_evsoftmax
from onmt_evsoftmax import __main__ as door
from onmt_evsoftmax.report import console
from onmt_evsoftmax.report.console import UserError, command_line, real, whole


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (whole(1), "1", 1),
        (whole(1, 10), "10", 10),
        (whole(-1), "-1", -1),
        (real(0), "0", 0.0),
        (real(0, 3600), "2.5", 2.5),
        (real(0), "1e3", 1000.0),
    ],
)
def test_numbers_in_their_range(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (whole(1), "0", "must be a whole number from 1 up, not 0"),
        (whole(1, 10), "11", "must be a whole number from 1 to 10, not 11"),
        (whole(0), "1.5", "must be a whole number from 0 up, not 1.5"),
        (whole(0), "many", "must be a whole number from 0 up, not many"),
        (whole(0), "9" * 5000, "must be a whole number from 0 up, not 999"),
        (real(0), "nan", "must be a number from 0 up, not nan"),
        (real(0), "inf", "must be a number from 0 up, not inf"),
        (real(1, 9), "-1e400", "must be a number from 1 to 9, not -1e400"),
    ],
)
def test_numbers_out_of_range_get_a_sentence(kind, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as told:
        kind(text)
    assert str(told.value).startswith(message)
    assert len(str(told.value)) < 120


def test_a_mistake_on_the_command_line_is_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bin/onmt_tool"])
    parser = command_line("about", "")
    parser.add_argument("--size", type=whole(1))
    with pytest.raises(UserError) as told:
        parser.parse_args(["--size", "0"])
    assert str(told.value) == (
        "argument --size: must be a whole number from 1 up, not 0; see onmt_tool --help"
    )


@pytest.mark.parametrize("name", door.COMMANDS)
def test_every_command_knows_its_version(name, capsys):
    main = importlib.import_module(f"onmt_evsoftmax.{door.COMMANDS[name][0]}").main
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert onmt_evsoftmax.__version__ in capsys.readouterr().out


def ran(code: str, *, redirected: str = "", **environment: str) -> subprocess.CompletedProcess:
    """A process that runs ``main``, which ``code`` defines."""
    before = "from pathlib import Path\nfrom onmt_evsoftmax.report.console import UserError, run\n"
    words = [sys.executable, "-c", f"{before}{code}\nrun(main)"]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *words],
        capture_output=True, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def test_a_message_stays_on_one_line():
    told = ran("def main(_): raise UserError('cannot read a\\nb')")
    assert told.returncode == 2
    assert told.stderr.count(b"\n") == 1
    assert rb"cannot read a\nb" in told.stderr


def test_a_name_that_is_too_long_is_a_mistake():
    told = ran("def main(_): Path('n' * 300).stat()")
    assert told.returncode == 2
    assert told.stderr.decode().endswith("nnn…: the name of the file is too long\n")
    assert len(told.stderr) < 120


def test_a_folder_that_may_not_be_looked_into_is_told():
    told = ran("def main(_): raise PermissionError(13, 'Permission denied', 'locked/file')")
    assert (told.returncode, told.stderr.count(b"\n")) == (2, 1)
    assert told.stderr.endswith(b"error: cannot use locked/file: Permission denied\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
@pytest.mark.parametrize("size", [1, 10**6])
def test_output_that_cannot_be_written_is_told_once(size):
    told = ran(f"def main(_): print('x' * {size})", redirected=">/dev/full")
    assert told.returncode == 2
    assert told.stderr.endswith(b"error: cannot write standard output: No space left on device\n")
    assert told.stderr.count(b"\n") == 1


def test_output_that_was_closed_is_not_missed():
    told = ran("import sys\ndef main(_): sys.stdout.write('text')", redirected=">&-")
    assert (told.returncode, told.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_is_utf8_in_every_locale(encoding):
    told = ran("def main(_): print('± ↓ caf\\udce9')", PYTHONIOENCODING=encoding)
    assert (told.returncode, told.stderr) == (0, b"")
    assert told.stdout == "± ↓ caf".encode() + b"\xe9\n"


def test_a_name_that_is_no_utf8_is_told():
    told = ran("def main(_): 'the name caf\\udce9.txt'.encode()")
    assert (told.returncode, told.stderr.count(b"\n")) == (2, 1)
    assert rb"caf\udce9.txt': a name must be UTF-8" in told.stderr


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (UserError("train.de, line 3: empty"), 2, "error: train.de, line 3: empty"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 141, ""),
        (None, 0, ""),
    ],
)
def test_exit_codes(raised, code, says, capfd):
    def main(_argv):
        if raised:
            raise raised
        return 0

    saved = os.dup(1)  # a broken pipe makes run() point stdout elsewhere
    with pytest.raises(SystemExit) as stop:
        console.run(main)
    os.dup2(saved, 1)
    assert stop.value.code == code
    assert says in capfd.readouterr().err
