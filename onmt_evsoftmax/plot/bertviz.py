"""A record as the arguments of BertViz, the notebook tool for attention (Vig, 2019)."""

from __future__ import annotations

import os
from typing import Any

import torch

from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.trace import Record


def arguments(record: Record) -> dict[str, Any]:
    """Keyword arguments for ``bertviz.head_view`` and ``bertviz.model_view``.

    Each attention is a list with one tensor ``(1, heads, rows, keys)`` per layer. BertViz labels a
    decoder step with the token it *reads* (row *t* with ``prefix[t]``), where this package labels
    it with the token it predicts; ``decoder_tokens`` here are therefore the prefix.
    """
    names = {"encoder": "encoder_attention", "decoder": "decoder_attention"}
    result: dict[str, Any] = {}
    for kind, attention in record.attention.items():
        layers = [torch.from_numpy(layer[None].copy()) for layer in attention.weights]
        result[names.get(kind, "cross_attention")] = layers
    if "encoder" in record.attention or "context" in record.attention:
        result["encoder_tokens"] = list(record.source.tokens)
    if "decoder" in record.attention or "context" in record.attention:
        result["decoder_tokens"] = list(record.prefix.tokens)
    if set(result) == {"decoder_attention", "decoder_tokens"}:
        # A language model: BertViz calls its only attention "attention".
        return {"attention": result["decoder_attention"], "tokens": result["decoder_tokens"]}
    return result


def save(record: Record, path: str | os.PathLike[str]) -> None:
    """Write the arguments so that ``bertviz.model_view(**torch.load(path))`` shows them."""
    with replacing(path) as temporary:
        torch.save(arguments(record), temporary)
