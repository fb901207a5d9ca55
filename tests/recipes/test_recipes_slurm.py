"""The study on a real SLURM on this machine; jobs and the node's daemon are killed meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("snakemake_executor_plugin_slurm", reason="pip install '.[study]'")

import slurm
from recipe_runs import BIN, RECIPES, SNAKEFILE, TINY, environment, small, wait_until

if slurm.missing() and os.environ.get("REQUIRE_SLURM"):
    raise RuntimeError(f"the study cannot be tested on SLURM: {slurm.missing()} missing")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(slurm.missing()),
        reason=f"NOT TESTED ON SLURM: {slurm.missing()} missing; apt-get install slurm-wlm munge",
    ),
]


def test_the_study_completes_though_jobs_and_the_node_are_killed(tmp_path):
    small("demo", tmp_path)
    out = tmp_path / "out"
    settings = ",".join(f"{key}={value}" for key, value in TINY.items())
    words = [
        BIN / "snakemake", "-s", SNAKEFILE, "--profile", RECIPES / "study" / "slurm",
        "--directory", out, "--slurm-status-command", "squeue", "--slurm-no-account",
        "--max-threads", "2", "--default-resources", "mem_mb=300", "runtime=30",
        "--latency-wait", "10", "--seconds-between-status-checks", "2",
        "--slurm-init-seconds-before-status-checks", "2",
        "--config", "corpus=demo", f"output={out}", "size=100", f"settings=[{settings}]",
        "seeds=[1]", "normalizers=[softmax,posthoc,evsoftmax]", "metrics=[bleu]",
    ]  # fmt: skip
    import subprocess

    with slurm.Slurm(tmp_path / "slurm") as cluster, (tmp_path / "log").open("w") as log:
        study = subprocess.Popen(
            list(map(str, words)), cwd=tmp_path, stdout=log, stderr=log,
            env=environment(SLURM_CONF=cluster.environment["SLURM_CONF"]),
        )  # fmt: skip
        try:
            wait_until(lambda: bool(cluster.jobs("train")) or study.poll() is not None, 600)
            assert study.poll() is None, (tmp_path / "log").read_text()[-3000:]
            cluster.run("scancel", cluster.jobs("train")[0])
            wait_until(lambda: bool(cluster.jobs("train")) or study.poll() is not None, 600)
            cluster.kill_node()
            cluster.start_node()
            code = study.wait(timeout=1800)
        finally:
            study.kill()
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
    told = json.loads((out / "study" / "table.json").read_text(encoding="utf-8"))
    assert told["seeds"] == {"softmax": 1, "posthoc": 1, "evsoftmax": 1}
    assert "Trying to restart job" in (tmp_path / "log").read_text(), "the cancelled one"


def test_no_job_asks_for_more_than_the_profile_allows():
    import yaml

    profile = yaml.safe_load((RECIPES / "study" / "slurm" / "config.yaml").read_text())
    assert profile["executor"] == "slurm"
    assert profile["max-threads"] >= 1
    assert Path(SNAKEFILE).exists()
