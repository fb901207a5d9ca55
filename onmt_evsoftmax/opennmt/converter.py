"""CTranslate2: it knows only softmax, so a sparse model must not be converted."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from onmt_evsoftmax.opennmt import checkpoint as files
from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.settings import Settings
from onmt_evsoftmax.report.console import UserError


def load_for_ctranslate2(module: Any, converter: Any, original: Callable[[Any], Any]) -> Any:
    """``OpenNMTPyConverter._load``: softmax models pass, as safely as everywhere else."""
    path = converter._model_path
    options = files.load(path, map_location="cpu")["opt"]
    if Settings.of(options).sparse:
        raise UserError(
            f"{path} was trained with sparse normalizers, which CTranslate2 does not have: it "
            "would decode with softmax; use onmt_translate, or release with --format pytorch"
        )
    check = module.check_opt

    def check_opt(opt: argparse.Namespace, *args: Any, **kwargs: Any) -> Any:
        # The converter refuses 3.5.1's default, a faster way to compute the very same thing.
        if getattr(opt, "self_attn_type", None) == versions.FLASH:
            opt.self_attn_type = "scaled-dot"
        return check(opt, *args, **kwargs)

    module.check_opt = check_opt
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return original(converter)
    finally:
        module.check_opt = check
