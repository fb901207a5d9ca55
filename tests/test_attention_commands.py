"""The command lines of trace_attention, count_attended and plot_attention, as a user runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import traces

from onmt_evsoftmax.console import UserError
from onmt_evsoftmax.heatmap import command as plot
from onmt_evsoftmax.support import command as count
from onmt_evsoftmax.trace import TraceReader
from onmt_evsoftmax.trace import command as trace

ROOT = Path(__file__).parent.parent
COMMANDS = {
    "onmt_trace_attention": trace,
    "onmt_count_attended": count,
    "onmt_plot_attention": plot,
}
needs_models = pytest.mark.skipif(
    importlib.util.find_spec("onmt_evsoftmax.opennmt") is None,
    reason="needs the OpenNMT-py plugin, onmt_evsoftmax.opennmt",
)


def tool(name: str, arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run tools/NAME.py in a process of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / f"{name}.py"), *shlex.split(arguments)],
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run(line: str) -> int:
    """Run a command line inside this process, which is faster."""
    name, *arguments = shlex.split(line)
    return COMMANDS[name].main(arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with three traces and alignments."""
    monkeypatch.chdir(tmp_path)
    for normalizer in ("softmax", "sparsemax", "evsoftmax"):
        traces.write(tmp_path / f"{normalizer}.trace", 4, normalizer)
    (tmp_path / "gold.align").write_text("0-0 1-2 2-0 3?1 4-3\n0-0 1-1\n0-0\n0-0\n")
    return tmp_path


@pytest.fixture(scope="module")
def checkpoint_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import checkpoints
    import models

    folder = tmp_path_factory.mktemp("models")
    for name, options in (("softmax", []), ("evsoftmax", ["-attention_normalizer", "evsoftmax"])):
        base = [*models.TRANSFORMER, "-position_encoding"]  # which ends at 5000 tokens
        checkpoints.save(folder / f"{name}.pt", *base, *options)
    checkpoints.text(folder / "test.en", checkpoints.SOURCE)
    checkpoints.text(folder / "test.de", checkpoints.TARGET)
    return folder


@pytest.fixture
def model_folder(folder: Path, checkpoint_files: Path) -> Path:
    for path in checkpoint_files.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def examples(name: str) -> list[str]:
    text = COMMANDS[name].make_parser().format_help().replace("\\\n", " ")
    found = [line.strip()[2:] for line in text.splitlines() if line.strip().startswith("$ ")]
    assert found
    return found


@pytest.mark.parametrize("name", ["onmt_count_attended", "onmt_plot_attention"])
def test_the_examples_of_help_run(folder: Path, name: str) -> None:
    for line in examples(name):
        if "--model" in line:
            continue
        assert run(line) == 0
        for option, path in re.findall(r"(-o) (\S+)", line):
            assert (folder / path).stat().st_size > 0, (option, path)


