"""CTranslate2's converter of eole's models: those it would run differently are refused."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from onmt_evsoftmax.eole.config import NEEDS


def patch_converter(module: Any) -> None:
    """``ctranslate2.converters.eole_ct2``: our models are refused before anything is written."""
    load = module.EoleConverter._load

    @functools.wraps(load)
    def _load(self: Any) -> Any:
        path = Path(self._model_path)
        if NEEDS in (path / "config.json").read_text("utf-8"):
            raise ValueError(
                f"{path} has sparse attention or distances beside its positions, which CTranslate2 "
                "does not have: it would decode with softmax or without them; use eole predict"
            )
        return load(self)

    module.EoleConverter._load = _load
