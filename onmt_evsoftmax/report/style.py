"""How every figure looks and how it is saved; its colours are those of the palette."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from onmt_evsoftmax.report import fonts, palette
from onmt_evsoftmax.report.console import warn
from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.report.palette import INK

#: A larger PNG is drawn with fewer dots per inch: it would not fit into memory.
_MOST_PIXELS = 10**8
WEIGHTS = LinearSegmentedColormap.from_list("weights", palette.WEIGHTS)


@contextmanager
def readable(texts: Iterable[str], size: float = 8.0) -> Iterator[None]:
    """Settings for one figure with these texts in it; warns of letters that no font has."""
    texts = list(texts)
    "".join(texts).encode()  # what is no UTF-8 is refused here; matplotlib would not say why
    families, missing = fonts.choose(texts)
    if missing:
        warn(
            f"no installed font has {' '.join(missing[:20])} "
            f"({', '.join(f'U+{ord(c):04X}' for c in missing[:5])}); "
            "they are drawn as boxes: install a font that has them, for example Noto"
        )
    settings: Any = {
        "font.family": families,
        "font.size": size,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.2,
        "lines.markersize": 4,
        "legend.frameon": False,
        "legend.fontsize": size - 1,
        "xtick.color": INK,
        "ytick.color": INK,
        "hatch.linewidth": 0.6,
        # $ in a token is a dollar, not mathematics.
        "text.parse_math": False,
        # Outlines look the same in every viewer; PDF text stays selectable.
        "svg.fonttype": "path",
        "svg.hashsalt": "onmt_evsoftmax",
        "pdf.fonttype": 42,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The warning above says it once, matplotlib's own once for every text and letter.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield


def save(
    figure: Figure, path: str | os.PathLike[str], ending: str | None = None, dpi: int = 200
) -> None:
    """Write a figure by the path's ending, whole or not at all; same figure, same bytes."""
    extension = (ending or Path(path).suffix).lower().lstrip(".")
    size = figure.get_figwidth() * figure.get_figheight()
    if extension == "png" and size * dpi**2 > _MOST_PIXELS:
        dpi = math.isqrt(int(_MOST_PIXELS / size))
        warn(f"{path} is large: it has {dpi} dots per inch; .svg or .pdf stays sharp")
    dates: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with replacing(path) as temporary:
        figure.savefig(
            temporary,
            format=extension,
            dpi=dpi,
            bbox_inches="tight",
            pad_inches=0.05,
            metadata=dates.get(extension),
        )
