"""``onmt_train`` and ``onmt_translate`` with ours against stock softmax: tokens per second.

The model is that of recipes/multi30k, relative positions included. The stock commands run on a
generated corpus with the same seed, so that all see the same batches, and take turns of a fraction
of a second. Their logs tell when what is measured began and ended. Processes of the same program
differ by a few hundredths, so all are started anew several times, and the median ratio counts.
"""

from __future__ import annotations

import functools
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from onmt_evsoftmax.bench.timing import Result
from onmt_evsoftmax.bench.turns import POSSIBLE, Program, run_in_turns
from onmt_evsoftmax.normalizers.registry import own_records
from onmt_evsoftmax.report.console import UserError

PEER = "stock softmax"
#: Normalizers with attention kernels of their own, each with its default parameters.
OURS = [
    record.name
    for record in own_records()
    if record.attention_kernel == record.name and record.attention_parameter is None
]
ROUNDS = 5  # of fresh processes
WARM_UP = 5  # steps of a training before those that count
STEPS_A_SECOND, BATCHES_A_SECOND = 5, 0.6  # of a round, for every second of measuring
TOKENS = 2048  # a batch
WORDS = 4000
LENGTH = 20  # words of a sentence, about
SENTENCES = 48  # translated at once, to exactly LENGTH words, so that all do the same work

#: What OpenNMT-py's commands take to compute on the first GPU.
GPU_TRAIN, GPU_TRANSLATE = ["-world_size", "1", "-gpu_ranks", "0"], ["-gpu", "0"]

TRAIN = f"""
data: {{corpus: {{path_src: train.src, path_tgt: train.tgt}}}}
src_vocab: vocab
tgt_vocab: vocab
encoder_type: transformer
decoder_type: transformer
enc_layers: 3
dec_layers: 3
heads: 4
hidden_size: 128
word_vec_size: 128
transformer_ff: 256
max_relative_positions: 8
dropout: [0.1]
attention_dropout: [0.0]
self_attn_type: scaled-dot
batch_type: tokens
batch_size: {TOKENS}
bucket_size: 2000
num_workers: 0
report_every: 1
optim: adam
learning_rate: 0.0001
"""


def cases() -> list[str]:
    """What is run."""
    return ["train", "translate"]


def check() -> None:
    """Refuse the part endtoend where it cannot be measured."""
    if not POSSIBLE:
        raise UserError("bench: this system cannot stop programs; leave endtoend out with --only")
    for command in ("onmt_train", "onmt_translate"):
        if not program(command).exists():
            raise UserError(
                f"bench: {command} is not beside this Python; install OpenNMT-py and this package "
                "into its environment, or leave the part endtoend out with --only"
            )


def measure(case: str, seconds: float, seed: int, on_gpu: bool = False) -> Iterator[Result]:
    """All normalizers in turns; ``seconds`` say how much work they get."""
    train_on, translate_on = (GPU_TRAIN, GPU_TRANSLATE) if on_gpu else ([], [])
    with tempfile.TemporaryDirectory(prefix="evsoftmax-bench-") as name:
        folder = Path(name)
        batches = max(1, round(seconds * BATCHES_A_SECOND))
        write_corpus(folder, batches * SENTENCES, seed)
        if case == "train":
            steps = WARM_UP + max(1, round(seconds * STEPS_A_SECOND))
            commands = _for_all(train(steps, seed) + train_on, "-save_model")
            speed: Callable[[Program], float] = _training_speed
        else:
            run_in_turns({PEER: [*train(1, seed), "-save_model", "model"]}, folder)
            commands = _for_all(translate(seed) + translate_on, "-output")
            speed = functools.partial(_translating_speed, sentences=batches * SENTENCES)
        rounds = [run_in_turns(commands, folder) for _ in range(ROUNDS)]
    speeds = [{name: speed(run[name]) for name in commands} for run in rounds]
    for name in OURS:
        yield Result(
            part="endtoend",
            case=f"onmt_{case}",
            name=name,
            peer=PEER,
            forward=None,
            both=statistics.median(run[name] / run[PEER] for run in speeds),
            unit="tokens per second",
            peer_both=statistics.median(run[PEER] for run in speeds),
            target_both=0.98,
        )


def _for_all(command: list[str], output: str) -> dict[str, list[str]]:
    """The command for each normalizer; ``output`` is its option for what it writes."""
    return {
        PEER: [*command, output, "stock"],
        **{name: [*command, output, name, "-attention_normalizer", name] for name in OURS},
    }


def write_corpus(folder: Path, sentences: int, seed: int) -> None:
    """Sentences of like length from a vocabulary with Zipf's frequencies."""
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(WORDS)]
    weights = [1 / (rank + 10) for rank in range(WORDS)]
    (folder / "vocab").write_text("".join(f"{word}\t1\n" for word in words))
    for name, count in (("train", 2000), ("test", sentences)):
        for side in ("src", "tgt"):
            lines = (
                " ".join(draw.choices(words, weights, k=draw.randint(LENGTH // 2, LENGTH * 3 // 2)))
                for _ in range(count)
            )
            (folder / f"{name}.{side}").write_text("".join(line + "\n" for line in lines))
    (folder / "train.yaml").write_text(TRAIN)


def program(command: str) -> Path:
    """Where a command of this environment is."""
    return Path(sys.executable).with_name(command)


def train(steps: int, seed: int) -> list[str]:
    """The command that trains, without the option for its output."""
    arguments = ["-config", "train.yaml", "-seed", str(seed + 1), "-train_steps", str(steps)]
    return [str(program("onmt_train")), *arguments, "-save_checkpoint_steps", str(steps)]


def _training_speed(program: Program) -> float:
    """Target tokens per second of all steps after the warm-up."""
    steps = program.find(r"Step\s+\d+/.*bsz:\s*\d+/\s*(\d+)/")[WARM_UP - 1 :]
    tokens = sum(int(match[1]) for _, match in steps[1:])
    return program.speed(tokens, steps[0][0], steps[-1][0])


def translate(seed: int) -> list[str]:
    """A beam search of 5 that ends no sentence early."""
    arguments = ["-model", "model_step_1.pt", "-src", "test.src", "-report_time"]
    arguments += ["-beam_size", "5", "-batch_size", str(SENTENCES), "-seed", str(seed)]
    arguments += ["-min_length", str(LENGTH), "-max_length", str(LENGTH)]
    return [str(program("onmt_translate")), *arguments]


def _translating_speed(program: Program, sentences: int) -> float:
    """Words per second.

    OpenNMT-py rounds its total to tenths of a second, which may be nothing; the milliseconds of a
    sentence are rounded to tenths as well and say more.
    """
    ((end, match),) = program.find(r"Average translation time \(ms\): ([\d.e+-]+)")
    return program.speed(sentences * LENGTH, end - float(match[1]) * sentences / 1000, end)
