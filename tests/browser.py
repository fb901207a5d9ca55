"""A real Chromium for tests of pages; every page it opens is watched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: What Debian's Chromium needs inside a container, and what keeps it from looking for Google.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def need(what: str) -> None:
    """Skip loudly; with REQUIRE_BROWSER=1, as in CI, fail."""
    message = f"NO BROWSER, the page was not tested: {what}"
    if os.environ.get("REQUIRE_BROWSER"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def launched() -> Iterator[Any]:
    """A headless browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        need("pip install playwright")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        need("install Chromium, for example apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Any,
    path: Path,
    address: str = "",
    *,
    ready: str = "body[data-shown]",
    folder: Path | None = None,
    **context: Any,
) -> Iterator[Any]:
    """A page of that file, ready; at the end nothing may have gone wrong in it.

    It is ready when it has the element ``ready``, and may load nothing but itself and what lies in
    ``folder``.
    """
    allowed = path.as_uri() if folder is None else folder.as_uri()
    context.setdefault("viewport", {"width": 1280, "height": 900})
    tab = browser.new_context(**context)
    tab.set_offline(True)
    page = tab.new_page()
    troubles: list[str] = []
    page.on(
        "console",
        # Reading pixels back is what tests do, not the page.
        lambda message: (
            "willReadFrequently" in message.text or troubles.append(f"console: {message.text}")
        ),
    )
    page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (troubles.append("a dialog opened"), dialog.dismiss()))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(allowed) or troubles.append(f"request: {request.url}")
        ),
    )
    page.goto(path.as_uri() + address)
    page.wait_for_selector(ready, timeout=30000)
    yield page
    tab.close()
    assert not troubles
