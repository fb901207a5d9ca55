"""The command lines of count_attended and plot_attention on traces, and what all three share."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import traces
from commands import ROOT, examples, run, tool

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace import TraceWriter, encode


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with three traces and alignments."""
    monkeypatch.chdir(tmp_path)
    for normalizer in ("softmax", "sparsemax", "evsoftmax"):
        traces.write(tmp_path / f"{normalizer}.trace", 4, normalizer)
    (tmp_path / "gold.align").write_text("0-0 1-2 2-0 3?1 4-3\n0-0 1-1\n0-0\n0-0\n")
    return tmp_path


@pytest.mark.parametrize("name", ["onmt_count_attended", "onmt_plot_attention"])
def test_the_examples_of_help_run(folder: Path, name: str) -> None:
    for line in examples(name):
        if "--model" in line:
            continue
        assert run(line) == 0
        for option, path in re.findall(r"(-o) (\S+)", line):
            assert (folder / path).stat().st_size > 0, (option, path)


@pytest.mark.parametrize("name", ["trace_attention", "count_attended", "plot_attention"])
def test_tools_run_from_a_checkout(folder: Path, name: str) -> None:
    help_text = tool(name, "--help", folder)
    assert help_text.returncode == 0
    assert "examples:" in help_text.stdout
    wrong = tool(name, "absent.trace -o x.svg", folder)
    assert wrong.returncode == 2
    if name != "trace_attention":
        assert wrong.stderr.count("\n") == 1
        assert f"{name}.py: error: cannot read absent.trace: No such file" in wrong.stderr
    assert not (folder / "x.svg").exists()


def test_counting_prints_text_json_or_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("onmt_count_attended softmax.trace ev=evsoftmax.trace --by kind")
    text = capsys.readouterr().out
    assert "softmax  context" in text.replace("   ", "  ")
    assert re.search(r"^ev ", text, re.MULTILINE)
    run("onmt_count_attended evsoftmax.trace --json --kinds context")
    (entry,) = json.loads(capsys.readouterr().out)
    assert list(entry["kinds"]) == ["context"]
    run("onmt_count_attended evsoftmax.trace -o a.json -o a.md -o a.png")
    assert capsys.readouterr().out == ""
    written = json.loads((folder / "a.json").read_text(encoding="utf-8"))
    assert written[0]["kinds"]["context"] == entry["kinds"]["context"]
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


def test_names_tell_traces_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces.write(folder / "second.trace", 2, "evsoftmax")
    run("onmt_count_attended evsoftmax.trace second.trace softmax.trace --by paper")
    assert re.search(r" evsoftmax +second +softmax", capsys.readouterr().out)
    with pytest.raises(UserError, match="two inputs are called 'x'"):
        run("onmt_count_attended x=evsoftmax.trace x=softmax.trace")


def test_an_unfinished_trace_is_counted_and_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "evsoftmax.trace"
    path.write_bytes(path.read_bytes()[:-50])
    run("onmt_count_attended evsoftmax.trace --by kind")
    streams = capsys.readouterr()
    assert "warning: evsoftmax.trace is not finished, it has 3 sentences" in streams.err
    assert "ev-softmax 3" in streams.out


