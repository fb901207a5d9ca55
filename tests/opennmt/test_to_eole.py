"""What ``onmt_evsoftmax to-eole`` writes, where eole itself is not needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from workbench import ROOT

from onmt_evsoftmax.eole.convert import convert
from onmt_evsoftmax.report.console import UserError

MODEL = str(ROOT / "tests" / "legacy" / "evsoftmax_step_30.pt")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """In place of safetensors."""
    library = SimpleNamespace(save_file=torch.save)
    monkeypatch.setitem(sys.modules, "safetensors", ModuleType("safetensors"))
    monkeypatch.setitem(sys.modules, "safetensors.torch", library)
    return library


def test_a_place_that_is_no_new_folder_is_told(tmp_path: Path, library: SimpleNamespace) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"cannot write .*file"):
        convert(MODEL, tmp_path / "file")
    with pytest.raises(UserError, match="is not empty; choose another folder"):
        convert(MODEL, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_all_of_a_model_is_written_or_nothing(tmp_path: Path, library: SimpleNamespace) -> None:
    def disk_is_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    library.save_file = disk_is_full
    with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
        convert(MODEL, tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []
    library.save_file = torch.save
    convert(MODEL, tmp_path / "model")
    names = {"config.json", "model.00.safetensors", "vocab.json"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == names
