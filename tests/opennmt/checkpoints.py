"""Checkpoints of small random models, saved by OpenNMT-py's own saver."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import onmt.models.model_saver

#: Subwords of a SentencePiece vocabulary, so that words and subwords differ.
PIECES = ["▁does", "▁that", "▁make", "▁you", "▁cur", "ious", "▁?", "▁macht", "▁sie", "▁neu", "ig"]
SOURCE = ["▁does ▁that ▁make ▁you ▁cur ious ▁?", "▁you", "▁make ▁that ig", "▁cur ious ▁unseen"]
TARGET = ["▁macht ▁sie ▁neu ig ▁?", "▁sie", "▁macht ig ig ▁neu", "▁neu ig"]


def save(path: Path, *arguments: str, seed: int = 0, words: list[str] = PIECES) -> Path:
    """A checkpoint of a random model with these options of ``onmt_train``."""
    model = models.build(*arguments, words=words, seed=seed)
    saver = onmt.models.model_saver.ModelSaver
    given: dict[str, Any] = {
        "base_path": str(path.with_suffix("")),
        "model": model,
        "model_opt": model.options,
        "vocabs": model.vocabs,
        "optim": SimpleNamespace(state_dict=dict),
        "keep_checkpoint": -1,
        # OpenNMT-py 3.5 asks for these besides.
        "save_format": "pytorch",
        "device_id": 0,
    }
    parameters = inspect.signature(saver).parameters
    saver(**{name: value for name, value in given.items() if name in parameters}).save(1)
    path.with_name(f"{path.stem}_step_1.pt").rename(path)
    return path


def text(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
