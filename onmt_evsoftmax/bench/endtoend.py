"""``onmt_train`` and ``onmt_translate`` with ev-softmax against stock softmax: tokens per second.

The stock commands run in turns on a generated corpus, each several times; which goes first
alternates. What they report of their speed is read from their logs.
"""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onmt_evsoftmax.bench.timing import Result, environment, last_line
from onmt_evsoftmax.console import UserError

PEER = "stock softmax"
OURS = "evsoftmax"
STEPS = 15  # of one training; the first third, in which the machine warms up, is not counted
TOKENS = 1024  # a batch
WORDS = 8000
LENGTH = 30  # words of a sentence, about
SENTENCES = 48  # translated at once, to exactly LENGTH words, so that all do the same work

TRAIN = f"""
data: {{corpus: {{path_src: train.src, path_tgt: train.tgt}}}}
src_vocab: vocab
tgt_vocab: vocab
save_model: model
encoder_type: transformer
decoder_type: transformer
position_encoding: true
enc_layers: 3
dec_layers: 3
heads: 4
hidden_size: 256
word_vec_size: 256
transformer_ff: 1024
dropout: [0.1]
attention_dropout: [0.1]
self_attn_type: scaled-dot
batch_type: tokens
batch_size: {TOKENS}
bucket_size: 2000
num_workers: 0
train_steps: {STEPS}
save_checkpoint_steps: {STEPS}
report_every: {STEPS // 3}
optim: adam
learning_rate: 0.0001
"""


def cases() -> list[str]:
    """What is run."""
    return ["train", "translate"]


def check() -> None:
    """Refuse the part endtoend where OpenNMT-py's commands are missing."""
    for command in ("onmt_train", "onmt_translate"):
        if not _program(command).exists():
            raise UserError(
                f"bench: {command} is not beside this Python; install OpenNMT-py and this package "
                "into its environment, or leave the part endtoend out with --only"
            )


def measure(case: str, seconds: float, seed: int) -> Iterator[Result]:
    """Both normalizers in turns until ``seconds`` are over, three times each at least."""
    with tempfile.TemporaryDirectory(prefix="evsoftmax-bench-") as name:
        folder = Path(name)
        _write_corpus(folder, seed)
        if case == "translate":
            _train(folder, PEER, seed)
        run = _train if case == "train" else _translate
        speeds: dict[str, list[float]] = {PEER: [], OURS: []}
        turn = list(speeds)
        for _ in range(max(3, min(9, int(seconds)))):
            for normalizer in turn:
                speeds[normalizer].append(run(folder, normalizer, seed))
            turn.reverse()  # the first may find the machine cooler, the second warmer caches
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    yield Result(
        part="endtoend",
        case=f"onmt_{case}",
        name=OURS,
        peer=PEER,
        forward=None,
        both=medians[OURS] / medians[PEER],
        unit="tokens per second",
        peer_both=medians[PEER],
        target_both=0.98,
    )


def _write_corpus(folder: Path, seed: int) -> None:
    """Sentences of like length from a vocabulary with Zipf's frequencies."""
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(WORDS)]
    weights = [1 / (rank + 10) for rank in range(WORDS)]
    (folder / "vocab").write_text("".join(f"{word}\t1\n" for word in words))
    for name, count in (("train", 2000), ("test", SENTENCES)):
        for side in ("src", "tgt"):
            lines = (
                " ".join(draw.choices(words, weights, k=draw.randint(LENGTH // 2, LENGTH * 3 // 2)))
                for _ in range(count)
            )
            (folder / f"{name}.{side}").write_text("".join(line + "\n" for line in lines))
    (folder / "train.yaml").write_text(TRAIN)


def _program(command: str) -> Path:
    return Path(sys.executable).with_name(command)


def _run(folder: Path, command: str, arguments: list[str]) -> str:
    done = subprocess.run(
        [str(_program(command)), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(),
    )
    if done.returncode:
        raise UserError(f"bench: {command} failed: {last_line(done.stderr)}")
    return done.stdout + done.stderr


def _train(folder: Path, normalizer: str, seed: int) -> float:
    """Target tokens per second of the last two thirds of a short training."""
    arguments = ["-config", "train.yaml", "-seed", str(seed + 1)]
    if normalizer != PEER:
        arguments += ["-attention_normalizer", normalizer]
    log = _run(folder, "onmt_train", arguments)
    speeds = [float(speed) for speed in re.findall(r"/\s*(\d+) tok/s", log)]
    if len(speeds) != 3:
        raise UserError("bench: onmt_train did not report its speed as this version expects")
    return statistics.mean(speeds[1:])


def _translate(folder: Path, normalizer: str, seed: int) -> float:
    """Tokens per second of a beam search of 5 that ends no sentence early."""
    arguments = ["-model", f"model_step_{STEPS}.pt", "-src", "test.src", "-output", "out"]
    arguments += ["-beam_size", "5", "-batch_size", str(SENTENCES), "-report_time"]
    arguments += ["-min_length", str(LENGTH), "-max_length", str(LENGTH), "-seed", str(seed)]
    if normalizer != PEER:
        arguments += ["-attention_normalizer", normalizer]
    log = _run(folder, "onmt_translate", arguments)
    found = re.search(r"Total translation time \(s\): ([\d.e+-]+)", log)
    if found is None:
        raise UserError("bench: onmt_translate did not report its time as this version expects")
    return SENTENCES * LENGTH / float(found[1])
