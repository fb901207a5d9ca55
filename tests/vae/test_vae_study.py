"""The VAE experiments as a target of the Snakemake study."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vae_data import write_mnist

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("snakemake", path=str(BIN)) is None,
        reason="snakemake is not beside this Python: pip install 'onmt_evsoftmax[study]'",
    ),
]

SMALL = """data: mnist
normalizers: [evsoftmax]
estimators: [nvil]
seeds: [3, 5]
epochs: 1
pretraining_epochs: 1
labelled: 0.3
"""


def study(folder: Path, *words: str) -> subprocess.CompletedProcess:
    settings = ["experiment=ssvae", f"experiment_config={folder / 'small.yaml'}",
                f"data_dir={folder / 'data'}", f"output={folder / 'out'}"]  # fmt: skip
    return subprocess.run(
        [BIN / "snakemake", "-s", ROOT / "recipes" / "study" / "Snakefile", "--cores", "2", "vae",
         *words, "--config", *settings],
        capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_every_method_and_seed_of_one_configuration_in_one_table(tmp_path):
    write_mnist(tmp_path / "data")
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    done = study(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    out = tmp_path / "out"
    jobs = {f"{method}-seed{seed}" for method in ("evsoftmax", "nvil") for seed in (3, 5)}
    assert {path.parent.name for path in out.glob("*/results.json")} == jobs
    rows = json.loads((out / "table.json").read_text(encoding="utf-8"))["rows"]
    assert set(rows) == {"evsoftmax", "nvil"}
    assert all(row["accuracy"]["count"] == 2 for row in rows.values())
    assert {path.name for path in (out / "figures").glob("a*")} == {"accuracy.png", "accuracy.pdf"}
    again = study(tmp_path)
    assert "Nothing to be done" in again.stderr + again.stdout

    # A job that was lost is the only one that is run again.
    shutil.rmtree(out / "nvil-seed5")
    (out / "table.txt").unlink()
    plan = study(tmp_path, "-n")
    assert (plan.stdout + plan.stderr).count("rule vae_job:") == 1


def test_an_unknown_experiment_is_told(tmp_path):
    done = subprocess.run(
        [BIN / "snakemake", "-s", ROOT / "recipes" / "study" / "Snakefile", "-n", "vae",
         "--config", "experiment=vqvea"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert "experiment 'vqvea' is none of cvae, ssvae, vqvae" in done.stdout + done.stderr


def plan(folder: Path, *settings: str) -> subprocess.CompletedProcess:
    """What would be run, with the commands."""
    return subprocess.run(
        [BIN / "snakemake", "-s", ROOT / "recipes" / "study" / "Snakefile", "-n", "-p", "vae",
         "--cores", "2", "--config", "experiment=cvae", f"output={folder / 'a b'}", *settings],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "start"),
    [(1, "python -m"), (2, "torchrun --standalone --nproc_per_node=2 -m")],
)
def test_a_job_has_a_process_per_gpu(tmp_path, gpus, start):
    done = plan(tmp_path, f"experiment_gpus={gpus}")
    assert done.returncode == 0, done.stderr[-3000:]
    commands = [line for line in (done.stdout + done.stderr).splitlines() if "OMP_NUM" in line]
    assert len(commands) > 2
    for command in commands:
        assert f"{start} onmt_evsoftmax.vae cvae" in command
        assert f">'{tmp_path}/a b/logs/" in command


def test_a_configuration_that_is_not_there_is_told(tmp_path):
    done = plan(tmp_path, "experiment_config=mine.yaml")
    assert done.returncode != 0
    assert "experiment_config mine.yaml does not exist" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
