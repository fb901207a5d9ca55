"""The playground computes what the package computes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
import torch

from onmt_evsoftmax.normalizers.registry import get_record, own_records

FOLDER = Path(__file__).parents[2] / "docs" / "playground"
OPEN = {"ready": "#playground[data-shown]", "folder": FOLDER}
#: Parameters that are tried, for each normalizer that has one; the first is the page's default.
TRIED = {
    "evsoftmax": [0, 0.01, 0.5],
    "entmax": [1.25, 1, 1.05, 2, 3],
    "sparsehourglass": [1, 0.05, 4],
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.launched() as running:
        yield running


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    with browser.opened(chromium, FOLDER / "playground.html", **OPEN) as opened:
        yield opened


def expected(name: str, scores: list[float], **parameters: float) -> list[float]:
    return (
        get_record(name).function(torch.tensor(scores, dtype=torch.float64), **parameters).tolist()
    )


def check(found: list[float], wanted: list[float], what: Any) -> None:
    assert found == pytest.approx(wanted, abs=1e-6), what
    assert [p == 0 for p in found] == [p == 0 for p in wanted], (what, found, wanted)


def rows() -> list[list[float]]:
    """Rows of eighths, as the sliders make them (ties among them), and rows of any numbers."""
    draw = random.Random(19)
    eighths = [[draw.randint(-32, 32) / 8 for _ in range(draw.randint(2, 8))] for _ in range(300)]
    anything = [[draw.uniform(-4, 4) for _ in range(draw.randint(2, 8))] for _ in range(100)]
    flat = [[0.5] * length for length in range(2, 9)]
    return eighths + anything + flat + [[1, 0], [0, 1, 0.5], [2, 0], [-4, 4], [0.4, 1.4, -0.8]]


def test_the_normalizers_are_those_of_the_package(page: Any) -> None:
    found = page.evaluate("NORMALIZERS.map(({compute, ...facts}) => facts)")
    ours = [record for record in own_records() if record.trained_as is None]
    assert [one["name"] for one in found] == [record.name for record in ours]
    for one, record in zip(found, ours, strict=True):
        assert (one["title"], one["colour"], one["formula"]) == (
            record.title,
            record.colour,
            record.formula,
        )
        parameters = [parameter.name for parameter in record.parameters]
        assert ([one["parameter"]["name"]] if "parameter" in one else []) == parameters


@pytest.mark.parametrize("index", range(6))
def test_values_and_zeros(page: Any, index: int) -> None:
    facts = page.evaluate("i => { const {compute, ...rest} = NORMALIZERS[i]; return rest; }", index)
    name = facts["name"]
    keyword = facts["parameter"]["name"] if "parameter" in facts else None
    for value in TRIED.get(name, [None]):
        parameters = {keyword: float(value)} if keyword else {}
        found = page.evaluate(
            "([i, rows, options]) => rows.map((row) => NORMALIZERS[i].compute(row, options))",
            [index, rows(), parameters],
        )
        for row, p in zip(rows(), found, strict=True):
            check(p, expected(name, row, **parameters), (name, parameters, row))


def shown(page: Any, name: str) -> list[float]:
    bars = page.locator(f'.pg-panel[data-name="{name}"] .pg-row')
    return [float(bar.get_attribute("data-p")) for bar in bars.all()]


def move(page: Any, selector: str, value: float) -> None:
    page.locator(selector).evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')) }", value
    )


def test_sliders_move_the_bars(page: Any) -> None:
    scores = [-1.0, 2.5, 2.25, 0.125, -3.0, 1.0]
    for index, score in enumerate(scores):
        move(page, f".pg-scores .pg-slider:nth-child({index + 1}) input", score + 0.01)  # snaps
    page.wait_for_selector('#playground[data-shown="-1,2.5,2.25,0.125,-3,1"]')
    defaults = {"evsoftmax": {"eps": 0.0}, "entmax": {"alpha": 1.25}, "sparsehourglass": {"q": 1.0}}
    for record in own_records():
        if record.trained_as is None:
            wanted = expected(record.name, scores, **defaults.get(record.name, {}))
            check(shown(page, record.name), wanted, record.name)
            zeros = page.locator(f'.pg-panel[data-name="{record.name}"] .pg-zero')
            assert zeros.count() == sum(p == 0 for p in wanted)
            assert zeros.locator(".pg-bar").count() == 0  # an exact zero is blank
    move(page, '[data-parameter="eps"]', 0.1)
    check(shown(page, "evsoftmax"), expected("evsoftmax", scores, eps=0.1), "eps")


def test_the_simplex_is_there_for_three_scores(page: Any) -> None:
    assert not page.locator(".pg-simplex").is_visible()
    page.get_by_role("button", name="three scores").click()
    assert page.locator(".pg-simplex svg").is_visible()
    for mark in page.locator(".pg-simplex circle").all():
        first, second, third = shown(page, mark.get_attribute("data-name"))
        # Back from the plane: x = 100 (p3 - p2) √3/2, y = -100 (p1 - (p2 + p3) / 2), Σp = 1.
        assert float(mark.get_attribute("cx")) == pytest.approx(
            86.60254 * (third - second), abs=1e-4
        )
        assert float(mark.get_attribute("cy")) == pytest.approx(-150 * first + 50, abs=1e-4)
    page.get_by_role("button", name="one score more").click()
    assert not page.locator(".pg-simplex").is_visible()


def test_the_address_holds_what_is_shown(chromium: Any) -> None:
    address = "#v=1,-2,0.5&alpha=2&eps=0.1"
    with browser.opened(chromium, FOLDER / "playground.html", address, **OPEN) as page:
        check(shown(page, "entmax"), expected("sparsemax", [1, -2, 0.5]), "alpha")
        check(shown(page, "evsoftmax"), expected("evsoftmax", [1, -2, 0.5], eps=0.1), "eps")
    with browser.opened(
        chromium, FOLDER / "playground.html", "#v=nonsense&alpha=-3", **OPEN
    ) as page:
        assert len(shown(page, "softmax")) == 6


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen(chromium: Any, width: int) -> None:
    view = {"viewport": {"width": width, "height": 800}}
    address = "#v=-4,4,0.4,-0.8,1,2,3,-3.875"
    with browser.opened(chromium, FOLDER / "playground.html", address, **OPEN, **view) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
