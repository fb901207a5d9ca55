"""How far a long run is, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress(
    what: str,
    total: float | None = None,
    *,
    unit: str = "sentences",
    lines: Iterable[Any] | None = None,
    initial: int = 0,
    quiet: bool = False,
    **more: Any,
) -> Any:
    """A bar with ``update()`` and ``close()``; in a log file a line now and then, not a flood.

    ``lines`` is something to iterate over while the bar counts. The unit ``B`` is for bytes.
    ``more`` overrides what tqdm is told here.
    """
    settings: dict[str, Any] = {
        "desc": what,
        "unit": unit if unit == "B" else f" {unit}",
        "unit_scale": unit == "B",
        "mininterval": 0.2 if sys.stderr.isatty() else 15.0,
        "delay": 1.0,
        "leave": False,
        "dynamic_ncols": True,
        **more,
    }
    return tqdm(lines, total=total, initial=initial, file=sys.stderr, disable=quiet, **settings)


def steps(quiet: bool = False) -> Any:
    """For work of named steps: call it with what is being done and the share done before it."""
    bar = progress("", 1.0, quiet=quiet, bar_format="{percentage:3.0f}% {desc}")

    def show(doing: str, share: float) -> None:
        bar.set_description_str(doing, refresh=False)
        bar.update(share - bar.n)
        if share >= 1:
            bar.close()

    return show
