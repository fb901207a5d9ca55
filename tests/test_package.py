"""The package as a whole: what importing it costs, its commands, its helpers for files."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onmt_evsoftmax import __main__
from onmt_evsoftmax.paper import figure1 as simplex
from onmt_evsoftmax.paper import properties
from onmt_evsoftmax.report import console, files
from onmt_evsoftmax.report.console import UserError


def python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_importing_the_package_imports_no_tool():
    heavy = ["onmt", "torch", "matplotlib", "nltk", "sacrebleu"]
    code = f"import sys, onmt_evsoftmax; print([m for m in {heavy} if m in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


def test_the_version_is_one():
    import importlib.metadata

    import onmt_evsoftmax

    assert importlib.metadata.version("onmt_evsoftmax") == onmt_evsoftmax.__version__


# --- commands -------------------------------------------------------------------------------------


def test_figure1_prints_the_papers_numbers_and_draws(tmp_path, capsys):
    target = tmp_path / "figures" / "figure1.svg"
    assert __main__.main(["figure1", "-o", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "evsoftmax    0.2689   0.7311   0.0000" in printed
    assert "<svg" in target.read_text(encoding="utf-8")
    assert simplex.planar((0.4, 1.4, -0.8)) == pytest.approx(
        (-1.905256, 0.1)
    )  # as the paper's tikz


def test_figure1_refuses_an_unknown_format_and_writes_nothing(tmp_path):
    result = python("-m", "onmt_evsoftmax", "figure1", "-o", str(tmp_path / "figure.xyz"))
    assert result.returncode == 2
    assert result.stderr.startswith("onmt_evsoftmax figure1: error:")
    assert "xyz" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_property_table_agrees_with_the_paper(capsys):
    assert properties.main(["--trials", "50", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    marks = {
        title: {
            name: cell["holds"] and ("*" if cell["condition"] else True)
            for name, cell in row.items()
        }
        for title, row in cells.items()
    }
    columns = ("softmax", "sparsemax", "sparsehourglass", "evsoftmax")
    paper = {
        "idempotence": (False, True, True, False),
        "monotonicity": (True, True, True, True),
        "translation invariance": (True, True, "*", True),
        "scale invariance": (False, False, "*", False),
        "full domain": (True, True, True, True),
    }
    for title, expected in paper.items():
        assert tuple(marks[title][name] for name in columns) == expected, title
    for title, row in cells.items():
        for name, cell in row.items():
            assert cell["holds"] or cell["counterexample"], (title, name)
    bounds = {name: cell["bound"] for name, cell in cells["Lipschitz (measured)"].items()}
    assert bounds["softmax"] == pytest.approx(0.5, abs=1e-3)
    assert bounds["sparsemax"] == pytest.approx(1.0)
    assert bounds["evsoftmax"] <= 0.5 + 1e-9
    assert bounds["entmax15"] <= 1.0
    assert cells["Lipschitz (measured)"]["evsoftmax"]["condition"]


# --- console and files ----------------------------------------------------------------------------


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


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new" / "out.txt"
    with files.replacing(target) as temporary:
        temporary.write_text("first")
    assert target.read_text() == "first"

    def fail_half_way():
        with files.replacing(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert target.read_text() == "first"
    assert [p.name for p in target.parent.iterdir()] == ["out.txt"]


def test_unwritable_places_are_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), files.replacing(tmp_path / "file" / "x"):
        pass


def test_a_pipe_is_refused_where_a_file_is_needed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("-", tmp_path / "pipe", os.devnull):
        with pytest.raises(UserError, match="is not a file that can be read twice"):
            files.need_file(path)
    files.need_file(tmp_path / "missing")  # whoever opens it says so


def test_reading_names_file_and_line(tmp_path):
    good, bad, empty = (tmp_path / name for name in ("good", "bad", "empty"))
    good.write_bytes("Grüße\r\nzwei\n\u2028vier\n".encode())
    assert files.read_lines(good) == ["Grüße", "zwei", "\u2028vier"]
    good.write_bytes("\ufeffeins\r\n\ufeffzwei".encode())
    assert files.read_lines(good) == ["eins", "\ufeffzwei"]
    bad.write_bytes(b"eins\nzw\xffei\n")
    with pytest.raises(UserError, match=r"bad, line 2: not valid UTF-8 \(byte 3\)"):
        files.read_lines(bad)
    empty.write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        files.read_lines(empty)
    with pytest.raises(UserError, match=r"cannot read .*missing"):
        files.read_lines(tmp_path / "missing")
    with pytest.raises(UserError, match="a has 2 lines but b has 1"):
        files.same_length([("a", 2), ("b", 1)])


def test_the_readme_session_is_true():
    readme = Path(__file__).parents[1] / "README.md"
    session = re.search(r"```pycon\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)[1]
    test = doctest.DocTestParser().get_doctest(session, {}, "README", "README.md", 0)
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
    assert results.attempted >= 6
    assert results.failed == 0
