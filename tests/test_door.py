"""The program ``onmt_evsoftmax``: lists every command, starts light, completes in the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onmt_evsoftmax import __main__ as door
from onmt_evsoftmax.corpora import VERBS
from onmt_evsoftmax.report.console import UserError

PROGRAM = Path(sys.executable).with_name("onmt_evsoftmax")


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    if not PROGRAM.exists():
        pytest.skip("the programs need the package installed here: pip install -e .")
    return subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_help_lists_every_command_and_imports_nothing_heavy():
    told = program("--help", PYTHONPROFILEIMPORTTIME="1")
    assert told.returncode == 0
    listed = {name: about for name, (_, about) in door.COMMANDS.items()} | VERBS
    for name, about in listed.items():
        assert any(line.split() == [name, *about.split()] for line in told.stdout.splitlines())
    for heavy in ("torch", "numpy", "matplotlib", "argcomplete", "yaml"):
        assert f"| {heavy}\n" not in told.stderr.replace(" ", "").replace("|", "| ")


def test_importing_the_package_imports_no_tool():
    heavy = ["onmt", "torch", "matplotlib", "nltk", "sacrebleu"]
    code = f"import sys, onmt_evsoftmax; print([m for m in {heavy} if m in sys.modules])"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_at_all_is_help():
    assert program().stdout == program("--help").stdout


@pytest.mark.parametrize("name", door.COMMANDS)
def test_every_command_says_how_it_was_called_and_shows_an_example(name):
    told = program(name, "--help")
    assert told.returncode == 0
    assert told.stdout.startswith(f"usage: onmt_evsoftmax {name} ")
    assert "example" in told.stdout.lower()


def test_a_short_form_is_the_same_command():
    for short, name in door.SHORT.items():
        told = subprocess.run(
            [PROGRAM.with_name(short), "--help"], capture_output=True, text=True, check=True
        ).stdout
        _, _, body = program(name, "--help").stdout.partition("\n\n")
        assert told.startswith(f"usage: {short} ")
        assert told.endswith(body)


def test_the_nearest_command_is_named():
    with pytest.raises(UserError, match="did you mean properties"):
        door.main(["propertys"])
    told = program("scroe")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith(
        "onmt_evsoftmax: error: unknown command 'scroe' (did you mean score"
    )


def test_an_error_names_the_command():
    told = program("count", "no-such-file.trace")
    assert told.returncode == 2
    assert told.stderr.startswith("onmt_evsoftmax count: error: ")
    assert len(told.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("onmt_evsoftmax pro", "properties"),
        ("onmt_evsoftmax score --met", "--metrics"),
        ("onmt_evsoftmax corpora toke", "tokenise"),
    ],
)
def test_the_shell_completes(tmp_path, line, expected):
    answer = tmp_path / "answer"
    program(
        _ARGCOMPLETE="1",
        _ARGCOMPLETE_STDOUT_FILENAME=str(answer),
        COMP_LINE=line,
        COMP_POINT=str(len(line)),
        COMP_TYPE="9",
    )
    assert expected in answer.read_text()
