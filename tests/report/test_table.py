"""The one table: aligned, wrapped to any terminal, escaped in every format."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_evsoftmax.report.statistics import Mean
from onmt_evsoftmax.report.table import Marked, Table, render


def columns(line: str) -> int:
    """Terminal columns of a line, counted by another rule than the package's."""
    wide = sum(unicodedata.east_asian_width(char) in ("W", "F") for char in line)
    return len(unicodedata.normalize("NFC", line)) + wide


SCORES = Table(
    "Scores of many systems",
    ["Metric", *(f"system {n}" for n in range(12))],
    [[f"metric {n} of a long name", *["12.34 ± 0.56"] * 12] for n in range(3)],
    notes=["± standard error over training seeds, of which there are three for every system"],
)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200, 400])
def test_a_table_fits_any_terminal_and_loses_no_number(width: int) -> None:
    text = SCORES.text(width)
    assert max(map(columns, text.splitlines())) <= width
    assert text.count("12.34 ± 0.56") == 36
    for n in range(12):
        assert f"system {n}" in text


def test_a_wide_terminal_changes_nothing() -> None:
    assert SCORES.text(1000) == SCORES.text()
    assert max(map(len, SCORES.text().splitlines())) > 150


def test_long_labels_are_wrapped_between_words() -> None:
    table = Table("", ["system", "n"], [["a name of several words", "1.00"], ["short", "2.00"]])
    assert table.text(18).splitlines() == [
        "system           n",
        "a name of     1.00",
        "several",
        "words",
        "short         2.00",
    ]


def test_labels_are_wrapped_before_numbers_are_torn_apart() -> None:
    table = Table("", ["system", "p", "q"], [["a name of several words", "1.00", "2.00"]])
    assert table.text(22).splitlines() == [
        "system         p     q",
        "a name of   1.00  2.00",
        "several",
        "words",
    ]


def test_wide_and_combining_characters_keep_columns_straight() -> None:
    names = ["你好", "ab", "u\N{COMBINING DIAERESIS}x", "한국어"]
    lines = Table("", ["a", "n"], [[name, "1"] for name in names]).text().splitlines()
    assert {columns(line) for line in lines} == {8 + 1}
    assert columns(lines[3]) == 9


@given(
    st.lists(st.tuples(st.text(max_size=30), st.text("0123456789.", max_size=12)), min_size=1),
    st.integers(30, 90),
)
def test_any_text_gives_a_table_of_every_format(cells: list[tuple[str, str]], width: int) -> None:
    rows = [list(pair) for pair in cells]
    table = Table("t", ["name", "n"], rows)
    assert table.text(width)
    lines = table.markdown().splitlines()
    assert len(lines) == 4 + len(rows)
    assert all(line.count(" | ") >= 1 for line in lines[4:])
    latex = table.latex()
    assert latex.count("{") - latex.count(r"\{") == latex.count("}") - latex.count(r"\}")


def test_a_line_break_in_a_name_breaks_no_row() -> None:
    table = Table("", ["a\nb", "n"], [["x\r\n\ny", "1"]], signatures=["z\nz"])
    assert "x  y" in table.text()
    assert "| x  y | 1 |" in table.markdown()
    assert r"x  y & 1 \\" in table.latex()
    for text in (table.text(), table.markdown(), table.latex()):
        assert "z z" in text
        assert not {"y", "b"} & {line[:1] for line in text.splitlines()}


def test_marks_in_every_format() -> None:
    table = Table("", ["a", "n"], [["x", Marked("1.0 ± 0.1", True, "**", " (at most 1)")]])
    assert table.text().splitlines()[1] == "x  1.0 ± 0.1** (at most 1)"
    assert r"| x | **1.0 ± 0.1**\*\* (at most 1) |" in table.markdown()
    assert r"x & $\mathbf{1.0 \pm 0.1}^{**}$ (at most 1) \\" in table.latex()
    word = Table("", ["a", "n"], [["x", Marked("fast_est", True)], ["y", "-0.5"]]).latex()
    assert r"x & \textbf{fast\_est} \\" in word
    assert r"y & $-0.5$ \\" in word


def test_a_wide_latex_table_is_shrunk_to_the_column() -> None:
    latex = SCORES.latex()
    assert r"\resizebox{\columnwidth}{!}{\usebox0}" in latex
    assert r"\usepackage{booktabs,graphicx}" in latex


def test_json_is_the_data() -> None:
    assert json.loads(Table("", ["a"], [["1"]], data={"a": 1.25}).json()) == {"a": 1.25}


def test_notes_that_tables_share_come_once_and_last() -> None:
    tables = [Table(name, ["a"], [["x"]], notes=["shared"]) for name in "pq"]
    text = render(tables, ".txt")
    assert text.count("shared") == 1
    assert text.index("q") < text.index("shared")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([2.0, 4.0], "3.00 ± 1.00"),
        ([1.5], "1.50"),
        ([float("nan")], "–"),
        ([0.1] * 10, "0.10 ± 0.00"),
    ],
)
def test_means_render_themselves(values: list[float], text: str) -> None:
    assert Mean.of(values).text() == text


def test_the_standard_error_is_numpys() -> None:
    import numpy as np

    values = np.random.default_rng(0).normal(size=7)
    mean = Mean.of(values.tolist())
    assert mean.mean == pytest.approx(values.mean())
    assert mean.error == pytest.approx(values.std(ddof=1) / np.sqrt(7))
    assert mean.count == 7
