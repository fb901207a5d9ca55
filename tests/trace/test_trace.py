from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st

from onmt_evsoftmax.corpora.marks import SCHEMES, Tokens, detect_scheme, group, word_texts
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace.record import Attention, Record, decode, encode, prefix_of
from onmt_evsoftmax.trace.storage import Header, TraceReader, TraceWriter, is_complete

ROOT = Path(__file__).parents[2]


def same(left: Record, right: Record) -> bool:
    plain = [
        (r.index, r.source, r.target, r.prefix, r.scores, r.score, list(r.attention))
        for r in (left, right)
    ]
    return plain[0] == plain[1] and all(
        np.array_equal(left.attention[kind].weights, right.attention[kind].weights)
        and np.array_equal(left.attention[kind].support, right.attention[kind].support)
        for kind in left.attention
    )


@pytest.mark.parametrize("normalizer", ["softmax", "evsoftmax", "sparsemax"])
def test_a_record_survives_bit_for_bit(normalizer: str) -> None:
    for index in range(4):
        item = traces.record(index, normalizer=normalizer)
        assert same(decode(encode(item)), item)


def test_empty_sentences_and_any_text_survive() -> None:
    assert same(decode(encode(traces.blank())), traces.blank())
    odd = traces.record(0, '<script> "\\ \x00 \u2028 ▁😀 ▁שלום', "▁سلام ▁你好")
    assert same(decode(encode(odd)), odd)


def test_support_is_kept_apart_from_underflow() -> None:
    """A key in the support whose exponential underflowed is attended, with weight 0."""
    weights = np.array([[[[1.0, 0.0, 0.0]]]], np.float32)
    support = np.array([[[[True, True, False]]]])
    target = Tokens(("x",), (0,))
    item = Record(
        0,
        Tokens(("a", "b", "c"), (0, 1, 2)),
        target,
        prefix_of(target),
        (-1.0,),
        -1.0,
        {"context": Attention(weights, support)},
    )
    back = decode(encode(item)).attention["context"]
    assert back.support.tolist() == support.tolist()
    assert back.weights.tolist() == weights.tolist()


def test_half_precision_keeps_the_support_exact() -> None:
    item = traces.record(1, normalizer="softmax")
    full, half = encode(item), encode(item, "float16")
    assert len(half) < 0.7 * len(full)
    for kind, attention in decode(half).attention.items():
        assert np.array_equal(attention.support, item.attention[kind].support)
        np.testing.assert_allclose(attention.weights, item.attention[kind].weights, atol=5e-4)


