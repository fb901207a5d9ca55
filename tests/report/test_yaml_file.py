"""YAML files of keys and values: nothing that is written is dropped in silence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onmt_evsoftmax.report import yaml_file
from onmt_evsoftmax.report.console import UserError


def test_entries_are_the_keys_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("\ufeff# all\nsize: 3\r\nparts: &parts\n  a: [x, 1e-3]\n", encoding="utf-8")
    assert list(yaml_file.entries(path)) == [
        (f"{path}, line 2", "size", 3),
        (f"{path}, line 3", "parts", {"a": ["x", "1e-3"]}),
    ]
    path.write_text("base: &base {a: 1, b: 2}\n<<: *base\nb: 3\n")
    assert yaml_file.read(path) == {"base": {"a": 1, "b": 2}, "a": 1, "b": 3}
    path.write_text("# all as it is by default\n")
    assert yaml_file.read(path) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed: 1\nheads: 2\nseed: 3", "line 3: the key 'seed' is already in line 1; remove"),
        ("data:\n  - {a: {b: 1, c: 2, b: 3}}", "line 2: the key 'b' is already in line 2"),
        ("- a\n- b", "must be a list of `key: value`"),
        ("text", "must be a list of `key: value`"),
        ("[a]: 1", "must be a list of `key: value`"),
        ("a: [", "is not YAML: while parsing"),
        ("[" * 20_000, "is not YAML: maximum recursion"),
        ("<<: 3", "is not YAML: while constructing a mapping"),
        ("a: 1\nb: !foo 3", "line 2: the value of b is not YAML: .*!foo"),
        ("a: {b: 2020-13-45}", "line 1: the value of a is not YAML: month"),
        ("", "is empty"),
    ],
)
def test_what_is_no_list_of_keys_is_told(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as told:
        yaml_file.read(path)
    assert str(path) in str(told.value)


HINTS = {"rates": list[float], "of": Mapping[str, float], "seed": int, "any": Any}


def test_values_are_of_the_type_of_their_key() -> None:
    def typed(key: str, value: object) -> object:
        return yaml_file.typed(HINTS, "here", key, value)

    assert typed("rates", "1e-3") == [1e-3]
    assert typed("of", {"a": 1}) == {"a": 1.0}
    assert typed("any", [None]) == [None]
    for key, value, says in (
        ("rats", 1, r"here: unknown key 'rats' \(did you mean rates"),
        ("rates", [1, "x"], "here: rates must be a number, not 'x'"),
        ("rates", 10**400, "here: rates must be a number, not 1000"),
        ("seed", True, "here: seed must be a whole number, not True"),
        ("seed", 1.0, r"here: seed must be a whole number, not 1\.0"),
        ("of", [1], r"here: of must be `key: value` pairs, not \[1\]"),
        ("of", {"a": None}, "here: of, a must be a number, not None"),
    ):
        with pytest.raises(UserError, match=says):
            typed(key, value)


def test_a_setting_is_a_key_and_yaml() -> None:
    assert yaml_file.setting("dropout=[0.1, 0.2]") == ("dropout", [0.1, 0.2])
    assert yaml_file.setting(" name =a=b") == ("name", "a=b")
    for text in ("dropout", "=3", " =3"):
        with pytest.raises(UserError, match="--set takes KEY=VALUE, not"):
            yaml_file.setting(text)
    with pytest.raises(UserError, match=r"dropout: the value '\[1' is not YAML"):
        yaml_file.setting("dropout=[1")