BAD = [
    ("onmt_count_attended", "give traces to count, or --model and --src"),
    ("onmt_count_attended a.trace", "cannot read a.trace: No such file"),
    ("onmt_count_attended gold.align", "gold.align is not a trace"),
    ("onmt_count_attended softmax.trace -o x.xls", r"-o x.xls: the ending must be one of"),
    ("onmt_count_attended softmax.trace --model m.pt", "give traces to count, or --model"),
    ("onmt_count_attended --model m.pt", "needs a text to run on: --src"),
    ("onmt_count_attended lm.trace --kinds context -o x.txt", "has no context attention"),
    ("onmt_count_attended lm.trace --align gold.align -o x.txt", "need context attention"),
    ("onmt_count_attended softmax.trace --align short.align -o x.txt", "short.align has 1 lines"),
    ("onmt_count_attended softmax.trace --align bad.align -o x.txt", "bad.align, line 2: '1:1'"),
    ("onmt_count_attended softmax.trace --align latin.align -o x.txt", "line 1: not valid UTF-8"),
    ("onmt_count_attended softmax.trace --align empty -o x.txt", "empty is empty"),
    ("onmt_count_attended softmax.trace --align far.align -o x.txt", "needs 100 source words"),
    ("onmt_count_attended softmax.trace -o gold.align/x.txt", "cannot write"),
    ("onmt_plot_attention -o x.png", "give at least one trace to draw"),
    ("onmt_plot_attention softmax.trace -o x.gif", "the ending must be one of"),
    ("onmt_plot_attention softmax.trace -o x", "the ending must be one of"),
    ("onmt_plot_attention softmax.trace --sentence 5 -o x.png", "there are 4, counted from 1"),
    ("onmt_plot_attention softmax.trace --sentence 1-2 -o x.png", "a page .* shows many"),
    ("onmt_plot_attention softmax.trace --head 5 -o x.png", "--head 5: there are 4"),
    ("onmt_plot_attention softmax.trace --layer 0 -o x.png", "--layer 0: there are 2"),
    ("onmt_plot_attention softmax.trace --layer x -o x.png", "--layer x: must be numbers"),
    ("onmt_plot_attention lm.trace --kind context -o x.png", "has no context attention, only"),
    ("onmt_plot_attention softmax.trace --bars 99 -o x.png", "--bars 99: there are 8 rows"),
    ("onmt_plot_attention softmax.trace other.trace --bars -o x.png", "differ in their tokens"),
    ("onmt_plot_attention softmax.trace other.trace -o x.html", "has 4 sentences but .* has 1"),
    ("onmt_plot_attention softmax.trace evsoftmax.trace -o x.pt", "one trace for a .pt file"),
    ("onmt_plot_attention softmax.trace --simplex -o x.png", "takes no trace"),
    ("onmt_plot_attention --simplex --bars -o x.png", "--bars changes nothing in the simplex"),
    ("onmt_plot_attention softmax.trace --bars -o x.html", "--bars changes nothing in a page"),
    ("onmt_plot_attention softmax.trace --head all -o x.html", "--head changes nothing in a page"),
    (
        "onmt_plot_attention softmax.trace --bars --values -o x.png",
        "--values changes nothing in bars",
    ),
    ("onmt_plot_attention softmax.trace --kind encoder --align gold.align -o x.png", "of context"),
    ("onmt_plot_attention softmax.trace --values -o x.pt", "--values changes nothing in a file"),
    (
        "onmt_plot_attention softmax.trace --title Eins -o x.svg",
        "--title changes nothing in heatmaps",
    ),
    ("onmt_plot_attention --simplex -o x.html", "--simplex draws .png .svg .pdf"),
    ("onmt_plot_attention softmax.trace --align far.align -o x.html", "needs 100 source words"),
    ("onmt_plot_attention softmax.trace --align far.align -o x.html", "far.align, line 1: link"),
    ("onmt_plot_attention softmax.trace --align short.align -o x.html", "short.align has 1 lines"),
    ("onmt_plot_attention softmax.trace --align short.align --sentence 2 -o x.png", "has 1 lines"),
    ("onmt_plot_attention pipe -o x.html", "pipe is not a file that can be read twice"),
    ("onmt_plot_attention blank.trace -o x.png", "sentence 1 is empty; choose another"),
    ("onmt_plot_attention none.trace -o x.html", "has no sentence yet"),
    ("onmt_plot_attention softmax.trace --bars 0 -o x.png", "must be a whole number from 1 up"),
    ("onmt_trace_attention --model m --src s --beam-size 0 -o x", "from 1 to 1000, not 0"),
    ("onmt_trace_attention --model m --src s --max-length 0 -o x", "from 1 to 100000, not 0"),
    ("onmt_trace_attention --model m --src s --gpu -2 -o x", "a whole number from -1 up, not -2"),
    ("onmt_trace_attention --model m --src gold.align --gpu 7 -o x", "--gpu 7: torch finds"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_input_gets_a_sentence_and_no_file(folder: Path, line: str, message: str) -> None:
    (folder / "short.align").write_text("0-0\n")
    (folder / "bad.align").write_text("0-0\n1:1\n")
    (folder / "latin.align").write_bytes(b"0-0 \xff\n")
    (folder / "far.align").write_text("99-0\n\n\n\n")
    (folder / "empty").touch()
    (folder / "pipe").symlink_to(os.devnull)
    with TraceWriter(folder / "lm.trace", traces.header(kinds=["decoder"])) as writer:
        writer.append(encode(traces.record(kinds=["decoder"])))
        writer.finish()
    with TraceWriter(folder / "other.trace", traces.header("sparsemax")) as writer:
        writer.append(encode(traces.record(1, normalizer="sparsemax")))
        writer.finish()
    with TraceWriter(folder / "blank.trace", traces.header()) as writer:
        writer.append(encode(traces.blank()))
        writer.finish()
    with TraceWriter(folder / "none.trace", traces.header()) as writer:
        writer.finish()
    before = sorted(folder.rglob("*"))
    with pytest.raises(UserError, match=message) as caught:
        run(line)
    assert "\n" not in str(caught.value)
    assert sorted(folder.rglob("*")) == before


def test_alignments_of_a_longer_text_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "long.align").write_text("0-0\n" * 9)
    run("onmt_count_attended softmax.trace --align long.align")
    assert "warning: long.align has 9 lines but" in capsys.readouterr().err


def test_a_page_of_a_long_trace_has_its_beginning(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onmt_evsoftmax.plot.plot_attention.PAGE_SENTENCES", 3)
    run("onmt_plot_attention softmax.trace -o page.html")
    assert "first 3 of 4 sentences; choose others with --sentence" in capsys.readouterr().err
    assert (folder / "page.html").read_text(encoding="utf-8").count('id="s0.') == 3
    run("onmt_plot_attention softmax.trace --sentence 2,4 -o page.html")
    assert (folder / "page.html").read_text(encoding="utf-8").count('id="s0.') == 2
    assert not capsys.readouterr().err


def test_the_benchmark_of_a_long_text_runs(tmp_path: Path) -> None:
    pytest.importorskip("onmt", reason="it traces a checkpoint of OpenNMT-py")
    old = ROOT / "tests" / "legacy"
    options = f"--model {old}/evsoftmax_step_30.pt --src {old}/t.en --tgt {old}/t.de --sentences 10"
    done = tool("bench_trace", options, tmp_path)
    assert done.returncode == 0, done.stderr
    for step in ("trace", "count", "page"):
        assert re.search(rf"^{step} .* ms a sentence", done.stdout, re.MULTILINE)