@given(data=st.binary(max_size=60))
def test_garbage_is_no_record(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a sentence record"):
        decode(data)


def test_random_access_and_iteration_agree(tmp_path: Path) -> None:
    path = traces.write(tmp_path / "a.trace", 5)
    with TraceReader(path) as trace:
        assert trace.complete
        assert trace.header == traces.header()
        assert len(trace) == 5
        for index, item in enumerate(trace):
            assert same(item, traces.record(index))
            assert same(trace[index], item)
        assert same(trace[-1], traces.record(4))
        with pytest.raises(IndexError):
            trace[5]
    assert not (tmp_path / "a.trace.part").exists()
    assert is_complete(path, traces.header())
    assert not is_complete(path, traces.header("softmax"))


def test_cut_at_any_byte_it_continues_to_the_same_file(tmp_path: Path) -> None:
    whole = traces.write(tmp_path / "whole.trace", 3, layers=1, heads=1).read_bytes()
    part = tmp_path / "cut.trace.part"
    head = traces.header(layers=1, heads=1)
    seen = set()
    for length in [*range(0, len(whole), 7), len(whole)]:
        part.write_bytes(whole[:length])
        with TraceWriter(tmp_path / "cut.trace", head) as trace:
            seen.add(trace.count)
            for index in range(trace.count, 3):
                trace.append(encode(traces.record(index, layers=1, heads=1)))
            trace.finish()
        assert (tmp_path / "cut.trace").read_bytes() == whole
    assert seen == {0, 1, 2, 3}


def test_a_zeroed_tail_is_dropped(tmp_path: Path) -> None:
    """After a power cut a block can have its length and zeros for bytes."""
    whole = bytearray(traces.write(tmp_path / "a.trace", 3).read_bytes())
    whole[-200:] = bytes(200)
    (tmp_path / "b.trace.part").write_bytes(whole)
    with TraceWriter(tmp_path / "b.trace", traces.header()) as trace:
        assert trace.count == 2


def test_a_truncated_trace_reads_up_to_the_cut(tmp_path: Path) -> None:
    path = traces.write(tmp_path / "a.trace", 3)
    path.write_bytes(path.read_bytes()[:-100])
    with TraceReader(path) as trace:
        assert not trace.complete
        assert len(trace) == 2


def test_other_settings_are_refused_and_restart_overrules(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "a.trace", traces.header()) as trace:
        trace.append(encode(traces.record()))
    with pytest.raises(UserError, match=r"other settings \(kinds: .*evsoftmax.* then, .*softmax"):
        TraceWriter(tmp_path / "a.trace", traces.header("softmax"))
    with TraceWriter(tmp_path / "a.trace", traces.header("softmax"), restart=True) as trace:
        assert trace.count == 0


def test_a_pipe_is_not_waited_for_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a file but a pipe or a device"):
        TraceWriter(tmp_path / "pipe", traces.header())
    assert (tmp_path / "pipe").is_fifo()


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    with (
        TraceWriter(tmp_path / "a.trace", traces.header()),
        pytest.raises(UserError, match="another process"),
    ):
        TraceWriter(tmp_path / "a.trace", traces.header())


def test_bad_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(UserError, match="is not a trace"):
        TraceReader(tmp_path / "text")
    with pytest.raises(UserError, match="No such file"):
        TraceReader(tmp_path / "absent")
    with pytest.raises(UserError, match="cannot write"):
        TraceWriter(tmp_path, traces.header())
    path = traces.write(tmp_path / "a.trace", 3)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with TraceReader(path) as trace, pytest.raises(UserError, match="sentence 3 is damaged"):
        list(trace)
    path.write_bytes(data.replace(b'"kinds"', b'"kindz"', 1))
    with pytest.raises(UserError, match="header is damaged"):
        TraceReader(path)


@pytest.mark.parametrize(
    "change",
    [
        {"kinds": []},
        {"kinds": {"context": {"normalizer": "softmax", "layers": "2", "heads": 4}}},
        {"kinds": {"context": {"normalizer": "softmax", "layers": -1, "heads": 4}}},
        {"kinds": {"context": {"normalizer": ["softmax"], "layers": 2, "heads": 4}}},
        {"kinds": {"context": [1]}},
        {"subwords": {"source": "bpe"}},
        {"subwords": ["bpe", "bpe"]},
        {"model": "m.pt"},
        {"target": None},
    ],
)
def test_a_header_of_other_types_is_told(tmp_path: Path, change: dict) -> None:
    path = traces.write(tmp_path / "a.trace", 1)
    magic, line, rest = path.read_bytes().split(b"\n", 2)
    path.write_bytes(b"\n".join([magic, json.dumps({**json.loads(line), **change}).encode(), rest]))
    with pytest.raises(UserError, match="its header is damaged"):
        TraceReader(path)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"attention": [], "dtype": "<f4"}',
        b'{"attention": {"context": [1e99]}, "dtype": "<f4"}',
        b'{"attention": {"context": [99999999999, 1, 1, 1]}, "dtype": "<f4"}',
        b'{"attention": {}, "dtype": "<f4", "target": 3, "target_words": []}',
    ],
)
def test_a_block_of_other_content_is_told(tmp_path: Path, text: bytes) -> None:
    """Its checksum is right: it was written by another program, or to deceive."""
    with TraceWriter(tmp_path / "a.trace", traces.header()) as trace:
        trace.append(zlib.compress(struct.pack("<I", len(text)) + text))
        trace.finish()
    with TraceReader(tmp_path / "a.trace") as read, pytest.raises(UserError, match="is damaged"):
        read[0]


def test_a_full_disk_says_how_to_go_on(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"make room and repeat .* after sentence \d"):
            traces.write(tmp_path / "a.trace")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with TraceWriter(tmp_path / "a.trace", traces.header()) as trace:
        assert 0 < trace.count < 4
        for index in range(trace.count, 4):
            trace.append(encode(traces.record(index)))
        trace.finish()
    traces.write(tmp_path / "b.trace")
    assert (tmp_path / "a.trace").read_bytes() == (tmp_path / "b.trace").read_bytes()


def test_kill_9_then_continue(tmp_path: Path) -> None:
    """A real process, really killed while it writes."""
    script = (
        "import itertools, sys; sys.path.insert(0, sys.argv[2]); import traces\n"
        "from onmt_evsoftmax.trace.record import encode\n"
        "from onmt_evsoftmax.trace import TraceWriter\n"
        "with TraceWriter(sys.argv[1], traces.header()) as trace:\n"
        "    for index in itertools.count(trace.count):\n"
        "        trace.append(encode(traces.record(index))); print(index, flush=True)\n"
    )
    counts = [0]
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "a.trace"), str(ROOT / "tests")],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        for _ in range(30):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with TraceReader(tmp_path / "a.trace.part") as trace:
            counts.append(len(trace))
            assert all(same(item, traces.record(item.index)) for item in trace)
        assert counts[-1] > counts[-2]


