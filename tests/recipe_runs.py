"""Small data for every recipe, and running, killing and watching its run.sh."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import corpus_files as archives
import psutil

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"
SNAKEFILE = RECIPES / "study" / "Snakefile"
BIN = Path(sys.executable).parent
# A whole corpus is one batch and nothing is dropped out, so that a training that was resumed ends
# where an uninterrupted one does.
TINY = {
    "train_steps": 6, "valid_steps": 3, "save_checkpoint_steps": 2, "enc_layers": 1,
    "dec_layers": 1, "hidden_size": 16, "word_vec_size": 16, "transformer_ff": 16, "heads": 2,
    "batch_size": 100000, "accum_count": 1, "bucket_size": 5000, "num_workers": 0, "dropout": 0.0,
    "attention_dropout": 0.0, "report_every": 1,
}  # fmt: skip
SETTINGS = [f"--set={key}={value}" for key, value in TINY.items()]


def environment(**more: str) -> dict[str, str]:
    """This environment's programs first on the PATH."""
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **more}


def small(recipe: str, folder: Path) -> list[str]:
    """Options that give a recipe small data in ``folder``; the output is folder/out."""
    given = folder / "in"
    given.mkdir(exist_ok=True)
    if recipe == "demo":
        command = [sys.executable, ROOT / "data" / "make_corpus.py", "--if-missing"]
        sizes = ["--train", "150", "--valid", "10", "--test", "8", "--test-hard", "4"]
        out = ["-o", folder / "out" / "tokenised"]
        subprocess.run([*map(str, command), *sizes, *map(str, out)], check=True, timeout=120)
        return ["--size", "100"]
    if "multi30k" in recipe:
        archives.multi30k(given)
    if "tatoeba" in recipe:
        archives.tatoeba(given)
    if recipe == "iwslt14":
        archives.tar(given / "de-en.tgz", archives.iwslt_members())
    if recipe == "wmt16":
        archives.wmt(given)
    sources = archives.unchecked(folder, given)
    return ["--data-dir", str(given), "--sources", str(sources), "--size", "100"]


def command(recipe: str, folder: Path, *options: str, out: str = "out") -> list[str]:
    """run.sh of a recipe on its small data."""
    script = str(RECIPES / recipe / "run.sh")
    return [script, "-o", str(folder / out), *small(recipe, folder), *SETTINGS, *options]


def call(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, env=environment(**more), timeout=900, cwd=folder
    )


def start(words: list[str], folder: Path, **more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment(**more),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Tests that run in the background ignore SIGINT, and what they start would do so too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """As a power cut does it: everything that was started, at once."""
    try:
        everything = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for one in [psutil.Process(process.pid), *everything]:  # parents first: they start no more
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 120, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(every)
