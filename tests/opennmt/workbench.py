"""A small generated corpus, and the stock OpenNMT-py commands run on it as a user runs them."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onmt
import yaml
from filelock import FileLock
from forked_commands import COMMANDS

from onmt_evsoftmax.opennmt import load_model, record_attention
from onmt_evsoftmax.opennmt.checkpoint import load
from onmt_evsoftmax.opennmt.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
IS_35 = onmt.__version__.startswith("3.5")

# A model small enough that a command's start-up, not its work, is what a test waits for.
MODEL = {
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "position_encoding": True,
    "layers": 2,
    "heads": 2,
    "hidden_size": 16,
    "word_vec_size": 16,
    "transformer_ff": 32,
    "dropout": [0.1],
    "attention_dropout": [0.1],
    "param_init": 0,
    "param_init_glorot": True,
}
TRAINING = {
    "train_steps": 60,
    "valid_steps": 60,
    "save_checkpoint_steps": 30,
    "report_every": 30,
    "batch_size": 32,
    "bucket_size": 512,
    "num_workers": 0,
    "optim": "adam",
    "learning_rate": 0.01,
    "seed": 7,
}


def write_corpus(folder: Path) -> None:
    """Sentences of 2 to 9 words; the target says them in capitals, the first two words swapped."""
    draw = random.Random(1)
    words = [f"w{number}" for number in range(24)]
    for name, size in (("train", 400), ("valid", 32), ("test", 32)):
        sources = [draw.choices(words, k=draw.randint(2, 9)) for _ in range(size)]
        targets = [[s[1], s[0], *s[2:]] for s in sources]
        (folder / f"{name}.src").write_text("".join(" ".join(s) + "\n" for s in sources))
        (folder / f"{name}.tgt").write_text("".join(" ".join(t).upper() + "\n" for t in targets))


@functools.cache
def forking_server() -> subprocess.Popen[str]:
    """One process per test worker; it ends with its standard input."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forked_commands.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )


class Workbench:
    """A folder with the corpus in it, where the stock commands run as a user would run them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self, command: str, *arguments: object, code: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``onmt_<command>`` and insist on its exit code.

        With ``env`` in a new process, as what starts with it may differ; else in a fork.
        """
        words = [str(argument) for argument in arguments]
        if env is None and command in COMMANDS:
            done = self._fork(command, words)
        else:
            done = subprocess.run(
                [str(BIN / f"onmt_{command}"), *words],
                cwd=self.folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                capture_output=True,
                text=True,
                timeout=300,
            )
        assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}"
        return done

    def _fork(self, command: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        server = forking_server()
        files = [self.folder / f"{os.getpid()}.{name}" for name in ("stdout", "stderr")]
        request = {"command": command, "arguments": arguments, "cwd": str(self.folder)}
        request |= {path.suffix[1:]: str(path) for path in files}
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        assert answer, f"the server that forks has ended while it ran onmt_{command} {arguments}"
        texts = [path.read_text() for path in files]
        return subprocess.CompletedProcess([f"onmt_{command}", *arguments], int(answer), *texts)

    def config(self, name: str, **options: Any) -> Path:
        """Write a YAML for training: the small model, what the test wants, nothing else."""
        path = self.folder / f"{name}.yaml"
        corpus = {"path_src": "train.src", "path_tgt": "train.tgt", "weight": 1}
        data = {"corpus": corpus, "valid": {"path_src": "valid.src", "path_tgt": "valid.tgt"}}
        settings: dict[str, Any] = {
            "data": data,
            "save_data": "vocab/samples",
            "src_vocab": "vocab/src",
            "tgt_vocab": "vocab/tgt",
            "save_model": f"{name}/model",
            **MODEL,
            **TRAINING,
            **options,
        }
        kept = {key: value for key, value in settings.items() if value is not None}
        path.write_text(yaml.safe_dump(kept))
        return path

    def train(self, name: str, env: Mapping[str, str] | None = None, **options: Any) -> Path:
        """Train a model once, whichever test asks first; return its last checkpoint."""
        with FileLock(self.folder / f"{name}.lock"):
            config = self.config(name, **options)
            steps = yaml.safe_load(config.read_text())["train_steps"]
            last = self.folder / name / f"model_step_{steps}.pt"
            if not last.exists():
                done = self.run("train", "-config", config.name, env=env)
                (self.folder / f"{name}.log").write_text(done.stdout + done.stderr)
        return last

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def translate(self, model: Path | list[Path], *arguments: object, **run: Any) -> list[str]:
        """Translate the test set; return the lines."""
        models = model if isinstance(model, list) else [model]
        output = self.folder / f"{models[0].parent.name}.{os.getpid()}.out"
        self.run(
            "translate",
            *("-model", *models, "-src", "test.src", "-output", output, "-max_length", "12"),
            *arguments,
            **run,
        )
        return output.read_text().splitlines()


def python(
    executable: Path | str, code: str, *options: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, in no folder of ours."""
    return subprocess.run(
        [str(executable), *options, "-c", code],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, **env},
    )


def hook_is_live() -> bool:
    """Whether this environment's interpreters start with the plugin's hook."""
    done = python(sys.executable, "import sys; print('onmt_evsoftmax_hook' in sys.modules)")
    return done.stdout == "True\n"


# One training each; tests share them.
SPARSE: dict[str, dict[str, Any]] = {
    "evsoftmax": {"attention_normalizer": "evsoftmax"},
    "sparsemax": {"attention_normalizer": "sparsemax"},
    "entmax15": {"attention_normalizer": "entmax15"},
    "entmax": {"attention_normalizer": "entmax", "attention_alpha": "learn"},
    "sparsehourglass": {"attention_normalizer": "sparsehourglass"},
    "eps": {"attention_normalizer": "evsoftmax", "attention_eps": 1e-6},
    "mixed": {
        "context_attention_normalizer": "sparsemax",
        "generator_function": "sparsemax",
        "valid_metrics": ["BLEU"],  # translates with the model in training
    },
}


def supports(checkpoint: Path, **options: object) -> dict[str, float]:
    """Share of the valid keys that each kind of attention leaves non-zero on the test set."""
    loaded = load_model(checkpoint, **options)
    sources = [line.split() for line in (checkpoint.parents[1] / "test.src").open()]
    targets = [line.split() for line in (checkpoint.parents[1] / "test.tgt").open()]
    with record_attention(loaded.model) as records:
        loaded.force(sources, targets)
    return {record.kind: (record.support.sum() / record.mask.sum()).item() for record in records}


def settings_of(checkpoint: Path) -> Settings:
    return Settings.of(load(checkpoint)["opt"])
