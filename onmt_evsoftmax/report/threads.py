"""How many threads torch computes with, so that a busy machine slows a program down only a little.

Torch takes every core, and its threads wait for one another by spinning, hundreds of times in every
batch. If another program keeps one of two cores busy, both threads end up on the other one, where
each spins while the one it waits for is not running: everything takes 12 to 20 times as long.

A program that calls :func:`govern` takes no more threads than it was given CPUs, gives one up for
every CPU that its threads wait for, and takes it back when the machine is idle again. Numbers that
the user has set stay as they are.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

#: Where a user says how many threads there are.
CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_DYNAMIC")
#: Seconds between two looks at how long our threads have waited.
WINDOW = 0.1
#: How much of a CPU our threads may lack before one of them is given up.
LACK = 0.3
#: Seconds before threads that were given up are tried again: doubled when that was too early.
PATIENCE, MOST_PATIENCE = 1.0, 60.0
_TASKS = Path("/proc/self/task")


class Governor:
    """Chooses the number of torch's threads while a model computes."""

    def __init__(self) -> None:
        self.most = max(1, int(min(torch.get_num_threads(), quota())))
        self.patience = PATIENCE
        self.told = False
        torch.set_num_threads(self.most)
        self._look(time.monotonic())
        self.retry = -math.inf

    def _look(self, now: float) -> None:
        self.since, self.waited = now, waited()

    def adapt(self, *_: object) -> None:
        """To be called all the time, by the thread that computes: it mostly does nothing."""
        now = time.monotonic()
        if now - self.since < WINDOW:
            return
        before, elapsed = self.waited, now - self.since
        self._look(now)
        lacking = (self.waited - before) / elapsed
        count = torch.get_num_threads()
        if count > 1 and lacking > LACK:
            torch.set_num_threads(max(1, count - max(1, round(lacking))))
            soon = now < self.retry + MOST_PATIENCE
            self.patience = min(2 * self.patience, MOST_PATIENCE) if soon else PATIENCE
            self.retry = now + self.patience
            self._tell()
        elif count < self.most and now > self.retry and running() <= 1 + cpus() - self.most:
            torch.set_num_threads(self.most)

    def _tell(self) -> None:
        if not self.told:
            self.told = True
            print(
                f"note: other programs use the CPUs; computing with {torch.get_num_threads()} "
                f"instead of {self.most} threads while they do (OMP_NUM_THREADS={self.most} "
                f"keeps {self.most})",
                file=sys.stderr,
            )


_governor: Governor | None = None


def govern() -> None:
    """Let this program choose its number of threads, unless the user has done so."""
    global _governor
    chosen = any(os.environ.get(name) for name in CHOSEN)
    if _governor is None and not chosen and torch.get_num_threads() > 1 and _TASKS.exists():
        _governor = Governor()


def watch(model: nn.Module) -> None:
    """In a program that governs its threads: adapt them wherever ``model`` enters a layer."""
    if _governor is not None and _governor.most > 1:
        for layer in _layers(model):
            layer.register_forward_pre_hook(_governor.adapt)


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    yield from model.children()
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            yield from module


def waited() -> float:
    """Seconds that the threads of this process were ready to run and had no CPU, all together."""
    total = 0
    for task in os.listdir(_TASKS):
        try:
            total += int((_TASKS / task / "schedstat").read_text().split()[1])
        except (OSError, IndexError):  # the thread has just ended, or the kernel does not count
            continue
    return total / 1e9


def running() -> int:
    """How many threads run or want to run on this machine, the asking one among them."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        return 1


def cpus() -> int:
    """CPUs of this machine."""
    return os.cpu_count() or 1


def quota(root: Path = Path("/")) -> float:
    """CPUs' worth of time that the cgroups of this process may use; infinity without a limit."""
    limits = [math.inf]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup" / controllers
        own = top / path.strip("/")
        # Inside a container the path may be the host's, and `top` is what the container has.
        folders = [own, *(folder for folder in own.parents if folder.is_relative_to(top))]
        limits += [limit for folder in folders if (limit := _limit(folder))]
    return min(limits)


def _limit(folder: Path) -> float | None:
    """The limit of one cgroup, of version 2 or 1; None if it has none."""
    try:
        if (folder / "cpu.max").exists():
            allowed, period = (folder / "cpu.max").read_text().split()
        else:
            allowed = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        limit = float(allowed) / float(period)
    except (OSError, ValueError):  # no such controller, or "max"
        return None
    return limit if limit > 0 else None
