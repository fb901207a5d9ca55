"""trace_attention, and count_attended straight from a checkpoint, as a user runs them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import checkpoints
import models
import pytest
from commands import COMMANDS, ROOT, examples, run

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace import TraceReader


@pytest.fixture(scope="module")
def checkpoint_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, options in (("softmax", []), ("evsoftmax", ["-attention_normalizer", "evsoftmax"])):
        base = [*models.TRANSFORMER, "-position_encoding"]  # which ends at 5000 tokens
        checkpoints.save(folder / f"{name}.pt", *base, *options)
    checkpoints.text(folder / "test.en", checkpoints.SOURCE)
    checkpoints.text(folder / "test.de", checkpoints.TARGET)
    return folder


@pytest.fixture
def model_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_files: Path) -> Path:
    """A working directory with two checkpoints and a text in two languages."""
    monkeypatch.chdir(tmp_path)
    for path in checkpoint_files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


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


BAD_MODELS = [
    ("--model absent.pt --src test.en", "absent.pt"),
    ("--model test.en --src test.en", "test.en"),
    ("--model softmax.pt --src absent", "cannot read absent"),
    ("--model softmax.pt --src empty", "empty is empty"),
    ("--model softmax.pt --src -", "- is not a file that can be read twice"),
    ("--model softmax.pt --src latin", "latin, line 2: not valid UTF-8"),
    ("--model softmax.pt --src test.en --tgt short", "test.en has 4 lines but short has 1"),
    ("--model softmax.pt --src test.en --attention-normalizer softmaxx", "softmax"),
    ("--model softmax.pt --src test.en --subword-model absent.model", "cannot read absent.model"),
    (
        "--model softmax.pt --src test.en --beam-size 0",
        "--beam-size: must be a whole number from 1",
    ),
    (
        "--model softmax.pt --src test.en --max-length 0",
        "--max-length: must be a whole number from 1",
    ),
    ("--model softmax.pt --src test.en --gpu 64", "torch finds no"),
    ("--model softmax.pt --src long --tgt long", "long, line 1: the model cannot run on this"),
]


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


def test_killed_and_repeated_gives_the_same_file(model_folder: Path) -> None:
    checkpoints.text(model_folder / "many.en", checkpoints.SOURCE * 100)
    checkpoints.text(model_folder / "many.de", checkpoints.TARGET * 100)
    line = "--model evsoftmax.pt --src many.en --tgt many.de"
    run(f"onmt_trace_attention {line} -o whole.trace --quiet")
    part = model_folder / "cut.trace.part"
    for attempt in range(2):
        process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tools" / "trace_attention.py"),
                *shlex.split(f"{line} -o cut.trace --quiet"),
            ],
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


def test_an_error_on_the_way_keeps_what_was_done(model_folder: Path) -> None:
    checkpoints.text(model_folder / "some.en", ["▁you", "▁make", "▁you " * 6000])
    checkpoints.text(model_folder / "some.de", ["▁sie", "▁macht", "▁sie"])
    with pytest.raises(UserError, match=r"some.en, line 3: .* 6000 tokens"):
        run("onmt_trace_attention --model softmax.pt --src some.en --tgt some.de -o some.trace")
    assert not (model_folder / "some.trace").exists()
    with TraceReader(model_folder / "some.trace.part") as trace:
        assert len(trace) == 2
