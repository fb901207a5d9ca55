"""Kill programs at random moments, over and over: nothing may be lost or half-written.

Every program runs once undisturbed. Then it is killed (SIGKILL to all its processes, SIGTERM or
SIGINT), half the time at any moment and half the time as soon as it writes something; what it was
given must be as before, and what lies under a final name must be whole. It is started again, killed
again, and in the end what it has made must equal what it made undisturbed. Programs are forks of
this process, which has imported everything, so that the kills hit the work and not the start; a
study is run.sh itself. An interrupted soak goes on in the same folder.

    python tests/soak.py -o soak --kills 200
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_files
import fuzzing
import psutil
import recipe_runs
import torch

from onmt_evsoftmax.opennmt.checkpoint import load

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: How many of 100 kills each program gets.
SHARES = {"train": 25, "average": 10, "trace": 20, "count": 15, "score": 15, "study": 15}
TRAINING = ("-train_steps 40 -save_checkpoint_steps 4 -batch_size 100000 -dropout 0 "
            "-attention_dropout 0 -attention_normalizer evsoftmax -save_model m/model")  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A program, the files in its folder that it makes, and what is in them."""

    start: Callable[[Path], int]  # in this folder, from where it was stopped → process
    made: str  # pattern of its outputs
    read: Callable[[Path], Any]  # a whole output → something that can be compared
    seconds: float = 60.0


def forked(*command: str) -> Callable[[Path], int]:
    return lambda folder: _fork(folder, command)


def _fork(folder: Path, command: tuple[str, ...]) -> int:
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        name, *arguments = command
        box = argparse.Namespace(folder=folder, said=folder.with_suffix(".stderr"))
        fuzzing._child(fuzzing.Case((name,), tuple(arguments), frozenset()), box)
    return process


def _train(folder: Path) -> int:
    (folder / "m").mkdir(exist_ok=True)
    steps = [int(path.stem.rsplit("_", 1)[1]) for path in folder.glob("m/model_step_*.pt")]
    if 40 in steps:  # OpenNMT-py would train one step more; the recipes look first, too
        return subprocess.Popen("true").pid
    go_on = ["-train_from", f"m/model_step_{max(steps, default=0)}.pt", "-reset_optim", "none"]
    command = ["onmt_train", "-config", "train.yaml", *TRAINING.split()]
    return _fork(folder, (*command, *(go_on if steps else [])))


def _study(folder: Path) -> int:
    words = recipe_runs.command("demo", folder, "--normalizer", "softmax", "--normalizer",
                                "evsoftmax", "--parallel", "2")  # fmt: skip
    return recipe_runs.start(words, folder).pid


def _weights(path: Path) -> dict[str, list[float]]:
    checkpoint = load(path)
    weights = {**checkpoint["model"], **checkpoint["generator"]}
    return {name: tensor.flatten().tolist() for name, tensor in weights.items()}


JOBS = {
    "train": Job(_train, "m/model_step_*.pt", _weights),
    "average": Job(
        forked("onmt_average_models", "-models", "m.pt", "n.pt", "-output", "out.pt"),
        "out.pt", _weights,
    ),
    "trace": Job(
        forked("trace", "--model", "m.pt", "--src", "long.en", "--tgt", "long.de", "-o", "t.trace"),
        "t.trace", Path.read_bytes,
    ),
    "count": Job(
        forked("count", "--model", "m.pt", "--src", "long.en", "--tgt", "long.de",
               "-o", "c.json", "-o", "c.txt", "-o", "c.svg"),
        "c.*", Path.read_bytes,
    ),
    "score": Job(
        forked("score", "--hyp", "a.txt", "b.txt", "--ref", "long.de", "--resamples", "300",
               "--metrics", "bleu", "chrf", "ter", "-o", "s.json", "-o", "s.txt"),
        "s.json", Path.read_bytes,
    ),
    "study": Job(_study, "out/table.*", Path.read_bytes, 900.0),
}  # fmt: skip


def fill(kind: str, folder: Path) -> None:
    """What the program reads."""
    folder.mkdir(parents=True)
    if kind == "study":
        recipe_runs.small("demo", folder)
        return
    fuzz_files.fill(folder)
    dice = random.Random(1)
    other = torch.load(folder / "m.pt", weights_only=False)
    other["model"] = {name: 1.1 * value for name, value in other["model"].items()}
    torch.save(other, folder / "n.pt")
    lines = {side: (folder / f"s.{side}").read_text().splitlines() for side in ("en", "de")}
    chosen = [dice.randrange(len(lines["en"])) for _ in range(80)]
    for name, side, shift in (("long.en", "en", 0), ("long.de", "de", 0),
                              ("a.txt", "de", 1), ("b.txt", "de", 2)):  # fmt: skip
        text = [lines[side][(line + shift * (line % 3 == 0)) % 20] for line in chosen]
        (folder / name).write_text("\n".join(text) + "\n")


