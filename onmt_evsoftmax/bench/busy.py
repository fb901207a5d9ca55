"""The programs beside one busy process: how much longer they take than on an idle machine.

Torch's threads wait for one another by spinning, and one busy core can make that 20 times slower;
:mod:`onmt_evsoftmax.report.threads` says what the programs do about it. Here they run as they are
and with their threads left alone, idle and beside a process that keeps one core busy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from onmt_evsoftmax.bench import endtoend
from onmt_evsoftmax.bench.timing import Result
from onmt_evsoftmax.bench.turns import run_in_turns
from onmt_evsoftmax.report import threads
from onmt_evsoftmax.report.console import UserError

#: How often the time of an idle machine a busy one may take, and what the care may cost if idle.
BUSY, IDLE = 2.5, 1.03
SOFTMAX, OURS, ALONE = "softmax", "evsoftmax", "softmax, threads left alone"
#: An OpenMP setting that changes nothing, but tells the programs that the user has chosen.
LEFT_ALONE = {"OMP_DYNAMIC": "false"}


def cases() -> list[str]:
    """What is run."""
    return ["onmt_train", "onmt_translate", "onmt_trace_attention", "onmt_count_attended"]


def check() -> None:
    """Refuse the part where it cannot be measured."""
    endtoend.check()
    if threads.cpus() < 2:
        raise UserError("bench: one CPU has no second thread to lose; leave busy out with --only")


def measure(case: str, seconds: float, seed: int) -> Iterator[Result]:
    """All kinds in turns, idle and then busy; ``seconds`` say how much work they get."""
    with tempfile.TemporaryDirectory(prefix="evsoftmax-bench-") as name:
        folder = Path(name)
        sentences = endtoend.SENTENCES * max(1, round(seconds))
        endtoend.write_corpus(folder, sentences, seed)
        run_in_turns({"": [*endtoend.train(1, seed), "-save_model", "model"]}, folder)
        commands = _commands(case, max(1, round(seconds * 4)), seed)
        idle = _times(commands, folder, nullcontext())
        busy = _times(commands, folder, _busy_process())
    for kind in commands:
        target = None if kind == ALONE else BUSY
        yield _result(case, f"{kind}, busy", busy[kind], "the same, idle", idle[kind], target)
    peer = "threads left alone, idle"
    yield _result(case, f"{SOFTMAX}, idle", idle[SOFTMAX], peer, idle[ALONE], IDLE)


def _result(
    case: str, name: str, time: float, peer: str, peer_time: float, target: float | None
) -> Result:
    return Result(
        "busy", case, name, peer, None, time / peer_time, peer_both=peer_time, target_both=target
    )


def _commands(case: str, steps: int, seed: int) -> dict[str, list[str]]:
    if case == "onmt_train":
        command, output, option = endtoend.train(steps, seed), "-save_model", "-"
    elif case == "onmt_translate":
        command, output, option = endtoend.translate(seed), "-output", "-"
    else:
        model = ["--model", "model_step_1.pt", "--src", "test.src", "--tgt", "test.tgt"]
        command, output, option = [str(endtoend.program(case)), *model], "-o", "--"
    word = "attention_normalizer" if option == "-" else "attention-normalizer"
    return {
        kind: [*command, output, f"{number}.txt", f"{option}{word}", kind.partition(",")[0]]
        for number, kind in enumerate((SOFTMAX, OURS, ALONE))
    }


def _times(
    commands: Mapping[str, list[str]], folder: Path, beside: AbstractContextManager[None]
) -> dict[str, float]:
    """Seconds that each program ran, from its start to its end."""
    free = {name: value for name, value in os.environ.items() if name not in threads.CHOSEN}
    environments = {kind: {**free, **(LEFT_ALONE if kind == ALONE else {})} for kind in commands}
    for path in folder.glob("[0-9].*"):
        path.unlink()
    with beside:
        programs = run_in_turns(commands, folder, environments)
    return {kind: sum(b - a for a, b in program.turns) for kind, program in programs.items()}


@contextmanager
def _busy_process() -> Iterator[None]:
    """A process in a session of its own, to which schedulers give a whole core."""
    loop = [sys.executable, "-S", "-c", "while True: pass"]
    process = subprocess.Popen(loop, start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()
