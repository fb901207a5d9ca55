from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
import traces
from matplotlib.figure import Figure

from onmt_evsoftmax.attended import parse_line
from onmt_evsoftmax.normalizers.registry import colour_of, records
from onmt_evsoftmax.plot import bars, bertviz, choice, panels, plot_attention
from onmt_evsoftmax.plot.page import quantise
from onmt_evsoftmax.report import fonts, palette, style
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace import KINDS, Record, TraceWriter, encode, grid

SUBWORDS = traces.header().subwords


def panel(item: Record, kind: str = "context", title: str = "t") -> panels.Panel:
    view = grid(item, kind, "subword", SUBWORDS)
    gold = None
    if kind == "context":
        gold = panels.gold_cells(parse_line("0-0 1?2", ""), item.target.words, item.source.words)
    return panels.Panel(
        title, view.weights[0, 0], view.support[0, 0], view.available, view.rows, view.keys, gold
    )


def pixels(figure: Figure) -> tuple[np.ndarray, float]:
    """The drawn figure as an array (height, width, 3), and its dots per inch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(200)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3], 200.0


def cell_colour(figure: Figure, image: np.ndarray, row: int, key: int) -> tuple[int, ...]:
    axes = figure.axes[0]
    x, y = axes.transData.transform((key + 0.5, row + 0.5))
    return tuple(int(v) for v in image[image.shape[0] - 1 - int(y), int(x)])


@pytest.mark.parametrize("normalizer", ["softmax", "evsoftmax", "sparsemax"])
@pytest.mark.parametrize("kind", ["context", "decoder"])
def test_only_exact_zeros_are_white(normalizer: str, kind: str) -> None:
    shown = panel(traces.record(0, normalizer=normalizer), kind)
    with style.readable(["t", *shown.rows, *shown.keys]):
        figure = panels.draw([shown])
        image, _ = pixels(figure)
        for row in range(len(shown.rows)):
            for key in range(len(shown.keys)):
                white = cell_colour(figure, image, row, key) == (255, 255, 255)
                assert white == (not shown.support[row, key])


def test_darker_is_larger_in_colour_and_in_grey() -> None:
    shades = [np.array(style.WEIGHTS(x)[:3]) @ (0.2126, 0.7152, 0.0722) for x in np.linspace(0, 1)]
    assert all(a > b for a, b in pairwise(shades))
    # The smallest weight is far from the white of a zero, also in print.
    assert shades[0] < 0.87


def test_a_normalizer_has_its_records_colour_and_no_two_series_share_one() -> None:
    own = {record.name: record.colour for record in records()}
    assert palette.colours(["evsoftmax", "softmax"]) == [own["evsoftmax"], own["softmax"]]
    twice = palette.colours(["evsoftmax", "evsoftmax", "softmax", "sparsemax"])
    assert len(set(twice)) == 4
    assert twice[0] == own["evsoftmax"]
    assert twice[2:] == [own["softmax"], own["sparsemax"]]
    assert len(set(palette.HATCHES[:6])) == len(set(palette.DASHES)) - 1 == 6


@pytest.mark.parametrize("extension", ["png", "svg", "pdf"])
def test_figures_are_files_of_their_kind_and_reproducible(tmp_path: Path, extension: str) -> None:
    shown = [panel(traces.record(0, normalizer=n), title=n) for n in ("softmax", "evsoftmax")]
    texts = [t for p in shown for t in (*p.rows, *p.keys, p.title)]
    files = []
    for name in ("a", "b"):
        with style.readable(texts):
            style.save(panels.draw(shown), tmp_path / f"{name}.{extension}")
        files.append((tmp_path / f"{name}.{extension}").read_bytes())
    assert files[0] == files[1]
    assert files[0].startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[extension])
    if extension == "svg":
        ElementTree.fromstring(files[0])


def test_gold_alignments_are_outlined_once_per_subword_pair() -> None:
    item = traces.record(0)
    gold = panels.gold_cells(parse_line("4-3 0?1", ""), item.target.words, item.source.words)
    # Source word 4 is "cur ious" (2 tokens), target word 3 is "neu gier ig" (3 tokens).
    assert (gold == 2).sum() == 6
    assert (gold == 1).sum() == 1
    shown = panel(item)
    with style.readable(shown.rows):
        figure = panels.draw([shown])
    edges = [patch.get_edgecolor() for patch in figure.axes[0].patches]
    assert len(edges) == int((shown.gold > 0).sum())


def test_long_and_tiny_sentences_can_be_drawn(tmp_path: Path) -> None:
    for source, target in (("▁a", "▁b"), ("▁a " * 120, "▁b " * 90)):
        shown = panel(traces.record(0, source, target, "softmax"), "decoder")
        with style.readable(shown.rows):
            style.save(panels.draw([shown], values=True), tmp_path / "x.png", dpi=50)


def test_a_picture_never_needs_more_memory_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(style, "_MOST_PIXELS", 10**5)
    for ending in ("png", "svg"):
        style.save(Figure(figsize=(4, 5)), tmp_path / f"a.{ending}")
        told = capsys.readouterr().err
        assert ("it has 70 dots per inch; .svg or .pdf stays sharp" in told) == (ending == "png")


@pytest.mark.parametrize("text", ["\u200b", "\u2800", "\u3164"])
@pytest.mark.parametrize("options", ["", "--bars"])
def test_tokens_without_a_visible_letter_are_drawn(tmp_path: Path, text: str, options: str) -> None:
    with TraceWriter(tmp_path / "a.trace", traces.header()) as trace:
        trace.append(encode(traces.record(0, f"▁{text}", f"▁{text}")))
        trace.finish()
    for ending in ("png", "pdf"):
        made = tmp_path / f"a.{ending}"
        assert commands.run(f"onmt_plot_attention {tmp_path}/a.trace {options} -o {made}") == 0
        assert made.stat().st_size


def test_a_name_that_is_no_utf8_is_told_before_it_is_drawn() -> None:
    with pytest.raises(UnicodeEncodeError), style.readable(["caf\udce9"]):
        pass


def test_panels_wrap_after_the_columns_asked_for(tmp_path: Path) -> None:
    path = traces.write(tmp_path / "a.trace", 1)
    sizes = {}
    for columns in ([], ["--columns", "1"], ["--columns", "2"]):
        out = tmp_path / "x.svg"
        named = [f"{name}={path}" for name in "abcde"]
        assert plot_attention.main([*named, *columns, "--quiet", "-o", str(out)]) == 0
        root = ElementTree.fromstring(out.read_bytes())
        sizes[tuple(columns)] = tuple(float(root.attrib[side][:-2]) for side in ("width", "height"))
    (wide, low), (narrow, high), (two, three) = sizes.values()
    assert narrow < two < wide
    assert low < three < high


def test_values_never_say_zero_for_what_is_not(tmp_path: Path) -> None:
    shown = panel(traces.record(0, normalizer="softmax"))
    with style.readable(shown.rows):
        figure = panels.draw([shown], values=True)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert len(texts) == shown.support.sum()
    assert ".00" not in texts


def test_fonts_are_found_or_the_user_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    families, missing = fonts.choose(["Straße κόσμε Привет שלום"])
    assert families == [fonts.BASE]
    assert missing == ""
    # A character of Unicode's private use area that no font has.
    _, missing = fonts.choose(["a\U0010fffd"])
    assert missing == "\U0010fffd"
    with style.readable(["a\U0010fffd"]):
        pass
    assert "no installed font has" in capsys.readouterr().err
    # Spaces, joiners and variation selectors need no glyph.
    assert fonts.choose(["a\u200d\ufe0f b\n"]) == ([fonts.BASE], "")


def test_other_scripts_are_drawn_with_fonts_that_have_them() -> None:
    words = {"Devanagari": "नमस्ते", "Thai": "สวัสดี", "Ethiopic": "ጤና", "CJK": "你好"}
    absent = [name for name, word in words.items() if fonts.choose([word])[1]]
    if absent:
        pytest.skip(
            f"no font here has {', '.join(absent)}: install fonts-noto-core, fonts-noto-cjk"
        )
    families, missing = fonts.choose(words.values())
    assert not missing
    assert len(families) > 1
    assert not any("LastResort" in family.replace(" ", "") for family in families)


def test_dollars_in_tokens_are_dollars(tmp_path: Path) -> None:
    shown = panel(traces.record(0, "▁$x$ ▁\\frac ▁_{", "▁$ ▁%"))
    with style.readable(shown.rows):
        style.save(panels.draw([shown]), tmp_path / "x.svg")


def test_bars_show_a_ring_for_every_exact_zero() -> None:
    view = grid(traces.record(0), "context", "subword", SUBWORDS)
    row = bars.Row("ev", "evsoftmax", "macht", view.weights[0, 0, 0], view.support[0, 0, 0])
    with style.readable(view.keys):
        figure = bars.draw([row, row], view.keys)
    axes = figure.axes[0]
    rings = sum(len(line.get_xdata()) for line in axes.lines)
    assert rings == 2 * int((~row.support).sum())
    heights = [patch.get_height() for patch in axes.patches[: len(view.keys)]]
    assert [height > 0 for height in heights] == row.support.tolist()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1", [0]), ("last", [5]), ("1,3-4", [0, 2, 3]), ("all", [*range(6)]), ("5-last", [4, 5])],
)
def test_choices_count_from_one(text: str, numbers: list[int]) -> None:
    assert choice.parse(text, 6, "--layer") == numbers


def test_choices_that_do_not_exist_are_told() -> None:
    assert choice.parse("mean,1,rollout", 6, "--head", derived=True) == [
        choice.MEAN,
        0,
        choice.ROLLOUT,
    ]
    for text in ("0", "7", "4-2", "3-9"):
        with pytest.raises(UserError, match=r"--layer .*: there are 6, counted from 1"):
            choice.parse(text, 6, "--layer")
    for text in ("x", "mean", "1.5", ""):
        with pytest.raises(UserError, match="must be numbers such as"):
            choice.parse(text, 6, "--layer")


def test_bertviz_gets_what_its_functions_take(tmp_path: Path) -> None:
    item = traces.record(0)
    bertviz.save(item, tmp_path / "s.pt")
    given = torch.load(tmp_path / "s.pt", weights_only=True)
    assert given["encoder_tokens"] == list(item.source.tokens)
    assert given["decoder_tokens"] == ["<s>", *item.target.tokens[:-1]]
    source, target = len(item.source), len(item.target)
    for name, rows, keys in (
        ("encoder_attention", source, source),
        ("decoder_attention", target, target),
        ("cross_attention", target, source),
    ):
        assert [tuple(layer.shape) for layer in given[name]] == [(1, 4, rows, keys)] * 2
        assert torch.allclose(given[name][0].sum(-1), torch.ones(()))


@pytest.mark.parametrize("view", ["model_view", "head_view"])
@pytest.mark.parametrize("kinds", [KINDS, ("context",), ("encoder",), ("decoder",)])
def test_bertviz_itself_accepts_it(tmp_path: Path, view: str, kinds: Sequence[str]) -> None:
    views = pytest.importorskip(
        "bertviz", reason="BERTVIZ IS NOT INSTALLED, its export was not tested: pip install bertviz"
    )
    bertviz.save(traces.record(0, kinds=kinds), tmp_path / "s.pt")
    html = getattr(views, view)(**torch.load(tmp_path / "s.pt"), html_action="return")
    # The page it made holds what it was given: every head of every layer, and the tokens.
    start = html.data.index("const params = ") + len("const params = ")
    shown, _ = json.JSONDecoder().raw_decode(html.data[start:])
    assert len(shown["attention"]) == len(kinds)
    for part in shown["attention"]:
        assert np.shape(part["attn"]) == (2, 4, len(part["left_text"]), len(part["right_text"]))
    words = {token.strip() for part in shown["attention"] for token in part["left_text"]}
    assert ("does" in words) == ("encoder" in kinds)


def test_page_bytes_keep_zeros_and_two_digits() -> None:
    for normalizer in ("softmax", "evsoftmax", "sparsemax"):
        attention = traces.record(0, normalizer=normalizer).attention["context"]
        codes = quantise(attention)
        assert np.array_equal(codes > 0, attention.support)
        weights = np.where(codes > 0, ((codes.astype(float) - 1) / 254) ** 2, 0)
        assert np.abs(weights - attention.weights).max() < 0.005


def book_of(page: Path) -> dict[str, Any]:
    """What a page knows about all of its sentences."""
    (block,) = re.findall(r'id="book">([^<]+)<', page.read_text())
    return json.loads(zlib.decompress(base64.b64decode(block)))


def test_a_sentence_of_a_language_model_is_found_by_its_words(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "lm.trace", traces.header(kinds=["decoder"])) as trace:
        trace.append(encode(traces.record(0, source="", target="▁a ▁dog", kinds=["decoder"])))
        trace.finish()
    page = tmp_path / "page.html"
    assert commands.run(f"onmt_plot_attention {tmp_path / 'lm.trace'} -o {page} --quiet") == 0
    assert book_of(page)["sentences"] == [{"line": 1, "text": "a dog"}]


def test_bars_and_pages_have_the_colours_of_the_records(tmp_path: Path) -> None:
    sources = ("evsoftmax", "softmax")
    files = [traces.write(tmp_path / f"{n}.trace", 1, normalizer=n) for n in sources]
    commands.run(f"onmt_plot_attention {files[0]} {files[1]} -o {tmp_path / 'bars.svg'} --bars")
    drawn = (tmp_path / "bars.svg").read_text()
    page = tmp_path / "page.html"
    commands.run(f"onmt_plot_attention {files[0]} {files[1]} -o {page} --quiet")
    book = book_of(page)
    for source, trace in zip(sources, book["traces"], strict=True):
        assert colour_of(source) in drawn
        assert trace["colour"] == colour_of(source)
