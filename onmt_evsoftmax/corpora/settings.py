"""The settings of one training: the recipe's YAML files, and what differs from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.yaml_file import read

if TYPE_CHECKING:
    from onmt_evsoftmax.corpora.recipe import Recipe

# Keys that say where a run is, not how it is trained.
_PLACES = ("save_model", "log_file")


def of_run(
    recipe: Recipe, run: str, normalizer: str, seed: int, pretrained: str = ""
) -> dict[str, Any]:
    """Everything ``onmt_train`` is told for one run; paths are relative to the output folder.

    ``finetune.yaml`` applies to a run that starts from a ``pretrained`` checkpoint.
    """
    found = read(recipe.folder / "train.yaml")
    if pretrained:
        found |= read(recipe.folder / "finetune.yaml")
    # OpenNMT-py 3.0 adds sinusoids to the embeddings beside relative positions, and the recipes
    # were measured that way; 3.5 refuses to have both.
    if recipe.both_positions and version("OpenNMT-py").startswith("3.0."):
        found["position_encoding"] = True
    found |= recipe.settings
    try:
        found["data"] = {name: _in_languages(recipe, part) for name, part in found["data"].items()}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        shape = "`name: {path_src: FILE, path_tgt: FILE}`"
        raise UserError(f"{recipe.folder / 'train.yaml'}: data must be {shape}") from error
    found |= {
        "attention_normalizer": normalizer,
        "seed": seed,
        "save_model": f"{run}/model",
        "log_file": f"{run}/train.log",
    }
    return found | ({"train_from": pretrained} if pretrained else {})


def _in_languages(recipe: Recipe, part: Mapping[str, Any]) -> dict[str, Any]:
    """A corpus of the YAML whose files have the endings of the recipe's languages."""
    sides = {"path_src": recipe.source, "path_tgt": recipe.target}
    ours = {
        key: str(PurePosixPath(part[key]).with_suffix(f".{language}"))
        for key, language in sides.items()
        if key in part
    }
    return {**part, **ours}


def as_yaml(settings: Mapping[str, Any], recipe: str) -> list[str]:
    """The lines of a YAML file with these settings."""
    head = f"# Made from the YAML files of recipes/{recipe}; edit those and choose another folder."
    return [head, *yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True).splitlines()]


def change_since(path: Path, wanted: Mapping[str, Any]) -> str | None:
    """The first setting that differs from those in ``path``, as half a sentence; None if none does.

    A checkpoint of other settings must not be trained further, nor its scores mixed with others.
    """
    if not path.exists():
        return None
    before = read(path)
    choices = path.with_name("choices")
    keys: Sequence[str] = sorted({*before, *wanted})
    if choices.exists():  # written before a run had one file of settings
        words = choices.read_text(encoding="utf-8").split()
        before |= {
            key[1:]: yaml.safe_load(value)
            for key, value in pairwise(words)
            if key.startswith("-") and not key[1:2].isdigit()
        }
        keys = [key for key in before if key not in ("seed", "train_from")]
    for key in keys:
        if key not in _PLACES and before.get(key) != wanted.get(key):
            return f"{key} was {before.get(key)!r} and is now {wanted.get(key)!r}"
    return None
