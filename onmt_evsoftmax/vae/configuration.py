"""An experiment's configuration: a dataclass filled from YAML, strictly.

A key that the dataclass does not have, a key given twice and a value of another type are errors
that name file, line and key. ``--set key=value`` overrides the file.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.report.files import replacing

C = TypeVar("C")

#: The copy beside what was made with it.
FILE = "config.yaml"


def load(kind: type[C], path: str | Path | None = None, overrides: Sequence[str] = ()) -> C:
    """A ``kind`` with the file's keys, then the overrides (``key=value``), over its defaults."""
    values: dict[str, Any] = {}
    if path is not None:
        values.update(_convert(kind, place, key, value) for place, key, value in _read(path))
    for override in overrides:
        key, equals, text = override.partition("=")
        place = f"--set {override}"
        if not equals:
            raise UserError(f"{place}: must be KEY=VALUE")
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
            raise UserError(f"{place}: {text!r} is not YAML") from error
        values.update([_convert(kind, place, key.strip(), value)])
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
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, ValueError):
        return None
    if not isinstance(values, dict):
        return None
    return {key: value for key, value in values.items() if key not in choices}


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


def _read(path: str | Path) -> Iterator[tuple[str, str, Any]]:
    """(place, key, value) of every entry of a YAML mapping."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{path}: must be a list of `key: value`")
    seen: set[str] = set()
    for key_node, value_node in node.value:
        place = f"{path}, line {key_node.start_mark.line + 1}"
        key = str(key_node.value)
        if key in seen:
            raise UserError(f"{place}: {key} is given twice; keep one")
        seen.add(key)
        try:
            value = loader.construct_object(value_node, deep=True)
        except (yaml.YAMLError, ValueError) as error:  # an unknown tag, or a date that is none
            reason = getattr(error, "problem", None) or error
            raise UserError(f"{place}: the value of {key} is not YAML: {reason}") from error
        yield place, key, value


def _convert(kind: type, place: str, key: str, value: Any) -> tuple[str, Any]:
    keys = [field.name for field in dataclasses.fields(kind)]
    if key not in keys:
        raise UserError(f"{place}: {unknown_name('key', key, keys)}")
    wanted = typing.get_type_hints(kind)[key]
    element = typing.get_args(wanted)
    if typing.get_origin(wanted) is dict:
        if not isinstance(value, dict):
            raise UserError(f"{place}: {key} must be `name: value` pairs, not {value!r}")
        pairs = value.items()
        return key, {
            _scalar(place, key, name, element[0]): _scalar(place, f"{key}, {name}", v, element[1])
            for name, v in pairs
        }
    if element:
        if not isinstance(value, list):
            value = [value]
        return key, [_scalar(place, key, item, element[0]) for item in value]
    return key, _scalar(place, key, value, wanted)


def _scalar(place: str, key: str, value: Any, wanted: type) -> Any:
    # YAML 1.1 reads 1e-3 as text and 1 as an integer; both are fine where a float is wanted.
    if wanted is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    if type(value) is not wanted:
        raise UserError(f"{place}: {key} must be {_spoken(wanted)}, not {value!r}")
    return value


def _spoken(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
