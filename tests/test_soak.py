"""A small part of the soak, and proof that it notices a program that writes in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("soak.py")


@pytest.mark.slow
def test_programs_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    """Hundreds of kills: python tests/soak.py --help."""
    command = [sys.executable, str(SCRIPT), "-o", str(tmp_path), "--kills", "20"]
    command += ["--only", "train", "average", "score"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "'kills': 10" in done.stdout


@pytest.mark.slow
def test_a_program_that_writes_in_place_is_noticed(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import soak
from pathlib import Path

def start(folder):
    slow = "for i in $(seq 50); do printf x; sleep 0.01; done >s.json"
    return subprocess.Popen(["sh", "-c", slow], cwd=folder).pid

soak.JOBS["score"] = soak.Job(start, "s.json", Path.read_bytes)
soak.Soak("score", Path({str(tmp_path)!r}), 1).run(40)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "s.json is not what it would have become" in done.stderr
