"""``properties`` and ``figure1``: what they ask the registry, and what they refuse."""

from __future__ import annotations

import json

import pytest

from onmt_evsoftmax import __main__ as door
from onmt_evsoftmax.normalizers.registry import records, title_of
from onmt_evsoftmax.paper import figure1, properties
from onmt_evsoftmax.report.console import UserError


@pytest.mark.parametrize(
    "words",
    ["--trials=0", "--trials=-3", "--trials=1.5", "--trials=10000000000", f"--seed={2**63}"],
)
def test_numbers_out_of_range_are_refused(words, capsys):
    """0 trials printed a table of untruths, -3 was a traceback."""
    with pytest.raises(UserError, match=f"{words.partition('=')[0]}: must be a whole number from"):
        door.main(["properties", words])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "point", "says"),
    [
        *(("f.svg", [x, "0", "1"], "--point: must be a number") for x in ("nan", "inf", "a")),
        *((name, "012", r"\.png \.svg \.pdf") for name in ("f.xyz", "f", "f.jpg")),
    ],
)
def test_what_figure1_cannot_draw_is_refused_before_anything_is_printed(
    name, point, says, tmp_path, capsys
):
    with pytest.raises(UserError, match=says):
        door.main(["figure1", "-o", str(tmp_path / name), "--point", *point])
    assert capsys.readouterr().out == ""
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


def test_figure1_prints_the_papers_numbers_and_draws(tmp_path, capsys):
    target = tmp_path / "figures" / "figure1.svg"
    assert door.main(["figure1", "-o", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "evsoftmax    0.2689   0.7311   0.0000" in printed
    assert "<svg" in target.read_text(encoding="utf-8")
    assert figure1.planar((0.4, 1.4, -0.8)) == pytest.approx(
        (-1.905256, 0.1)
    )  # as the paper's tikz


def test_the_property_table_agrees_with_the_paper(capsys):
    assert properties.main(["--trials", "50", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    marks = {
        title: {
            name: cell["holds"] and ("*" if cell["condition"] else True)
            for name, cell in row.items()
        }
        for title, row in cells.items()
    }
    columns = ("softmax", "sparsemax", "sparsehourglass", "evsoftmax")
    paper = {
        "idempotence": (False, True, True, False),
        "monotonicity": (True, True, True, True),
        "translation invariance": (True, True, "*", True),
        "scale invariance": (False, False, "*", False),
        "full domain": (True, True, True, True),
    }
    for title, expected in paper.items():
        assert tuple(marks[title][name] for name in columns) == expected, title
    for title, row in cells.items():
        for name, cell in row.items():
            assert cell["holds"] or cell["counterexample"], (title, name)
    bounds = {name: cell["bound"] for name, cell in cells["Lipschitz (measured)"].items()}
    assert bounds["softmax"] == pytest.approx(0.5, abs=1e-3)
    assert bounds["sparsemax"] == pytest.approx(1.0)
    assert bounds["evsoftmax"] <= 0.5 + 1e-9
    assert bounds["entmax15"] <= 1.0
    assert cells["Lipschitz (measured)"]["evsoftmax"]["condition"]
