"""The runs of a recipe: which folder holds which normalizer and seed, and how it is trained."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onmt_evsoftmax.corpora import settings
from onmt_evsoftmax.corpora.recipe import Recipe, filled
from onmt_evsoftmax.normalizers import registry
from onmt_evsoftmax.report import yaml_file
from onmt_evsoftmax.report.console import UserError


@dataclass(frozen=True)
class Run:
    """One folder of the output: a model, what it translates and what it attends to."""

    folder: str
    column: str  # of the table; empty for a model that is only fine-tuned
    normalizer: str  # what it is trained with
    seed: int
    pretrained: str = ""  # checkpoint it starts from, relative to the output folder or absolute
    reuses: str = ""  # the run whose model it is, instead of a training …
    switched_to: str = ""  # … and the normalizer that this model is used with

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """Everything ``onmt_train`` is told."""
        return settings.of_run(recipe, self.folder, self.normalizer, self.seed, self.pretrained)


def of_recipe(recipe: Recipe) -> dict[str, Run]:
    """Every run of a recipe by its folder.

    A recipe that fine-tunes has a pretrained model per seed: a file, or a run of its own.
    """
    runs = []
    tuned = "-finetuned" if recipe.pretrained else ""
    for seed in map(int, several(recipe.seeds)):
        start = ""
        if recipe.pretrained:
            start = os.path.normpath(filled(recipe.pretrained, output=".", seed=seed))
            if "{output}" in recipe.pretrained:
                folder = os.path.dirname(start)
                runs.append(Run(folder, "", "softmax", seed))
            else:
                start = os.path.abspath(start)
        for name in several(recipe.normalizers):
            folder = f"{name}{tuned}-seed{seed}"
            record = registry.look(name)
            trained = record.get("trained_as")
            if not trained:
                runs.append(Run(folder, name, name, seed, start))
                continue
            # OpenNMT-py's commands take what can be trained: the one that computes the same.
            other = record.get("row_kernel") or name
            runs.append(
                Run(folder, name, trained, seed, start, f"{trained}{tuned}-seed{seed}", other)
            )
    return {run.folder: run for run in runs}


def several(value: Any) -> list[Any]:
    """A list from ``seeds='[1,2]'``, and from ``seeds=1`` too."""
    return list(value) if isinstance(value, list | tuple) else [value]


def check_normalizers(names: Sequence[str]) -> None:
    """Refuse a name that is wrong now, not after the data are prepared."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--normalizer: {name} is given twice")
        try:
            record = registry.get_record(name)
        except ValueError as error:
            raise UserError(f"--normalizer: {error}") from error
        if record.trained_as and record.trained_as not in names:
            raise UserError(
                f"--normalizer {name} makes the {record.trained_as} model sparse: "
                f"add --normalizer {record.trained_as}"
            )


def check_settings(recipe: Recipe, output: str | os.PathLike[str]) -> None:
    """Refuse an output folder whose runs were trained with other settings.

    Their checkpoints must be neither trained further nor mixed with others in a table.
    """
    for run in of_recipe(recipe).values():
        if run.reuses:
            continue
        changed = settings.change_since(
            Path(output, run.folder, "settings.yaml"), run.settings(recipe)
        )
        if changed:
            raise UserError(
                f"{output}/{run.folder} was trained with other settings: {changed}; "
                "choose another -o, or delete it"
            )


def changes(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Settings of a mapping or of ``KEY=VALUE`` words; Snakemake hands over values as text."""
    if not isinstance(given, Mapping):
        return dict(yaml_file.setting(text) for text in given)
    return {
        key: yaml_file.value_of(key, value) if isinstance(value, str) else value
        for key, value in given.items()
    }
