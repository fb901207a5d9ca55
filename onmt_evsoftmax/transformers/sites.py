"""Where a model computes attention, and of which kind each place is."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel

#: Modules that ask this for their function can have another; the others normalize by themselves.
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_OWN = re.compile(r"softmax\(|scaled_dot_product_attention\(")
_ATTENTION = re.compile(r"Attention|Attn")
#: What a layer calls its attention to the encoder: crossattention, encoder_attn, EncDecAttention.
_CONTEXT = re.compile(r"cross|encoder_attn|enc_?dec|encoder_decoder", re.IGNORECASE)


def attention_sites(model: PreTrainedModel) -> dict[nn.Module, str]:
    """Attention module → its kind, in the model's order.

    A model with attention that does not go through transformers' interface is refused by name,
    since there softmax would stay, unnoticed.
    """
    found: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            continue  # whose base class has the interface in it, whatever the model does
        source = _source(module.__class__)
        if _INTERFACE in source:
            found[module] = _kind(path, module)
        elif _ATTENTION.search(type(module).__name__) and _OWN.search(source):
            raise refusal(model, f"its {type(module).__name__}")
    return found


def refusal(model: PreTrainedModel, what: str = "its attention") -> ValueError:
    """For a model in which softmax would stay, unnoticed."""
    return ValueError(
        f"{type(model).__name__} cannot have another normalizer: {what} computes softmax by "
        "itself, without transformers' attention interface"
    )


def _kind(path: str, module: nn.Module) -> str:
    in_layer = re.split(r"\.\d+\.", path)[-1]
    if _CONTEXT.search(in_layer) or getattr(module, "is_cross_attention", False):
        return "context"
    marks = (getattr(module, mark, False) for mark in ("is_causal", "is_decoder"))
    return "decoder" if any(marks) or "decoder" in path.split(".") else "encoder"


@functools.cache
def _source(cls: Any) -> str:
    """The source of a class of a model and its bases, as far as there is one."""
    text = ""
    for base in cls.__mro__:
        if base.__module__.split(".")[0] not in ("torch", "builtins"):
            try:
                text += inspect.getsource(base)
            except (OSError, TypeError):  # typed into a notebook
                continue
    return text
