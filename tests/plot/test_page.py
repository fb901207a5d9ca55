from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pytest
import traces

from onmt_evsoftmax.attended import Counts, entropy, parse_line
from onmt_evsoftmax.plot.page import write_page
from onmt_evsoftmax.trace import Record, TraceReader, TraceWriter, encode, grid
from onmt_evsoftmax.trace.source import Source

NORMALIZERS = ("softmax", "evsoftmax", "sparsemax")
LAYERS, HEADS = 3, 4
#: An attack in every text a trace has.
EVIL_SOURCE = "▁<script>alert(1)</script> ▁<img ▁src=x ▁onerror=alert(2)> ▁</script> ▁&amp;"
EVIL_TARGET = "▁<b>fett</b> ▁</title><script>alert(3)</script> ▁${alert(4)}"

#: The size in pixels of the smallest text that is on the page.
SMALLEST_TEXT = """() => Math.min(...[...document.querySelectorAll("body *")]
  .filter((element) => element.checkVisibility()
    && [...element.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .map((element) => parseFloat(getComputedStyle(element).fontSize)))"""


def records(normalizer: str) -> list[Record]:
    shape = {"normalizer": normalizer, "layers": LAYERS, "heads": HEADS}
    items = [traces.record(index, **shape) for index in range(4)]
    items.append(traces.record(4, EVIL_SOURCE, EVIL_TARGET, **shape))
    items.append(traces.blank(5, LAYERS, HEADS))
    items.append(traces.record(6, "▁ein " * 45, "▁wort " * 50, **shape))
    items.append(traces.record(7, "▁مرحبا ▁بالعالم ▁你好", "▁שלום ▁नमस्ते", **shape))
    return items


def make_trace(path: Path, normalizer: str) -> TraceReader:
    with TraceWriter(path, traces.header(normalizer, LAYERS, HEADS)) as trace:
        for item in records(normalizer):
            trace.append(encode(item))
        trace.finish()
    return TraceReader(path)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.launched() as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    sources = [Source(n, make_trace(folder / f"{n}.trace", n)) for n in NORMALIZERS]
    gold = [parse_line("0-0 1?0" if i < 3 else "", "") for i in range(8)]
    title = "Köpfe </title><script>alert(5)</script>"
    write_page(folder / "three.html", sources, range(1, 9), title=title, gold=gold)
    write_page(folder / "one.html", sources[1:2], [2], kinds=["decoder"])
    write_page(folder / "words.html", sources[1:2], [1], level="word")
    for source in sources:
        source.trace.__exit__()
    return {name: folder / f"{name}.html" for name in ("three", "one", "words")}


def numbers(page: Any, panel: int) -> list[str]:
    return page.locator(".panel").nth(panel).locator(".numbers dd").all_inner_texts()


def shown(page: Any, line: int, **state: str) -> None:
    """Wait until the page shows this line (from 1)."""
    page.wait_for_selector(f'body[data-shown="{line - 1}"]')
    for name, value in state.items():
        page.wait_for_function("([k, v]) => String(state[k]) === v", arg=[name, value])
    page.wait_for_function("() => drawing === Number(document.body.dataset.drawn)")


def test_the_file_needs_nothing_else(pages: dict[str, Path]) -> None:
    text = pages["three"].read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    # What the file may load is written into it: nothing.
    assert "default-src 'none'" in text


def test_counts_and_entropy_are_those_of_the_trace(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["three"]) as page:
        for address in (
            "line=1&kind=context&layer=3&head=1&units=subword",
            "line=2&kind=encoder&layer=1&head=4&units=word",
            "line=1&kind=decoder&layer=2&head=2&units=word",
            "line=7&kind=context&layer=2&head=3&units=subword",
        ):
            page.evaluate("hash => { location.hash = hash }", address)
            state = dict(pair.split("=") for pair in address.split("&"))
            shown(page, int(state["line"]), kind=state["kind"], units=state["units"])
            for panel, normalizer in enumerate(NORMALIZERS):
                header = traces.header(normalizer, LAYERS, HEADS)
                counts = Counts(header, state["units"])
                counts.add(records(normalizer)[int(state["line"]) - 1])
                head = (int(state["layer"]) - 1, int(state["head"]) - 1)
                means = {
                    name: one.summary(*head).mean
                    for name, one in counts.kinds[state["kind"]].measures.items()
                }
                attended, density, entropy = numbers(page, panel)
                assert attended == f"{means['attended']:.1f} of {means['available']:.1f}"
                assert int(density.rstrip(" %")) == pytest.approx(100 * means["density"], abs=0.51)
                assert float(entropy) == pytest.approx(means["entropy"], abs=0.015)


