"""``properties`` and ``figure1``: what they ask the registry, and what they refuse."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onmt_evsoftmax.normalizers.registry import records, title_of
from onmt_evsoftmax.paper import figure1, properties


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "onmt_evsoftmax", *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize("trials", ["0", "-3", "1.5", "many", "10000000000"])
def test_a_number_of_trials_out_of_range_is_refused(trials):
    """0 printed a table of untruths, -3 was a traceback."""
    result = command("properties", f"--trials={trials}")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "--trials" in result.stderr
    assert "whole number from 1" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_seed_out_of_range_is_refused():
    result = command("properties", "--seed", "99999999999999999999")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("point", [("nan", "0", "1"), ("inf", "0", "1"), ("a", "0", "1")])
def test_a_point_must_be_of_numbers(point, tmp_path):
    result = command("figure1", "-o", str(tmp_path / "f.svg"), "--point", *point)
    assert result.returncode == 2
    assert "--point" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["f.xyz", "f", "f.jpg"])
def test_a_format_that_cannot_be_drawn_is_refused_before_anything_is_printed(name, tmp_path):
    result = command("figure1", "-o", str(tmp_path / name))
    assert result.returncode == 2
    assert result.stdout == ""
    assert ".png .svg .pdf" in result.stderr
    assert not list(tmp_path.iterdir())


def test_both_show_what_is_registered():
    names = [record.name for record in records() if record.trained_as is None]
    cells = properties.table(trials=2)
    assert all(list(row) == names for row in cells.values())
    text = properties.render(cells)
    assert all(title_of(name) in text for name in names)
    assert "q → 0" in text
    assert list(figure1.normalize_point(figure1.FIGURE1_POINT)) == [
        "softmax",
        "evsoftmax",
        "sparsemax",
        "entmax15",
    ]
