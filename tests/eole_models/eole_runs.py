"""Running eole: in this process, since importing it takes seconds, or as a user would."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import yaml

ROOT = Path(__file__).parents[2]
LEGACY = ROOT / "tests" / "legacy"
BIN = Path(sys.executable).parent
SIZE = {"layers": 1, "heads": 2, "hidden_size": 16, "transformer_ff": 16}


def eole(line):
    """``eole LINE`` in this process; eole leaves its model's path in the environment."""
    from eole.bin.main import main

    with mock.patch.dict(os.environ), mock.patch.object(sys, "argv", ["eole", *shlex.split(line)]):
        main()


def predict_config(**keys):
    from eole.config.run import PredictConfig

    with mock.patch.dict(os.environ):
        return PredictConfig(**keys)


def program(*command, cwd, fails=False, **environment):
    """A command in a process of its own: what it says."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def settings(corpus, normalizer, model=None, **training):
    """Write c.yaml here: what a small transformer on the embedded corpus is trained with."""
    paths = {"path_src": str(corpus / "train.en"), "path_tgt": str(corpus / "train.de")}
    config = {
        "data": {"corpus": paths},
        "src_vocab": str(corpus / "v.src"),
        "tgt_vocab": str(corpus / "v.tgt"),
        "save_data": "run",
        "n_sample": 0,
        "seed": 1,
        "model": {
            "architecture": "transformer",
            **SIZE,
            "attention_normalizer": normalizer,
            "embeddings": {
                "word_vec_size": 16,
                "position_encoding_type": "SinusoidalInterleaved",
            },
            **(model or {}),
        },
        "training": {
            "model_path": "model",
            "batch_size": 8,
            "batch_type": "sents",
            "num_workers": 0,
            "bucket_size": 200,
            "save_checkpoint_steps": 1000,
            **training,
        },
    }
    Path("c.yaml").write_text(yaml.safe_dump(config))