@needs_models
def test_the_examples_with_models_run(model_folder: Path) -> None:
    lines = [
        line
        for name in COMMANDS
        for line in examples(name)
        if name == "onmt_trace_attention" or "--model" in line
    ]
    assert len(lines) >= 5
    for line in lines:
        assert run(f"{line} --max-length 8" if "--model" in line else line) == 0
    with TraceReader(model_folder / "posthoc.trace") as posthoc:
        assert posthoc.header.label == "evsoftmax"
        assert list(posthoc.header.kinds) == ["context"]
        assert posthoc.header.model["name"] == "softmax.pt"


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
    ("onmt_plot_attention --simplex -o x.html", "--simplex draws .png .svg .pdf"),
    ("onmt_plot_attention softmax.trace --align far.align -o x.html", "needs 100 source words"),
    ("onmt_plot_attention blank.trace -o x.png", "sentence 1 is empty; choose another"),
    ("onmt_plot_attention none.trace -o x.html", "has no sentence yet"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_input_gets_a_sentence_and_no_file(folder: Path, line: str, message: str) -> None:
    (folder / "short.align").write_text("0-0\n")
    (folder / "bad.align").write_text("0-0\n1:1\n")
    (folder / "latin.align").write_bytes(b"0-0 \xff\n")
    (folder / "far.align").write_text("99-0\n\n\n\n")
    (folder / "empty").touch()
    with trace.TraceWriter(folder / "lm.trace", traces.header(kinds=["decoder"])) as writer:
        writer.append(trace.encode(traces.record(kinds=["decoder"])))
        writer.finish()
    with trace.TraceWriter(folder / "other.trace", traces.header("sparsemax")) as writer:
        writer.append(trace.encode(traces.record(1, normalizer="sparsemax")))
        writer.finish()
    with trace.TraceWriter(folder / "blank.trace", traces.header()) as writer:
        writer.append(trace.encode(traces.blank()))
        writer.finish()
    with trace.TraceWriter(folder / "none.trace", traces.header()) as writer:
        writer.finish()
    before = sorted(folder.rglob("*"))
    with pytest.raises(UserError, match=message) as caught:
        run(line)
    assert "\n" not in str(caught.value)
    assert sorted(folder.rglob("*")) == before


BAD_MODELS = [
    ("--model absent.pt --src test.en", "absent.pt"),
    ("--model test.en --src test.en", "test.en"),
    ("--model softmax.pt --src absent", "cannot read absent"),
    ("--model softmax.pt --src empty", "empty is empty"),
    ("--model softmax.pt --src latin", "latin, line 2: not valid UTF-8"),
    ("--model softmax.pt --src test.en --tgt short", "test.en has 4 lines but short has 1"),
    ("--model softmax.pt --src test.en --attention-normalizer softmaxx", "softmax"),
    ("--model softmax.pt --src test.en --subword-model absent.model", "cannot read absent.model"),
    ("--model softmax.pt --src long --tgt long", "long, line 1: the model cannot run on this"),
]


@needs_models
@pytest.mark.parametrize(("arguments", "message"), BAD_MODELS)
def test_bad_models_and_texts_get_a_sentence_and_no_file(
    model_folder: Path, arguments: str, message: str
) -> None:
    (model_folder / "empty").touch()
    (model_folder / "latin").write_bytes(b"a\n\xe4\n")
    (model_folder / "short").write_text("a\n")
    (model_folder / "long").write_text("▁you " * 6000 + "\n")
    before = sorted(model_folder.rglob("*"))
    for command in ("onmt_trace_attention", "onmt_count_attended"):
        with pytest.raises(UserError, match=message) as caught:
            run(f"{command} {arguments} -o out.{'trace' if 'trace' in command else 'json'}")
        assert "\n" not in str(caught.value)
        assert sorted(model_folder.rglob("*")) == before


@needs_models
def test_where_a_trace_goes(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = "onmt_trace_attention --model softmax.pt ev=evsoftmax.pt --src test.en --tgt test.de"
    with pytest.raises(UserError, match="several models need a folder"):
        run(f"{both} -o out.trace")
    run(f"{both} -o out/")
    names = sorted(path.name for path in (model_folder / "out").iterdir())
    assert names == ["ev.trace", "softmax.trace"]
    capsys.readouterr()
    before = (model_folder / "out" / "ev.trace").stat().st_mtime_ns
    run(f"{both} -o out")
    assert "out/ev.trace is complete already" in capsys.readouterr().err
    assert (model_folder / "out" / "ev.trace").stat().st_mtime_ns == before


@needs_models
def test_counting_a_model_equals_counting_its_trace(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "--model evsoftmax.pt --src test.en --tgt test.de"
    run(f"onmt_trace_attention {text} -o t.trace")
    capsys.readouterr()
    run("onmt_count_attended evsoftmax=t.trace --json")
    stored = json.loads(capsys.readouterr().out)
    run(f"onmt_count_attended {text} --json")
    assert json.loads(capsys.readouterr().out) == stored
    assert not list(model_folder.glob("*.part"))


@needs_models
def test_killed_and_repeated_gives_the_same_file(model_folder: Path) -> None:
    import checkpoints

    checkpoints.text(model_folder / "many.en", checkpoints.SOURCE * 100)
    checkpoints.text(model_folder / "many.de", checkpoints.TARGET * 100)
    line = "--model evsoftmax.pt --src many.en --tgt many.de"
    run(f"onmt_trace_attention {line} -o whole.trace --quiet")
    part = model_folder / "cut.trace.part"
    for attempt in range(2):
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tools" / "trace_attention.py"), *shlex.split(line)]
            + ["-o", "cut.trace", "--quiet"],
            cwd=model_folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        # Let it come some way further than last time, then kill it.
        goal = (attempt + 1) * 40_000
        while process.poll() is None and (not part.exists() or part.stat().st_size < goal):
            time.sleep(0.005)
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (model_folder / "cut.trace").exists()
    run(f"onmt_trace_attention {line} -o cut.trace --quiet")
    cut, whole = model_folder / "cut.trace", model_folder / "whole.trace"
    assert cut.read_bytes() == whole.read_bytes()
    assert not part.exists()
