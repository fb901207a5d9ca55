"""One job = one method and one seed in one folder; an experiment = all jobs of a configuration.

``OUTPUT/METHOD-seedN/`` holds ``config.yaml``, checkpoints, ``tensorboard/`` and, when finished,
``results.json``; ``OUTPUT/shared/`` the models that all jobs use. A finished job is not run again,
an interrupted one continues. Jobs are independent of each other once ``shared`` is there.
"""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import onmt_evsoftmax
from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.vae import configuration, distributed
from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.training import Run

#: Name of an experiment, which is that of its module → what it is.
EXPERIMENTS = {
    "cvae": "even and odd digits from a conditional VAE (paper: Figures 2 and 3)",
    "ssvae": "semi-supervised VAE, marginalised over the support or sampled (paper: Table 2)",
    "vqvae": "VQ-VAE, PixelCNN prior and Wide ResNet judge (paper: Table 3 and Figure 5)",
}


@dataclass
class Experiment:
    """An experiment's module with its configuration, place and data (loaded when first needed)."""

    name: str
    module: ModuleType
    configuration: Any
    output: Path
    load: Callable[[], DataSet]
    device: torch.device
    tensorboard: bool = True
    _data: DataSet | None = None

    @property
    def data(self) -> DataSet:
        """The data set on the device."""
        if self._data is None:
            self._data = self.load().to(self.device)
        return self._data

    def prepare(self) -> None:
        """Train what all jobs share; call it alone before starting jobs in parallel."""
        shared = self._shared()
        self._open(shared)
        self.module.prepare(shared, self.configuration, self.data)

    def run_job(self, method: str, seed: int) -> Path:
        """Run, resume or skip one job; the path of its results."""
        run, shared = self._run(f"{method}-seed{seed}", seed), self._shared()
        target = run.folder / "results.json"
        if target.exists():
            print(f"{target}: finished already", file=sys.stderr)
            return target
        self._open(shared, run)
        methods = self.module.job(run, shared, self.configuration, self.data, method)
        results = {
            "experiment": self.name,
            "job": method,
            "seed": seed,
            "data": self.data.name,
            "epochs": self.configuration.epochs,
            **provenance(),
            "methods": methods,
        }
        if distributed.rank() == 0:
            write_json(target, results)
        distributed.wait()
        return target

    def _shared(self) -> Run:
        """The folder and seed of what all jobs use."""
        return self._run("shared", self.configuration.shared_seed)

    def _run(self, name: str, seed: int) -> Run:
        """A folder of this experiment; it is refused if it was begun under other settings."""
        folder = self.output / name
        configuration.refuse_other(self.configuration, folder / "config.yaml")
        return Run(folder, seed, self.device, self.tensorboard)

    def _open(self, *runs: Run) -> None:
        """Claim folders for this configuration, after all that may still refuse it.

        A refused run that left its configuration would have the next, right one refused as well.
        """
        data = self.data
        if hasattr(self.module, "check"):
            self.module.check(self.configuration, data)
        distributed.wait()
        if distributed.rank() == 0:
            for run in runs:
                configuration.save(self.configuration, run.folder / "config.yaml")


def provenance() -> dict[str, str]:
    """Command, versions and the commit of the sources, for whoever reads the results later."""
    return {
        "command": shlex.join(["python", "-m", "onmt_evsoftmax.vae", *sys.argv[1:]]),
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


def write_json(path: Path, content: Any) -> None:
    """Write JSON whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")


def read_results(folders: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Every ``results.json`` in or directly below the folders; they must belong together."""
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        for path in sorted({*folder.glob("results.json"), *folder.glob("*/results.json")}):
            found.setdefault(path.resolve(), path)  # a folder may be given twice
    if not found:
        raise UserError(f"no results.json below {', '.join(map(str, folders))}; run the jobs first")
    results = {path: _read_result(path) for path in found.values()}
    _refuse_strangers(results)
    return list(results.values())


def _read_result(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["experiment"] not in EXPERIMENTS:
            raise ValueError(unknown_name("experiment", str(content["experiment"]), EXPERIMENTS))
        if type(content["seed"]) is not int:
            raise ValueError(f"seed {content['seed']!r} is no whole number")
        for method in content["methods"].values():
            for value in method["metrics"].values():
                float(value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not the results of a job ({error}); remove it") from error
    return content


def _refuse_strangers(results: dict[Path, dict[str, Any]]) -> None:
    """Refuse results whose mean would mean nothing: of two set-ups, or of one job twice."""
    if len(results) == 1:
        return
    settings = {path: _settings(path, content) for path, content in results.items()}
    first, *_ = results
    owners: dict[tuple[str, int], Path] = {}
    for path, content in results.items():
        for key in settings[first] | settings[path]:
            one, other = (_spoken(settings[owner], key) for owner in (first, path))
            if one != other:
                raise UserError(
                    f"{first} has {one} but {path} has {other}; "
                    "give folders of one experiment and configuration"
                )
        for method in content["methods"]:
            owner = owners.setdefault((method, content["seed"]), path)
            if owner != path:
                raise UserError(
                    f"{owner} and {path} are both {method} with seed {content['seed']}; "
                    "give only one of them"
                )


def _settings(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """All that results must have in common: the experiment, and the configuration beside them."""
    beside = path.with_name("config.yaml")
    values = configuration.saved(beside)
    if values is None:
        raise UserError(
            f"{beside} cannot be read, so nothing tells whether {path} belongs to the others; "
            "give folders as their jobs left them, or that one alone"
        )
    return {"experiment": content["experiment"], **values}


def _spoken(settings: dict[str, Any], key: str) -> str:
    return f"{key}: {settings[key]}" if key in settings else f"no {key}"