def test_the_mean_of_heads(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["three"]) as page:
        page.select_option("#head", label="mean")
        shown(page, 1, head="-1")
        for panel, normalizer in enumerate(NORMALIZERS):
            view = grid(records(normalizer)[0], "context", "subword", traces.header().subwords)
            text = view.row_is_text
            support = view.support[-1].any(0)[text].sum(-1).mean()
            nats = entropy(view.weights[-1].mean(0)[text].astype(float)).mean()
            attended, _, shown_entropy = numbers(page, panel)
            assert attended.startswith(f"{support:.1f} of ")
            assert float(shown_entropy) == pytest.approx(nats, abs=0.015)


def test_rollout(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(
        chromium, pages["three"], "#line=1&kind=context&layer=2&head=rollout"
    ) as page:
        shown(page, 1, head="-2", layer="1")
        for panel, normalizer in enumerate(NORMALIZERS):
            counts = Counts(traces.header(normalizer, LAYERS, HEADS))
            counts.add(records(normalizer)[0])
            means = {
                name: one.summary(1).mean
                for name, one in counts.derived["rollout"]["context"].measures.items()
            }
            attended, _, shown_entropy = numbers(page, panel)
            assert attended == f"{means['attended']:.1f} of {means['available']:.1f}"
            assert float(shown_entropy) == pytest.approx(means["entropy"], abs=0.015)
        assert "head=rollout" in page.url
        page.select_option("#head", label="1")
        shown(page, 1, head="0")
    # Without the encoder's there is no way on from context attention to the source.
    with browser.opened(chromium, pages["one"]) as page:
        assert page.locator("#head option").all_inner_texts() == ["mean", "rollout", *"1234"]


def test_hovering_a_target_word_shows_what_it_attends_to(
    chromium: Any, pages: dict[str, Path]
) -> None:
    with browser.opened(chromium, pages["three"]) as page:
        for row in (0, 3):
            page.locator(".panel").nth(1).locator(".queries button").nth(row).hover()
            # All panels follow, each with its own weights.
            for panel, normalizer in enumerate(NORMALIZERS):
                box = page.locator(".panel").nth(panel)
                attention = records(normalizer)[0].attention["context"]
                weights = attention.weights[-1, 0, row]
                support = attention.support[-1, 0, row]
                outputs = box.locator(".answers output").all_inner_texts()
                for output, weight, attended in zip(outputs, weights, support, strict=True):
                    if not attended:
                        assert output == "0"
                    elif output == "<0.01":
                        assert weight < 0.006
                    else:
                        assert float(output) == pytest.approx(float(weight), abs=0.011)
                zeros = box.locator(".answers .key.zero").count()
                assert zeros == int((~support).sum())
                reading = box.locator(".reading").inner_text()
                assert f": {int(support.sum())} of {len(support)} attended" in reading
                chosen = box.locator(".matrix .rows .chosen").all_inner_texts()
                assert chosen == [box.locator(".queries button").nth(row).inner_text()]


def test_hovering_a_cell_reads_it(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["three"]) as page:
        canvas = page.locator(".panel").nth(2).locator(".matrix canvas")
        cell = page.evaluate("panels[2].matrix.cell")
        support = records("sparsemax")[0].attention["context"].support[-1, 0]
        row, key = (int(v) for v in np.argwhere(~support)[0])
        canvas.hover(position={"x": (key + 0.5) * cell, "y": (row + 0.5) * cell})
        reading = page.locator(".panel").nth(2).locator(".reading").inner_text()
        assert reading.endswith(": 0")
        page.mouse.move(5, 5)
        assert "attended" in page.locator(".panel").nth(2).locator(".reading").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_zeros_look_different_from_small_weights(
    chromium: Any, pages: dict[str, Path], scheme: str
) -> None:
    script = """(panel) => {
      const { matrix, shown } = panels[panel], context = matrix.canvas.getContext("2d");
      const ratio = matrix.canvas.width / matrix.canvas.clientWidth;
      const middle = (i) => Math.round((i + 0.5) * matrix.cell * ratio);
      return shown.rows.flatMap((_, row) => shown.keys.map((_, key) => (
        [...context.getImageData(middle(key), middle(row), 1, 1).data])));
    }"""
    with browser.opened(chromium, pages["three"], color_scheme=scheme) as page:
        for panel, normalizer in enumerate(NORMALIZERS):
            support = records(normalizer)[0].attention["context"].support[-1, 0].ravel()
            drawn = [pixel[3] > 0 for pixel in page.evaluate(script, panel)]
            assert drawn == support.tolist()


def test_choosing_by_controls(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["three"]) as page:
        assert page.locator("#previous").is_disabled()
        page.click("#next")
        shown(page, 2)
        assert page.locator("#source").inner_text() == "a man rides a horse."
        page.fill("#line", "4")
        page.press("#line", "Enter")
        shown(page, 4)
        page.fill("#line", "999")
        page.press("#line", "Enter")
        shown(page, 8)
        assert page.locator("#next").is_disabled()
        page.fill("#line", "1")
        page.press("#line", "Enter")
        page.click("text=Encoder")
        shown(page, 1, kind="encoder")
        page.select_option("#layer", label="2")
        page.select_option("#head", label="3")
        shown(page, 1, layer="1", head="2")
        page.get_by_text("Words", exact=True).click()
        shown(page, 1, units="word")
        rows = page.locator(".panel").nth(0).locator(".queries button").all_inner_texts()
        assert rows == ["does", "that", "make", "you", "curious", "?"]
        # The picture of all heads is a control too.
        tile = page.evaluate("panels[0].tile")
        page.locator(".overview canvas").nth(0).click(position={"x": tile * 3.5, "y": tile * 0.5})
        shown(page, 1, layer="0", head="3")
        assert page.locator("#layer").input_value() == "0"


def test_finding_a_sentence(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["three"]) as page:
        page.fill("#find", "HORSE man")
        assert page.locator("#found li").count() == 1
        page.press("#find", "Enter")
        shown(page, 2)
        page.fill("#find", "no such words")
        assert "No sentence" in page.locator("#found").inner_text()
        page.press("#find", "Escape")
        assert page.locator("#found").is_hidden()
        page.fill("#find", "two")
        page.locator("#found li").first.click()
        shown(page, 3)


def test_everything_works_from_the_keyboard(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["three"]) as page:
        for key, line, state in (
            ("ArrowRight", 2, {}),
            ("ArrowLeft", 1, {}),
            ("[", 1, {"layer": "1"}),
            (".", 1, {"head": "1"}),
            (",", 1, {"head": "0"}),
            (",", 1, {"head": "-1"}),
            ("]", 1, {"layer": "2"}),
            ("w", 1, {"units": "word"}),
            ("k", 1, {"kind": "encoder"}),
        ):
            page.keyboard.press(key)
            shown(page, line, **state)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("state.row") == 2
        assert "make" in page.locator("#spoken").inner_text()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"
        # By Tab alone one reaches every control and the queries of each panel.
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "(({ id, name, className, parentElement }) =>"
                    " id || name || className || parentElement.className)(document.activeElement)"
                )
            )
        assert {"kind", "layer", "head", "units", "queries", "theme"} <= reached
        page.locator(".panel").nth(1).locator(".queries button").nth(2).focus()
        page.keyboard.press("ArrowDown")
        focused = "document.activeElement.textContent"
        assert page.evaluate(focused) == "you"
        page.keyboard.press("End")
        assert page.evaluate(focused) == "?"


