"""How far a long run is, on standard error."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress(total: int | None, what: str, quiet: bool, initial: int = 0) -> Any:
    """A bar with ``update()`` and ``close()``; in a log file a line now and then, not a flood."""
    interval = 0.2 if sys.stderr.isatty() else 15.0
    return tqdm(
        total=total,
        initial=initial,
        desc=what,
        unit=" sentences",
        file=sys.stderr,
        disable=quiet,
        mininterval=interval,
        delay=1.0,
        leave=False,
        dynamic_ncols=True,
    )
