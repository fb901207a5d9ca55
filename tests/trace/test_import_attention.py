"""Arrays from anywhere become traces that are counted and drawn; docs/import.md is run."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onmt_evsoftmax.attended import Counts
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace import TraceReader
from onmt_evsoftmax.trace.import_attention import main

GUIDE = Path(__file__).parents[2] / "docs" / "import.md"
WEIGHTS = np.array([[1, 0, 0], [0, 0.5, 0.5], [0.2, 0.3, 0.5]])


def test_the_guide(tmp_path, monkeypatch):
    """Every block but the one that needs a model of transformers, which has a test of its own."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|sh)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 6
    commands = {
        "onmt_evsoftmax": ["onmt_evsoftmax"],
        "onmt_plot_attention": ["onmt_evsoftmax", "plot"],
        "onmt_count_attended": ["onmt_evsoftmax", "count"],
    }
    said = ""
    for language, block in blocks[1:]:
        if language == "python":
            exec(compile(block, str(GUIDE), "exec"), {})
            continue
        for line in block.splitlines():
            program, *arguments = line.split()
            module, *rest = [*commands[program], *arguments]
            done = subprocess.run(
                [sys.executable, "-m", module, *rest], check=True, capture_output=True, text=True
            )
            said += done.stdout
    assert "rollout" in said
    assert "mean of heads" in said
    assert {"sentence.svg", "rollout.svg"} <= {path.name for path in tmp_path.iterdir()}
    with TraceReader("two.trace") as trace:
        assert trace.header.kinds["decoder"].layers == 4
        assert trace[1].target.tokens == ("▁a", "▁house", "</s>")
        assert trace[1].prefix.tokens == ("<s>", "▁a", "▁house")


def imported(tmp_path, *options, **arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    assert main([str(tmp_path / "a.npz"), "-o", str(tmp_path / "a.trace"), *options]) == 0
    return TraceReader(tmp_path / "a.trace")


def test_weights_arrive_as_they_are(tmp_path):
    """Float32 weights with zeros, a batch of one as transformers has, and words of WordPiece."""
    weights = np.random.default_rng(0).dirichlet([0.5] * 4, (2, 1, 3, 4)).astype(np.float32)
    weights[weights < 0.1] = 0
    weights /= weights.sum(-1, keepdims=True)
    tokens = ["[CLS]", "play", "##ing", "[SEP]"]
    with imported(tmp_path, "--normalizer", "sparsemax", source=tokens, encoder=weights) as trace:
        record = trace[0]
        assert trace.header.kinds["encoder"].normalizer == "sparsemax"
        assert not record.target.tokens
        assert record.source.tokens == ("[CLS]", "▁play", "ing", "[SEP]")
        assert record.source.words == (-1, 0, 0, -1)
        np.testing.assert_array_equal(record.attention["encoder"].weights, weights[:, 0])
        np.testing.assert_array_equal(record.attention["encoder"].support, weights[:, 0] > 0)
        counts = Counts(trace.header)
        counts.add(record)
    attended = counts.kinds["encoder"].measures["attended"].summary(0, 1).mean
    assert attended == (weights[0, 0, 1, 1:3] > 0).sum(-1).mean()


def test_one_matrix(tmp_path):
    arrays = {"source": ["a", "b", "c"], "target": ["x", "y", "</s>"], "context": WEIGHTS}
    with imported(tmp_path, **arrays) as trace:
        assert trace[0].attention["context"].shape == (1, 1, 3, 3)
        assert trace[0].prefix.tokens == ("<s>", "x", "y")


SOURCE = {"source": ["a", "b", "c"]}
WRONG = {
    "2 × 3": {"source": ["a", "b"], "encoder": WEIGHTS[:2]},
    "source × source has 2 × 2": {"source": ["a", "b"], "encoder": WEIGHTS},
    "these are not weights": {**SOURCE, "encoder": 2 * WEIGHTS},
    "rows must be ≥ 0": {**SOURCE, "encoder": -WEIGHTS},
    "nan": {**SOURCE, "encoder": WEIGHTS * np.nan},
    "must be numbers": {**SOURCE, "encoder": ["a", "b", "c"]},
    "of shape": {**SOURCE, "encoder": np.zeros((0, 2, 3, 3))},
    "'00/source' is there under another number": {"source": ["a"], "00/source": ["b"]},
    "has no attention": SOURCE,
    "did you mean": {**SOURCE, "encodr": WEIGHTS},
    "list of tokens": {"source": [1, 2, 3], "encoder": WEIGHTS},
    "attends to tokens after it": {"target": ["a", "b", "c"], "decoder": np.ones((3, 3)) / 3},
    "read takes the place": {"read": ["a"], "target": ["a"], "decoder": [[1.0]]},
    "NUMBER/NAME": {"a/source": ["a"], "a/encoder": [[1.0]]},
    "differs from": {
        "0/source": ["a"],
        "0/encoder": [[1.0]],
        "1/source": ["a"],
        "1/encoder": np.ones((2, 1, 1, 1)),
    },
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_wrong_is_said(sentence, tmp_path):
    expected = {"2 × 3": "but source × source", "nan": "not weights"}.get(sentence, sentence)
    with pytest.raises(UserError, match=expected):
        imported(tmp_path, **WRONG[sentence])
    assert not (tmp_path / "a.trace").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"text"])
def test_other_files(content, tmp_path):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"is not a file of numpy\.savez"):
        main([str(tmp_path / "a.npz"), "-o", str(tmp_path / "a.trace")])
    np.save(tmp_path / "b.npy", WEIGHTS)
    with pytest.raises(UserError, match="one array"):
        main([str(tmp_path / "b.npy"), "-o", str(tmp_path / "a.trace")])


def test_rows_that_were_dropped_are_warned_of(tmp_path, capsys):
    imported(tmp_path, **SOURCE, encoder=WEIGHTS * [1, 1, 0]).__exit__()
    assert "sum to less than 1" in capsys.readouterr().err
