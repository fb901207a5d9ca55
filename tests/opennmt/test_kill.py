"""Kill −9 at any moment of a training: what lies under a final name is whole, and resumes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from workbench import Workbench

from onmt_evsoftmax.opennmt.checkpoint import load


def step(name: str | None) -> int:
    return int(re.findall(r"\d+", name)[-1]) if name else 0


def test_kills_some_inside_a_save(bench: Workbench) -> None:
    name = f"killed-{os.getpid()}"
    config = bench.config(
        name,
        train_steps=1_000_000,
        save_checkpoint_steps=1,
        keep_checkpoint=4,
        valid_steps=1_000_000,
        attention_normalizer="evsoftmax",
    )
    folder = bench.folder / name
    folder.mkdir()
    script = Path(__file__).with_name("killed_training.py")
    done = subprocess.run(
        [sys.executable, str(script), config.name, str(folder)],
        cwd=bench.folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    kills = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(kills) == 11  # the last one shows that the tenth could be resumed
    for before, kill in zip([None, *kills], kills, strict=False):
        # Every run started where the last one had completed a save, and got further.
        assert kill["resumed from"] == (before["reached"] if before else None)
        assert step(kill["reached"]) > step(kill["resumed from"])
        assert len(kill["half-written"]) <= 1  # and the next run sweeps it away
    assert sum(bool(kill["half-written"]) for kill in kills) >= 3
    whole = [path for path in folder.iterdir() if path.suffix == ".pt"]
    assert len(whole) >= 4
    for path in whole:
        assert load(path)["optim"]["training_step"] == step(path.name) + 1
