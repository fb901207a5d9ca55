"""The VAE commands on small data, for the tests that run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vae_data import write_mnist

from onmt_evsoftmax.vae.experiment import experiments

ROOT = Path(__file__).parents[2]
EXPERIMENTS = experiments()
RECIPES = sorted((ROOT / "recipes" / "vae").glob("*.yaml"))

#: Every experiment in a few seconds.
SMALL = {
    "cvae": ["data=mnist", "epochs=2", "classifier_epochs=1", "evaluations=4", "seeds=[1,2]"],
    "ssvae": ["data=mnist", "epochs=1", "pretraining_epochs=1", "labelled=0.3", "seeds=[1]"],
    "vqvae": ["data=mnist", "epochs=1", "autoencoder_epochs=1", "wideresnet_epochs=1", "hidden=8"],
}
SMALL["ssvae"] += ["validation_images=40"]
SMALL["vqvae"] += [
    "prior_hidden=8",
    "layers=2",
    "samples_per_class=5",
    "learning_rates=[1e-3,1e-2]",
    "best_epoch=true",
]


def arguments(experiment: str, folder: Path, *extra: str) -> list[str]:
    data = folder / "data"
    if not data.exists():
        write_mnist(data)
    settings = [word for setting in SMALL[experiment] for word in ("--set", setting)]
    place = ["-o", str(folder / "out"), "--data-dir", str(data), "--no-tensorboard"]
    return [experiment, *place, *settings, *extra]


def program(*words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "onmt_evsoftmax.vae", *words],
        capture_output=True, text=True, check=False, cwd=ROOT, **options,
    )  # fmt: skip
