"""Fixtures of the plugin's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock
from workbench import SPARSE, Workbench, hook_is_live, write_corpus


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """The corpus and its vocabulary, shared by all workers of a test run."""
    if not hook_is_live():
        pytest.skip("the stock commands need the package installed here: pip install -e .")
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    bench = Workbench(shared / "bench")
    with FileLock(shared / "bench.lock"):
        if not bench.folder.exists():
            bench.folder.mkdir()
            write_corpus(bench.folder)
            bench.run("build_vocab", "-config", bench.config("vocabulary").name, "-n_sample", "-1")
            lines = bench.folder.joinpath("vocab/src").read_text().splitlines()
            targets = bench.folder.joinpath("vocab/tgt").read_text().splitlines()
            bench.folder.joinpath("vocab/both").write_text("\n".join([*lines, *targets]) + "\n")
    return bench


@pytest.fixture(scope="session")
def averaged(bench: Workbench) -> Path:
    """The mean of two checkpoints with learned alphas."""
    last = bench.train("entmax", **SPARSE["entmax"])
    path = bench.folder / f"averaged-{os.getpid()}.pt"
    bench.run("average_models", "-models", last.with_name("model_step_30.pt"), last, "-o", path)
    return path
