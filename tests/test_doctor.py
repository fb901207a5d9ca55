"""``onmt_evsoftmax doctor``: one toolkit is enough, of a version that this package is made for."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from typing import Any

import pytest

from onmt_evsoftmax import doctor


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The doctor's exit code and what it finds where only these versions are installed."""
    monkeypatch.delenv("ONMT_EVSOFTMAX", raising=False)

    def probe(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        module, _ = words[-2:]
        return subprocess.CompletedProcess(words, 0, "live" if module in woken else "asleep", "")

    woken = ["onmt", "eole.config.models"]
    monkeypatch.setattr(doctor.subprocess, "run", probe)

    def examined(versions: dict[str, str]) -> tuple[int, dict[str, dict[str, str]]]:
        def version(name: str) -> str:
            if name in versions:
                return versions[name]
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", version)
        code = doctor.main(["--json"])
        return code, {entry["what"]: entry for entry in json.loads(capsys.readouterr().out)}

    return examined


@pytest.mark.parametrize(
    ("name", "version", "hook"),
    [
        ("OpenNMT-py", "3.0.4", "live: the stock onmt_* commands know this package"),
        ("eole", "0.6.4", "live: eole train and eole predict know this package"),
        ("transformers", "5.3.0", None),
    ],
)
def test_any_one_toolkit_is_enough(examine: Any, name: str, version: str, hook: str) -> None:
    code, found = examine({name: version})
    assert code == 0
    assert found[name]["found"] == version
    others = {"OpenNMT-py", "eole", "transformers"} - {name}
    assert {found[other]["found"] for other in others} == {"not installed"}
    assert found.get("start-up hook", {}).get("found") == hook


def test_without_a_toolkit_there_is_something_to_do(examine: Any) -> None:
    code, found = examine({})
    assert code == 1
    advice = "pip install OpenNMT-py==3.0.4, eole or transformers"
    assert [entry["advice"] for entry in found.values() if entry["advice"]] == [advice]


@pytest.mark.parametrize(
    ("name", "version", "advice"),
    [
        ("OpenNMT-py", "3.0.3", "use version 3.0.4 to 3.5.1"),
        ("OpenNMT-py", "3.6.0", "use version 3.0.4 to 3.5.1"),
        ("eole", "0.5.1", "use version 0.6"),
        ("eole", "0.7.0", "use version 0.6"),
        ("transformers", "4.57.1", "use version 5"),
    ],
)
def test_a_version_it_is_not_made_for_is_told(
    examine: Any, name: str, version: str, advice: str
) -> None:
    code, found = examine({name: version})
    assert (code, found[name]["advice"]) == (1, advice)


def test_an_old_transformers_beside_another_toolkit_is_no_problem(examine: Any) -> None:
    code, found = examine({"eole": "0.6.4", "transformers": "4.57.1"})
    assert (code, found["transformers"]["found"]) == (0, "4.57.1")


def test_a_hook_that_is_switched_off_matters_to_those_who_need_it(
    examine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONMT_EVSOFTMAX", "off")
    assert examine({"transformers": "5.0.0"})[0] == 0
    code, found = examine({"eole": "0.6.4", "transformers": "5.0.0"})
    assert code == 1
    assert "unset the environment variable" in found["start-up hook"]["advice"]


@pytest.mark.parametrize(("version", "code"), [("3.10.9", 1), ("3.12.1", 0), ("3.13.0", 1)])
def test_pythons_that_the_package_cannot_be_installed_in_are_told(
    examine: Any, monkeypatch: pytest.MonkeyPatch, version: str, code: int
) -> None:
    monkeypatch.setattr(doctor.platform, "python_version", lambda: version)
    assert examine({"transformers": "5.0.0"})[0] == code