def test_text_is_shown_not_run(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["three"], "#line=5") as page:
        assert page.title() == "Köpfe </title><script>alert(5)</script>"
        assert "<script>alert(1)</script> <img src=x" in page.locator("#source").inner_text()
        box = page.locator(".panel").nth(0)
        assert "<b>fett</b>" in box.locator(".target").inner_text()
        assert "<b>fett</b>" in box.locator(".queries").inner_text()
        assert page.locator("b:text-is('fett')").count() == 0
        assert page.locator("img").count() == 0
        page.fill("#find", "<script>")
        assert "<script>alert(1)" in page.locator("#found li").first.inner_text()


def test_an_empty_line_is_said_to_be_empty(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["three"], "#line=6") as page:
        assert (
            page.locator(".panel").nth(0).locator(".message").inner_text() == "This line is empty."
        )
        assert page.locator(".matrix").first.is_hidden()
        page.keyboard.press("ArrowRight")
        shown(page, 7)
        assert page.locator(".matrix").first.is_visible()


def test_the_address_restores_the_view(chromium: Any, pages: dict[str, Path]) -> None:
    address = "#line=2&kind=decoder&layer=2&head=mean&units=word&row=3"
    with browser.opened(chromium, pages["three"], address) as page:
        assert page.evaluate("state") == {
            "line": 1, "kind": "decoder", "layer": 1, "head": -1, "units": "word", "row": 2,
        }  # fmt: skip
        assert page.evaluate("location.hash") == address
    with browser.opened(
        chromium, pages["three"], "#line=-5&kind=x&layer=99&head=q&row=999"
    ) as page:
        assert page.evaluate("[state.line, state.kind, state.layer, state.head]") == [
            0, "context", LAYERS - 1, 0,
        ]  # fmt: skip


