"""The built site: strict, complete, and right on phones, on desktops, by day and by night."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlparse

import browser
import pytest
import torch

from onmt_evsoftmax import evsoftmax

ROOT = Path(__file__).resolve().parents[2]
VIEWS = [
    (name, {"width": width, "height": 900}, scheme)
    for name, width in (("desktop", 1280), ("phone", 360))
    for scheme in ("light", "dark")
]

#: What is wrong with the page as it is shown now.
LOOK = """scheme => {
  const wrong = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 1) wrong.push(`${wide} pixels wider than the screen`);
  const shown = [...document.images].filter((image) => image.checkVisibility());
  for (const image of shown)
    if (image.complete && !image.naturalWidth) wrong.push(`broken image ${image.src}`);
  for (const image of shown)
    if (image.classList.contains(scheme === "dark" ? "only-light" : "only-dark"))
      wrong.push(`${image.src} belongs to the other colour scheme`);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => (part / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const style = getComputedStyle(document.body);
  const [ink, paper] = [light(style.color), light(style.backgroundColor)];
  if (Math.max(ink / paper, paper / ink) < 7) wrong.push("text that is hard to read");
  if (ink > paper !== (scheme === "dark")) wrong.push(`not ${scheme}`);
  return wrong;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = ["-q", "-W", "--keep-going", "-d", str(folder / "trees"), "docs", str(folder / "site")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.launched() as running:
        yield running


class Links(HTMLParser):
    """What a page points to, what can be pointed to in it, and what it needs to be shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {"", "top"}
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors.update(filter(None, (given.get("id"), given.get("name"))))
        if tag == "a" and given.get("href"):
            self.targets.append(given["href"] or "")
        for key in ("src", "href"):
            if tag in ("img", "script", "link", "iframe", "source") and given.get(key):
                self.loaded.append(given[key] or "")


def test_links_lead_somewhere_and_nothing_is_fetched(site: Path) -> None:
    pages = {page: Links(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert len(pages) > 20
    wrong = []
    for page, links in pages.items():
        for address in links.loaded:
            if urlparse(address).scheme not in ("", "data"):
                wrong.append(f"{page.name} loads {address}")
        for address in [*links.targets, *links.loaded]:
            if urlparse(address).scheme:
                continue
            name, anchor = urldefrag(address)
            target = (page.parent / unquote(name.partition("?")[0])).resolve() if name else page
            if not target.is_file():
                wrong.append(f"{page.name} → {address}")
            elif target in pages and unquote(anchor) not in pages[target].anchors:
                wrong.append(f"{page.name} → {address}: no such anchor")
    assert not wrong, "\n".join(wrong)


def test_every_page_in_every_view(site: Path, chromium: Any) -> None:
    wrong = []
    for path in sorted(site.rglob("*.html")):
        if path.is_relative_to(site / "_static"):
            continue  # the attention page has tests of its own
        with browser.opened(chromium, path, ready="body", folder=site) as page:
            for name, size, scheme in VIEWS:
                page.set_viewport_size(size)
                page.emulate_media(color_scheme=scheme)
                found = page.evaluate(LOOK, scheme)
                wrong += [f"{path.name}, {name}, {scheme}: {what}" for what in found]
    assert not wrong, "\n".join(wrong)


def test_the_playground_of_the_site_counts_like_the_package(site: Path, chromium: Any) -> None:
    path = site / "playground" / "index.html"
    with browser.opened(
        chromium, path, "#v=1,-2,0.5,0.25", ready="#playground[data-shown]", folder=site
    ) as page:
        bars = page.locator('.pg-panel[data-name="evsoftmax"] .pg-row').all()
        found = [float(bar.get_attribute("data-p")) for bar in bars]
    wanted = evsoftmax(torch.tensor([1, -2, 0.5, 0.25], dtype=torch.float64)).tolist()
    assert found == pytest.approx(wanted, abs=1e-12)
    assert [p == 0 for p in found] == [p == 0 for p in wanted]


def test_search_finds_without_a_server(site: Path, chromium: Any) -> None:
    with browser.opened(
        chromium, site / "search.html", "?q=sparsehourglass", ready="body", folder=site
    ) as page:
        page.wait_for_selector("#search-results li a", timeout=30000)


def test_every_command_is_on_its_page(site: Path) -> None:
    from onmt_evsoftmax.__main__ import COMMANDS

    text = (site / "generated" / "commands.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"<h3>{name}<" in text, name


def test_the_notebook_runs(tmp_path: Path) -> None:
    """As Jupyter would run it; see docs/_site/notebook.py for why without it."""
    path = ROOT / "docs" / "quickstart.ipynb"
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    runner = ROOT / "docs" / "_site" / "notebook.py"
    subprocess.run([sys.executable, str(runner), str(copy)], check=True)
    book, kept = (json.loads(one.read_text(encoding="utf-8")) for one in (copy, path))
    for ran, shown in zip(book["cells"], kept["cells"], strict=True):
        if ran["cell_type"] == "code":
            kinds = [output["output_type"] for output in shown["outputs"]]
            assert [output["output_type"] for output in ran["outputs"]] == kinds
            # What is printed is what the page shows; pictures depend on the fonts that are there.
            for one, other in zip(ran["outputs"], shown["outputs"], strict=True):
                assert "".join(one.get("text", "")) == "".join(other.get("text", ""))