def test_the_documented_reader_reads(tmp_path: Path) -> None:
    """docs/trace-format.md shows a reader without this package; it must agree with ours."""
    page = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    assert "onmt_evsoftmax import" not in code[1]
    space: dict[str, object] = {}
    exec(code[1], space)
    path = traces.write(tmp_path / "a.trace", 4)
    header, sentences = space["read_trace"](str(path))  # type: ignore[operator]
    assert header["kinds"]["context"]["normalizer"] == "evsoftmax"
    for index, (about, attention) in enumerate(sentences):
        ours = traces.record(index)
        assert about["source"] == list(ours.source.tokens)
        for kind, weights in attention.items():
            assert np.array_equal(weights, ours.attention[kind].weights)
    assert index == 3


@pytest.mark.parametrize(
    ("scheme", "line", "words"),
    [
        ("sentencepiece", "▁a ▁neu gier ig .", "a neugierig."),
        ("sentencepiece", "▁ Ḩ ello ▁you", "Ḩello you"),
        ("bpe", "a neu@@ gier@@ ig .", "a neugierig ."),
        ("joiner", "a neu￭ gier￭ ig ￭.", "a neugierig."),
        ("joiner", "｟mrk_case_modifier_C｠ hallo du", "hallo du"),
        ("none", "a b c", "a b c"),
    ],
)
def test_words_are_what_a_reader_would_write(scheme: str, line: str, words: str) -> None:
    side = group([*line.split(), "</s>"], scheme)
    assert word_texts(side, scheme) == words.split()
    assert side.words[-1] == -1
    assert side.special[-1]
    assert scheme == "none" or "mrk" in line or detect_scheme(line.split()) == scheme


@given(st.lists(st.sampled_from(["▁a", "b", "c@@", "￭d", "e￭", "</s>", "<s>"])))
def test_words_are_numbered_from_left_to_right(tokens: list[str]) -> None:
    for scheme in SCHEMES:
        side = group(tokens, scheme)
        steps = [word for word in side.words if word >= 0]
        assert steps == sorted(steps)
        assert set(steps) == set(range(side.word_count))
        assert [t in ("<s>", "</s>") for t in tokens] == list(side.special)


def test_a_header_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    header = dataclasses.replace(traces.header(), model={"name": "caf\udce9.pt"})
    with pytest.raises(UnicodeEncodeError):
        TraceWriter(tmp_path / "a.trace", header)
    assert not os.listdir(tmp_path)


def one_block(path: Path, header: Header, block: bytes) -> TraceReader:
    """A trace with one block, whose checksum is right whatever is in it."""
    with TraceWriter(path, header) as trace:
        trace.append(block)
        trace.finish()
    return TraceReader(path)


@pytest.mark.parametrize(
    "change",
    [
        {"source": ["a"]},
        {"source_words": [0]},
        {"source": [1] * 7},
        {"source_words": ["x"] * 7},
        {"source_words": [99] * 7},
        {"target_words": [-5] * 8},
    ],
    ids=str,
)
def test_tokens_that_do_not_go_together_are_told(tmp_path: Path, change: dict) -> None:
    data = zlib.decompress(encode(traces.record(0)))
    (length,) = struct.unpack_from("<I", data)
    meta = json.loads(data[4 : 4 + length])
    assert (len(meta["source"]), len(meta["target"])) == (7, 8)
    text = json.dumps(meta | change).encode()
    block = zlib.compress(struct.pack("<I", len(text)) + text + data[4 + length :])
    with (
        one_block(tmp_path / "a.trace", traces.header(), block) as trace,
        pytest.raises(UserError, match="sentence 1 is damaged"),
    ):
        trace[0]


@pytest.mark.parametrize("wrong", [{"layers": 3}, {"heads": 1}, {"kinds": ["context"]}], ids=str)
def test_attention_that_the_header_does_not_promise_is_told(tmp_path: Path, wrong: dict) -> None:
    block = encode(traces.record(0, **wrong))
    with (
        one_block(tmp_path / "a.trace", traces.header(), block) as trace,
        pytest.raises(UserError, match=r"sentence 1 is damaged \(it lacks encoder attention"),
    ):
        trace[0]