def family(process: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        one = psutil.Process(process)
        return [one, *one.children(recursive=True)]
    return []


def ended(process: int) -> int | None:
    """Its exit code, or None while it runs."""
    try:
        found, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if found else None


def wait(process: int, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while (code := ended(process)) is None:
        if time.monotonic() > deadline:
            for one in family(process):
                one.kill()
            raise TimeoutError(f"process {process} does not end")
        time.sleep(0.02)
    return code


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """What is there: name → size and time."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and ".snakemake" not in path.parts:
                found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


class Soak:
    """The kills of one program, whose numbers are in a file."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self.kind, self.job, self.folder = kind, JOBS[kind], folder / kind
        self.record = folder / f"{kind}.json"
        self.done: Counter[str] = Counter(
            json.loads(self.record.read_text()) if self.record.exists() else {}
        )
        self.dice = random.Random(f"{seed} {kind} {self.done['kills']}")
        self._undisturbed()

    def _undisturbed(self) -> None:
        folder = self.folder / "whole"
        shutil.rmtree(self.folder, ignore_errors=True)
        fill(self.kind, folder)
        began = time.monotonic()
        code = wait(self.job.start(folder), self.job.seconds)
        self.took = time.monotonic() - began
        assert code == 0, folder.with_suffix(".stderr").read_text()[-2000:]
        self.results = self._results(folder)
        assert self.results, f"{self.kind} made nothing"
        print(f"{self.kind}: {self.took:.1f} s undisturbed", flush=True)

    def _results(self, folder: Path) -> dict[str, Any]:
        found = sorted(folder.glob(self.job.made))
        return {str(path.relative_to(folder)): self.job.read(path) for path in found}

    def kill(self, folder: Path) -> bool:
        """Start, kill, look; False if it came to its end first, which must be a good one."""
        given = {path: path.read_bytes() for path in self.given}
        before = contents(folder)
        process = self.job.start(folder)
        moment = time.monotonic() + self.dice.uniform(0, self.took)
        at_writing = self.dice.random() < 0.5
        while time.monotonic() < moment and (code := ended(process)) is None:
            if at_writing and contents(folder) != before:
                moment = time.monotonic() + self.dice.choice([0, 0.001, 0.01, 0.1])
                at_writing = False
                self.done["as they wrote"] += 1
            time.sleep(0.004)
        number = self.dice.choice(SIGNALS)
        everything = family(process)
        if not everything or (code := ended(process)) is not None:
            assert code == 0, folder.with_suffix(".stderr").read_text()[-2000:]
            return False
        for one in everything if number == signal.SIGKILL else everything[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        code = wait(process, 120)
        self.done["kills"] += 1
        self.done[number.name] += 1
        if number != signal.SIGKILL:
            left = [path for path in folder.rglob(".*.tmp") if str(path) not in before]
            # OpenNMT-py's own commands end at once by SIGTERM, without tidying up.
            assert not left or code == -number, f"{number.name} left {left}"
        for path, data in given.items():
            assert path.read_bytes() == data, f"{path} was changed"
        for name, result in self._results(folder).items():
            assert result == self.results[name], f"{name} is not what it would have become"
        self.record.write_text(json.dumps(self.done))
        return True

    def round(self, limit: int) -> None:
        """Kill a program some times, then let it come to its end."""
        folder = self.folder / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        fill(self.kind, folder)
        self.given = [path for path in folder.rglob("*") if path.is_file()]
        self.given = [path for path in self.given if path.name != "trained" and "out" not in
                      path.relative_to(folder).parts]  # fmt: skip
        for _ in range(min(limit, self.dice.randint(1, 8))):
            if not self.kill(folder):
                break
        code = wait(self.job.start(folder), self.job.seconds)
        assert code == 0, folder.with_suffix(".stderr").read_text()[-2000:]
        assert self._results(folder) == self.results, f"{self.kind}: another result"
        self.done["rounds"] += 1
        self.record.write_text(json.dumps(self.done))

    def run(self, kills: int) -> None:
        while self.done["kills"] < kills:
            self.round(kills - self.done["kills"])
            print(f"{self.kind}: {dict(self.done)}", flush=True)


def shares(kills: int) -> Iterator[tuple[str, int]]:
    for kind, share in SHARES.items():
        yield kind, max(1, round(kills * share / 100))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for everything")
    parser.add_argument("--kills", type=int, default=200, help="of all programs together (200)")
    parser.add_argument("--only", choices=JOBS, nargs="+", default=list(JOBS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    fuzzing.import_everything()
    total: Counter[str] = Counter()
    for kind, kills in shares(options.kills):
        if kind in options.only:
            soak = Soak(kind, options.output.absolute(), options.seed)
            soak.run(kills)
            total += soak.done
    print(f"{dict(total)}: nothing was lost, and all results are those of undisturbed runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
