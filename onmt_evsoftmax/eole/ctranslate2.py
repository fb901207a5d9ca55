"""CTranslate2's converter of eole's models: those it would run differently are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onmt_evsoftmax.eole.config import NEEDS
from onmt_evsoftmax.opennmt.patching import around


def patch_converter(module: Any) -> None:
    """``ctranslate2.converters.eole_ct2``: our models are refused before anything is written."""

    @around(module.EoleConverter)
    def _load(original: Any, self: Any) -> Any:
        path = Path(self._model_path)
        if NEEDS in (path / "config.json").read_text("utf-8"):
            raise ValueError(
                f"{path} has sparse attention or distances beside its positions, which CTranslate2 "
                "does not have: it would decode with softmax or without them; use eole predict"
            )
        return original(self)
