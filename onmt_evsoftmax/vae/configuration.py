"""An experiment's configuration: a dataclass filled from YAML, strictly.

A key that the dataclass does not have, a key given twice and a value of another type are errors
that name file, line and key. ``--set key=value`` overrides the file.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.report.yaml_file import entries, read, setting, typed

C = TypeVar("C")

#: The copy beside what was made with it.
FILE = "config.yaml"


def load(kind: type[C], path: str | Path | None = None, overrides: Sequence[str] = ()) -> C:
    """A ``kind`` with the file's keys, then the overrides (``key=value``), over its defaults."""
    hints = typing.get_type_hints(kind)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = list(entries(path)) if path is not None else []
    given += [(f"--set {override}", *setting(override)) for override in overrides]
    values = {key: typed(fields, place, key, value) for place, key, value in given}
    try:
        return kind(**values)
    except ValueError as error:
        raise UserError(f"{path or 'configuration'}: {error}") from error


def save(configuration: Any, path: Path) -> None:
    """Write every key, so that the copy beside the results says all that was in force."""
    with replacing(path) as temporary:
        text = yaml.safe_dump(dataclasses.asdict(configuration), sort_keys=False)
        temporary.write_text(text, encoding="utf-8")


def saved(path: Path, choices: Sequence[str]) -> dict[str, Any] | None:
    """Every key that ``save`` wrote, but those that choose jobs; None if it cannot be read."""
    try:
        return {key: value for key, value in read(path).items() if key not in choices}
    except UserError:
        return None


def refuse_other(configuration: Any, path: Path) -> None:
    """Refuse to continue in a folder whose ``path`` was written under another configuration."""
    if not path.exists():
        return
    before = saved(path, configuration.choices)
    if before is None:
        raise UserError(
            f"{path} cannot be read as the configuration its folder was begun with; "
            "choose another output folder, or remove that one"
        )
    for key, value in dataclasses.asdict(configuration).items():
        if key not in configuration.choices and before.get(key) != value:
            raise UserError(
                f"{path} was written with {key}: {before.get(key)!r}, now it is {value!r}; "
                "choose another output folder, or remove that one"
            )


def check_numbers(configuration: Any, *may_be_zero: str) -> None:
    """Refuse numbers, also in lists, that are not above 0, and lists with nothing in them.

    Keys in ``may_be_zero`` may be 0, or an empty list.
    """
    values = dataclasses.asdict(configuration)
    for key in ("seeds", "shared_seed"):
        for seed in values[key] if isinstance(values[key], list) else [values[key]]:
            if not -(2**63) <= seed < 2**63:
                raise ValueError(f"{key}: {seed} is too large for a seed; it must fit in 64 bits")
    for key, value in values.items():
        if value == [] and key not in may_be_zero:
            raise ValueError(f"{key} must list at least one")
        several = value.values() if isinstance(value, dict) else value
        for number in several if isinstance(value, (list, dict)) else [value]:
            if isinstance(number, (str, bool)) or key in ("seeds", "shared_seed"):
                continue
            if not (number > 0 or (number == 0 and key in may_be_zero)):
                raise ValueError(f"{key} must be positive, not {number}")
