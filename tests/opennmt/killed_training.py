"""Run by test_kill.py: imports OpenNMT-py once, then trains in forks that their parent kills.

Each child is the real trainer, resuming from the newest checkpoint and saving after every step.
Every second child writes its files in slow pieces, and the parent shoots while one is half-written.
Prints one JSON object per kill.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # the optimizer would import it, slowly, in every child
from onmt.bin.train import main

KILLS = 10


def slow_save(original: object) -> object:
    """As torch.save, but the file grows piece by piece, as a large one does."""

    def save(obj: object, path: Path) -> None:
        buffer = io.BytesIO()
        original(obj, buffer)  # type: ignore[operator]
        data = buffer.getvalue()
        with open(path, "wb") as file:
            for start in range(0, len(data), len(data) // 20):
                file.write(data[start : start + len(data) // 20])
                file.flush()
                time.sleep(0.005)

    return save


def newest(folder: Path) -> Path | None:
    found = sorted(folder.glob("model_step_*.pt"), key=lambda p: int(p.stem.rsplit("_", 1)[1]))
    return found[-1] if found else None


def child(config: str, start: Path | None, slow: bool) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    if slow:
        torch.save = slow_save(torch.save)
    sys.argv = ["onmt_train", "-config", config]
    sys.argv += ["-train_from", str(start)] if start else []
    main()


def await_moment(
    pid: int, folder: Path, before: Path | None, inside: bool, draw: random.Random
) -> None:
    """Wait until the child has saved something new, and then for a save, or for any time."""
    deadline = time.monotonic() + 120
    while newest(folder) == before:
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it ended"
        assert time.monotonic() < deadline, "nothing was saved"
        time.sleep(0.002)
    if inside:
        while not any(left.stat().st_size > 0 for left in folder.glob(".*.tmp")):
            assert time.monotonic() < deadline, "no save was seen"
            time.sleep(0.0005)
        time.sleep(draw.uniform(0.0, 0.05))
    else:
        time.sleep(draw.uniform(0.0, 0.2))


def run(config: str, folder: Path) -> None:
    draw = random.Random(5)
    torch.set_num_threads(1)
    for number in range(KILLS + 1):
        start = newest(folder)
        last = number == KILLS
        pid = os.fork()
        if pid == 0:
            child(config, start, slow=number % 2 == 0)
            os._exit(0)
        try:
            await_moment(pid, folder, start, inside=number % 2 == 0, draw=draw)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        left = [path.name for path in folder.glob(".*.tmp")]
        reached = newest(folder)
        print(
            json.dumps(
                {
                    "resumed from": start.name if start else None,
                    "reached": reached.name if reached else None,
                    "half-written": left,
                    "files": sorted(path.name for path in folder.glob("*")),
                    "last": last,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
