"""One job = one method and one seed in one folder; a study = all jobs of a configuration.

``OUTPUT/METHOD-seedN/`` holds ``config.yaml``, checkpoints, ``tensorboard/`` and, when finished,
``results.json``; ``OUTPUT/shared/`` the models that all jobs use. A finished job is not run again,
an interrupted one continues. Jobs are independent of each other once ``shared`` is there.
"""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import onmt_evsoftmax
from onmt_evsoftmax.vae import configuration, distributed
from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.experiment import Configuration, Experiment
from onmt_evsoftmax.vae.results import RESULTS, write_results
from onmt_evsoftmax.vae.training import Run


@dataclass
class Study:
    """An experiment with its configuration, place and data (loaded when first needed)."""

    experiment: Experiment[Any]
    configuration: Configuration
    output: Path
    load: Callable[[], DataSet]
    device: torch.device
    tensorboard: bool = True
    command: str = ""  #: what was typed, for the results

    @functools.cached_property
    def data(self) -> DataSet:
        """The data set on the device."""
        return self.load().to(self.device)

    def prepare(self) -> None:
        """Train what all jobs share; call it alone before starting jobs in parallel."""
        shared = self._shared()
        self._open(shared)
        self.experiment.prepare(shared, self.configuration, self.data)

    def run_job(self, method: str, seed: int) -> Path:
        """Run, resume or skip one job; the path of its results."""
        run, shared = self._run(f"{method}-seed{seed}", seed), self._shared()
        target = run.folder / RESULTS
        if target.exists():
            print(f"{target}: finished already", file=sys.stderr)
            return target
        self._open(shared, run)
        outcomes = self.experiment.job(run, shared, self.configuration, self.data, method)
        results = {
            "experiment": self.experiment.name,
            "job": method,
            "seed": seed,
            "data": self.configuration.data,
            "epochs": self.configuration.epochs,
            "command": self.command,
            **provenance(),
            "methods": {name: outcome.json() for name, outcome in outcomes.items()},
        }
        if distributed.rank() == 0:
            write_results(target, results)
        distributed.wait()
        return target

    def _shared(self) -> Run:
        """The folder and seed of what all jobs use."""
        return self._run("shared", self.configuration.shared_seed)

    def _run(self, name: str, seed: int) -> Run:
        """A folder of this study; it is refused if it was begun with other settings."""
        folder = self.output / name
        configuration.refuse_other(self.configuration, folder / configuration.FILE)
        return Run(folder, seed, self.device, self.tensorboard)

    def _open(self, *runs: Run) -> None:
        """Claim folders for this configuration, after everything that may still refuse it.

        A refused run that left its configuration behind would have the next, right one refused too.
        """
        self.experiment.check(self.configuration, self.data)
        distributed.wait()
        if distributed.rank() == 0:
            for run in runs:
                configuration.save(self.configuration, run.folder / configuration.FILE)


def provenance() -> dict[str, str]:
    """Versions and the commit of the sources, for whoever reads the results later."""
    return {
        "commit": _commit(),
        "version": onmt_evsoftmax.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _commit() -> str:
    """The commit the package is run from, ``+`` if it was changed since; "" outside git."""
    folder = Path(onmt_evsoftmax.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", str(folder))
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
