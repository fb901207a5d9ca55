"""A small part of the fuzzing, and proof that it notices what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzzing.py")

#: Broken commands, each with a case that must be reported.
BROKEN = {
    "raise KeyError('x')": "a traceback: ",
    "open('a.txt', 'w').close()": "a.txt was changed, which is no output",
    "open('b.txt', 'a').write('x'); raise UserError('no')": "exit code 2, but changed",
    "raise UserError('')": "not one sentence",
    "return 1": "exit code 1",
}


@pytest.mark.slow
def test_random_command_lines_work_or_say_one_sentence() -> None:
    """Other seeds, and thousands of cases: python tests/fuzzing.py --help."""
    command = [
        sys.executable,
        str(SCRIPT),
        "--cases",
        "60",
        "--stock",
        "20",
        "--programs",
        "4",
        "--seed",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "84 cases" in done.stdout


@pytest.mark.parametrize("body", BROKEN)
def test_a_broken_command_is_noticed(body: str, tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import fuzzing
from pathlib import Path
from onmt_evsoftmax.paper import study
from onmt_evsoftmax.report.console import UserError

def main(argv):
    {body}

study.main = main
box = fuzzing.Sandbox(Path({str(tmp_path / "box")!r}))
case = fuzzing.Case(("study",), ("a.txt",), frozenset(["out.txt"]))
print(box.run(case))
print(fuzzing.contents(box.folder) == box.before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    problems, restored = done.stdout.splitlines()
    assert BROKEN[body] in problems, done.stderr
    assert restored == "True"
