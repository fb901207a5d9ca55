"""Freed memory stays with the program, unless the user wants it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

from onmt_evsoftmax.report import memory

# What a step of a training does: many large tensors at once, all freed, then the same again.
STEPS = """
import resource
import torch
from onmt_evsoftmax.report import memory
kept = memory.keep_freed()
def step():
    tensors = [torch.ones(4_000_000) for _ in range(6)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**settings: str) -> tuple[str, int]:
    free = {name: value for name, value in os.environ.items() if name not in memory.CHOSEN}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], env={**free, **settings}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_steps_take_what_the_last_one_freed() -> None:
    kept, few = page_faults()
    assert kept == "True"
    chosen, many = page_faults(MALLOC_TRIM_THRESHOLD_="0")  # the user's word
    assert chosen == "False"
    assert 10 * few < many


def test_elsewhere_nothing_is_changed(monkeypatch) -> None:
    for name in memory.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())  # a library without mallopt
    assert not memory.keep_freed()
