"""The files that commands read and write: checked first, written all or none."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import traces
from scoring_texts import sample_report

from onmt_evsoftmax.attended import AlignmentScores, Counts, parse_line
from onmt_evsoftmax.attended.tables import TABLES, Entry, Report
from onmt_evsoftmax.report import files
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.latex import escape
from onmt_evsoftmax.report.outputs import check_outputs, write_outputs
from onmt_evsoftmax.report.table import Table, render


def test_bad_outputs_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("kept")
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for paths, message in (
        (["a.doc"], r"-o a.doc: the ending must be one of .txt .tex"),
        (["a"], "the ending must be one of"),
        ([str(tmp_path / "folder.txt")], "it is a folder"),
        ([str(tmp_path / "file.txt" / "a.txt")], "cannot write into"),
        ([str(tmp_path / "pipe.txt")], "pipe.txt is not a file but a pipe or a device"),
        (["a.txt", "./a.txt"], "two outputs have the same name"),
    ):
        with pytest.raises(UserError, match=message):
            check_outputs(paths, [".txt", ".tex"])
    check_outputs([str(tmp_path / "new" / "folder" / "a.TXT")], [".txt"])
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "folder.txt", "pipe.txt"]
    with pytest.raises(UserError, match="a pipe or a device"):
        write_outputs({str(tmp_path / "pipe.txt"): "text"})
    check_outputs([str(tmp_path / "pipe.txt")], option="-output")  # which OpenNMT-py writes into


def test_all_outputs_are_written_or_none(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        path.write_text("half")
        raise UserError("no ink")

    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(UserError, match="no ink"):
        write_outputs({str(tmp_path / "a.txt"): "new", str(tmp_path / "b.png"): fails})
    assert os.listdir(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"
    write_outputs({str(tmp_path / "a.txt"): "new", str(tmp_path / "folder" / "b.png"): Path.touch})
    assert (tmp_path / "a.txt").read_text() == "new"
    assert os.listdir(tmp_path / "folder") == ["b.png"]
    with pytest.raises(UserError, match="cannot write"):
        write_outputs({str(tmp_path / "a.txt" / "x"): "text"})


@pytest.mark.parametrize("call", ["os.open", "os.close", "os.chmod", "os.replace"])
def test_an_interruption_at_any_moment_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Ctrl-C right after the temporary file was made, for example."""
    (tmp_path / "a.txt").write_text("old")
    original = getattr(os, call.removeprefix("os."))

    def interrupted(*arguments: object) -> object:
        done = original(*arguments)
        if call != "os.replace":
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), call[3:]: interrupted}))
    with contextlib.suppress(KeyboardInterrupt):
        write_outputs({str(tmp_path / "a.txt"): "new"})
    assert os.listdir(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == ("new" if call == "os.replace" else "old")


def test_a_pipe_is_refused_where_a_file_is_needed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("-", tmp_path / "pipe", os.devnull):
        with pytest.raises(UserError, match="is not a file that can be read twice"):
            files.need_file(path)
    files.need_file(tmp_path / "missing")  # whoever opens it says so


def test_reading_names_file_and_line(tmp_path: Path) -> None:
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


def latex_tables() -> dict[str, str]:
    """Everything the tools write as LaTeX, with names that LaTeX would misread."""
    entries = []
    for name in ("α-entmax", "a_b & 50% #1 {x} $y$ ~^\\ <s>|", "ev-softmax → 1…2"):
        counts = Counts(header := traces.header(layers=6, heads=8))
        scores = AlignmentScores(header, [parse_line("0-0 1?0", "")] * 3, "gold")
        for index in range(3):
            item = traces.record(index, layers=6, heads=8)
            counts.add(item)
            scores.add(item)
        entries.append(Entry(name, counts, scores))
    report = Report(entries)
    tables = {by: render(report.tables([by]), ".tex") for by in TABLES}
    return {**tables, "scores": sample_report().latex(2)}


@pytest.mark.parametrize("name", [*TABLES, "scores"])
def test_latex_compiles_without_a_complaint(tmp_path: Path, name: str) -> None:
    if not shutil.which("pdflatex"):
        pytest.skip("NO LATEX, tables were not compiled: apt-get install texlive-latex-recommended")
    page = r"\documentclass{article}\usepackage[a4paper,margin=2cm]{geometry}"
    page += r"\usepackage{booktabs,longtable,graphicx}\begin{document}\input{table}\end{document}"
    (tmp_path / "page.tex").write_text(page)
    (tmp_path / "table.tex").write_text(latex_tables()[name], encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    log = result.stdout.decode(errors="replace")
    assert result.returncode == 0, log
    assert "too large" not in log
    assert "Missing character" not in log


def test_latex_escapes_what_it_would_print_as_something_else() -> None:
    assert escape("|A| < 5 % of α") == r"\textbar{}A\textbar{} \textless{} 5 \% of $\alpha$"


def test_a_long_table_is_broken_over_pages() -> None:
    rows = [[str(n), "1.0 ± 0.1"] for n in range(100)]
    assert r"\begin{longtable}{@{}lr@{}}" in Table("t", ["a", "n"], rows).latex()
    assert r"\begin{table}" in Table("t", ["a", "n"], rows[:45]).latex()
