"""Torch's threads give way to other programs and to a quota, unless the user has set them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onmt_evsoftmax.report import threads

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A machine of four CPUs whose time, load and waiting the test sets; torch has four threads."""
    state = {"now": 100.0, "waited": 0.0, "running": 1, "threads": 4}
    monkeypatch.setattr(threads.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(threads, "waited", lambda: state["waited"])
    monkeypatch.setattr(threads, "running", lambda: state["running"])
    monkeypatch.setattr(threads, "cpus", lambda: 4)
    monkeypatch.setattr(threads, "quota", lambda: math.inf)
    monkeypatch.setattr(torch, "get_num_threads", lambda: int(state["threads"]))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: state.update(threads=count))
    return state


def passes(machine: dict[str, float], governor: threads.Governor, lacking: float) -> int:
    """Half a second passes, in which the threads lack so many CPUs; how many threads there are."""
    machine["now"] += 0.5
    machine["waited"] += 0.5 * lacking
    governor.adapt()
    return int(machine["threads"])


def test_threads_are_given_up_and_taken_back(
    machine: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    governor = threads.Governor()
    assert passes(machine, governor, 0.05) == 4
    machine["running"] = 2
    assert passes(machine, governor, 0.6) == 3
    told = capsys.readouterr().err
    assert "computing with 3 instead of 4 threads" in told
    assert "OMP_NUM_THREADS=4 keeps 4" in told
    assert [passes(machine, governor, 0.0) for _ in range(20)] == [3] * 20, "it is still busy"
    machine["running"] = 1
    assert passes(machine, governor, 0.0) == 4
    assert passes(machine, governor, 2.2) == 2
    assert passes(machine, governor, 5.0) == 1
    assert passes(machine, governor, 5.0) == 1
    assert capsys.readouterr().err == "", "once is enough"


def test_threads_that_come_back_too_early_wait_longer(machine: dict[str, float]) -> None:
    governor = threads.Governor()
    alone = []
    for _ in range(4):
        assert passes(machine, governor, 1.0) == 3
        began = machine["now"]
        while passes(machine, governor, 0.0) == 3:
            pass
        alone.append(machine["now"] - began)
    assert alone == sorted(alone)
    assert alone[-1] > 2 * alone[0]
    machine["now"] += 600  # an undisturbed while
    assert passes(machine, governor, 1000.0) < 4
    assert governor.patience == threads.PATIENCE


def test_a_look_too_early_costs_nothing(machine: dict[str, float]) -> None:
    governor = threads.Governor()
    machine["waited"] += 50
    machine["now"] += threads.WINDOW / 2
    governor.adapt()
    assert machine["threads"] == 4


def write(root: Path, files: dict[str, str]) -> float:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return threads.quota(root)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": "0::/a/b\n"}, math.inf),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, math.inf),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            1.5,
        ),
        ({"proc/self/cgroup": "0::/host/x\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
        (
            {
                "proc/self/cgroup": "4:memory:/d\n3:cpu,cpuacct:/d\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
)
def test_the_quota_of_a_container(tmp_path: Path, files: dict[str, str], expected: float) -> None:
    assert write(tmp_path, files) == expected


def test_no_more_threads_than_the_quota(
    machine: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "quota", lambda: 2.5)
    assert threads.Governor().most == machine["threads"] == 2
    monkeypatch.setattr(threads, "quota", lambda: 0.3)
    assert threads.Governor().most == machine["threads"] == 1


BUSY = """
import torch
from onmt_evsoftmax.report import threads
torch.set_num_threads(2)
threads.govern()
model = torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(200, 200)])[0])
threads.watch(model)
governed = threads._governor is not None
import time
end = time.monotonic() + (60 if governed else 0)
while torch.get_num_threads() > 1 and time.monotonic() < end:
    model(torch.zeros(200, 200))
print(governed, torch.get_num_threads())
"""


def run(**settings: str) -> str:
    free = {name: value for name, value in os.environ.items() if name not in threads.CHOSEN}
    done = subprocess.run(
        [sys.executable, "-c", BUSY], env={**free, **settings}, cwd=ROOT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_busy_machine_takes_a_thread_and_the_user_keeps_it() -> None:
    load = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(load) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        assert run() == "True 1\n"
        assert run(OMP_NUM_THREADS="2") == "False 2\n"
    finally:
        for other in others:
            other.kill()
            other.wait()
