"""YAML files of keys and values, read strictly: what YAML would drop in silence is an error."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import yaml

from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.report.files import lines_of

#: What PyYAML raises; ValueError for a date that is none.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
_SPOKEN = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys of a file with their values."""
    return {key: value for _, key, value in entries(path)}


def entries(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, Any]]:
    """Where each entry of a file is, for messages; its key and its value."""
    text = "\n".join(lines_of(path))
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node() or yaml.MappingNode("", [])
        keys = [key for key, _ in root.value] if isinstance(root, yaml.MappingNode) else [None]
        if not all(isinstance(key, yaml.ScalarNode) for key in keys):
            raise UserError(f"{path}: must be a list of `key: value`")
        refuse_repeated(root, path)
        loader.flatten_mapping(root)  # what `<<` stands for
    except _NOT_YAML as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    for key, node in root.value:
        place = f"{path}, line {key.start_mark.line + 1}"
        try:
            value = loader.construct_object(node, deep=True)
        except _NOT_YAML as error:  # an unknown tag, for example
            reason = getattr(error, "problem", None) or error
            raise UserError(f"{place}: the value of {key.value} is not YAML: {reason}") from error
        yield place, str(key.value), value


def refuse_repeated(node: yaml.Node | None, name: object) -> None:
    """Refuse a key that is given twice in one mapping of the file ``name``, at any depth."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            refuse_repeated(item, name)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue  # whoever reads the keys says that a list is none
        line = key.start_mark.line + 1
        if key.value in lines:
            raise UserError(
                f"{name}, line {line}: the key {key.value!r} is already in line "
                f"{lines[key.value]}; remove one of them"
            )
        lines[key.value] = line
        refuse_repeated(value, name)


def typed(hints: Mapping[str, Any], place: str, key: str, value: Any) -> Any:
    """The value of a key as its type hint has it; one alone may stand for a list of one."""
    if key not in hints:
        raise UserError(f"{place}: {unknown_name('key', key, hints)}")
    return _of_type(hints[key], f"{place}: {key}", value)


def _of_type(hint: Any, what: str, value: Any) -> Any:
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind is list:
        items = value if isinstance(value, list) else [value]
        return [_of_type(parts[0], what, item) for item in items]
    if kind in (dict, Mapping):
        if not isinstance(value, dict):
            raise UserError(f"{what} must be `key: value` pairs, not {value!r}")
        return {
            _of_type(parts[0], what, name): _of_type(parts[1], f"{what}, {name}", item)
            for name, item in value.items()
        }
    # YAML 1.1 reads 1e-3 as text and 1 as an integer; both are fine where a float is wanted.
    if hint is float and type(value) in (int, str):
        with suppress(ValueError, OverflowError):
            return float(value)
    if hint is not Any and type(value) is not hint:
        raise UserError(f"{what} must be {_SPOKEN[hint]}, not {value!r}")
    return value


def setting(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` of ``--set``; the value is YAML."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set takes KEY=VALUE, not {text}")
    return key.strip(), value_of(key.strip(), value)


def value_of(key: str, text: str) -> Any:
    """The value of a key that is given as text, which is YAML."""
    try:
        return yaml.safe_load(text)
    except _NOT_YAML as error:
        raise UserError(f"{key}: the value {text!r} is not YAML") from error