def test_one_kind_of_one_trace(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["one"]) as page:
        assert page.locator("#kind label").all_inner_texts() == ["Decoder"]
        # It is line 2 of the text, and the only one here.
        assert page.locator("#line").input_value() == "2"
        assert page.locator("#lines").inner_text() == "(1 of 1)"
        assert "line=2&" in page.evaluate("location.hash")
        assert page.locator(".panel").count() == 1
        # The future is neither zero nor small: it is not there.
        page.keyboard.press("Home")
        assert page.locator(".answers .key.unseen").count() == 7
        assert page.locator(".answers output").all_inner_texts()[1:] == [""] * 7


def test_a_page_can_begin_with_words(chromium: Any, pages: dict[str, Path]) -> None:
    with browser.opened(chromium, pages["words"]) as page:
        assert "neugierig" in page.locator(".queries").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_every_width_and_theme(
    chromium: Any, pages: dict[str, Path], tmp_path: Path, width: int, scheme: str
) -> None:
    """No sideways scrolling of the page, long sentences scroll inside; and pictures to look at."""
    keep = Path(os.environ.get("PAGE_SCREENSHOTS", tmp_path))
    keep.mkdir(parents=True, exist_ok=True)
    size = {"width": width, "height": 800}
    with browser.opened(
        chromium, pages["three"], viewport=size, color_scheme=scheme, has_touch=width < 500
    ) as page:
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        for line in (1, 7, 8):
            page.evaluate("line => choose({ line })", line - 1)
            shown(page, line)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.evaluate(SMALLEST_TEXT) >= 12
            page.screenshot(path=keep / f"{scheme}-{width}-{line}.png", full_page=True)
        page.evaluate("choose({ line: 6 })")
        shown(page, 7)
        if width < 500:
            assert page.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)"
                                 "(document.querySelector('.matrix'))")  # fmt: skip
            page.evaluate("choose({ line: 0 })")
            shown(page, 1)
            page.locator(".panel").nth(0).locator(".queries button").nth(2).tap()
            assert page.evaluate("state.row") == 2
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") != scheme
