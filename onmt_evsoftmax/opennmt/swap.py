"""Puts the chosen normalizers into a model that OpenNMT-py has built, and says what it did.

OpenNMT-py's ``MultiHeadedAttention`` keeps its softmax as a submodule and applies it to scores in
which excluded keys were filled with −1e18. That submodule is the seam. ``GlobalAttention`` of RNN
decoders is prepared in :mod:`rnn`.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

import onmt_evsoftmax
from onmt_evsoftmax.opennmt import backends
from onmt_evsoftmax.opennmt.fused import EVALUATION
from onmt_evsoftmax.opennmt.settings import KINDS, Settings, takes
from onmt_evsoftmax.report.console import UserError


@dataclass(frozen=True)
class Site:
    """One attention of a model: its kind, its layer (counted from 0) and the module itself.

    ``kind`` is encoder, decoder or context for multi-headed attention; for RNN decoders it is
    global, or copy for the separate copy attention.
    """

    kind: str
    layer: int
    module: Any


def attention_sites(model: nn.Module) -> Iterator[Site]:
    """Every attention of ``model`` that has a normalizer, in the order of its layers."""
    from onmt.modules import GlobalAttention, MultiHeadedAttention

    for name, module in model.named_modules():
        if isinstance(module, GlobalAttention):
            yield Site("copy" if name.endswith("copy_attn") else "global", 0, module)
        elif isinstance(module, MultiHeadedAttention):
            if name.startswith("encoder."):
                kind = "encoder"
            else:
                kind = "context" if module.attn_type == "context" else "decoder"
            layer = re.search(r"\.(\d+)\.", name)
            yield Site(kind, int(layer[1]) if layer else 0, module)


@dataclass(frozen=True)
class Report:
    """What took effect in one model; ``str()`` is the start-up line."""

    settings: Settings
    # Kind → how many of its modules were replaced; 0 where softmax was left alone.
    replaced: Mapping[str, int]
    backends: frozenset[str]
    # What is computed without the matrix of attention, in words.
    fused: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = {**self.settings.attention, "global": self.settings.global_attention}
        names["copy"] = names["global"]
        parts = [f"{kind} attention {self._full(names[kind])}" for kind in self.replaced]
        parts.append(f"generator {self.settings.generator}")
        count = sum(self.replaced.values())
        modules = f"{count} attention module{'' if count == 1 else 's'} replaced"
        backend = f"; backend: {', '.join(sorted(self.backends))}" if self.backends else ""
        if self.backends:
            backend += f"; fused attention: {', '.join(self.fused) or 'none'}"
        version = onmt_evsoftmax.__version__
        return f"onmt_evsoftmax {version}: {', '.join(parts)}; {modules}{backend}"

    def _full(self, name: str) -> str:
        given = [f"{k}={value}" for k, value in self.settings.parameters.items() if takes(name, k)]
        return f"{name}({', '.join(given)})" if given else name


def put_normalizers(model: nn.Module, options: Namespace) -> Report:
    """Replace the normalizers of ``model`` as ``options`` say; refuse what would stay softmax."""
    settings = Settings.of(options)
    settings.check()
    if settings.learns_alpha and getattr(options, "lora_layers", None):
        raise UserError("attention_alpha: learn cannot be saved with LoRA layers; write a number")
    sites = list(attention_sites(model))
    _refuse_leftovers(model, settings, {site.kind for site in sites})
    replaced = {site.kind: 0 for site in sites}
    used: set[str] = set()
    fused: dict[str, None] = {}  # a set that keeps the order
    obstacles: dict[str, None] = {}
    for site in sites:
        if settings.attention.get(site.kind, settings.global_attention) == "softmax":
            continue
        reader = backends.reader_of(model, site.kind, options)
        built = backends.build(settings, site.kind, site.module, reader)
        built.module.to(next(site.module.parameters()).device).train(site.module.training)
        backends.put(built, site.kind, site.module, settings)
        if site.kind in KINDS:
            shut_shortcuts(site.module)
        replaced[site.kind] += 1
        used.add(built.backend)
        if built.obstacle:
            obstacles[built.obstacle] = None
        if built.reader:
            in_training = " in training" if built.reader == EVALUATION else ""
            fused[f"{site.kind}{in_training}"] = None
    if settings.backend == "fused" and not fused:
        why = "; ".join(obstacles) or "no attention is evsoftmax"
        raise UserError(f"attention_backend: fused is not possible here: {why}; write auto")
    return Report(settings, replaced, frozenset(used), tuple(fused))


def shut_shortcuts(attention: Any) -> None:
    """Turn off the paths of OpenNMT-py ≥ 3.1 that never reach the normalizer (flash, SDPA)."""
    if hasattr(attention, "self_attn_type"):
        attention.self_attn_type = "scaled-dot"
        attention.flash2 = False


def _refuse_leftovers(model: nn.Module, settings: Settings, present: set[str]) -> None:
    """An attention that was asked to be sparse but has no normalizer to replace is an error."""
    from onmt.modules import AverageAttention, ConvMultiStepAttention

    def refuse(option: str, name: str, why: str) -> None:
        raise UserError(f"{option}: {name} {why}")

    for kind in sorted(settings.named):
        name = settings.attention[kind]
        if name != "softmax" and kind not in present:
            why = f"has nothing to act on: this model has no multi-headed {kind} attention"
            refuse(f"{kind}_attention_normalizer", name, why)
    if settings.global_attention != "softmax" and "global" not in present:
        why = "has nothing to act on: it is for RNN decoders; here, write attention_normalizer"
        refuse("global_attention_function", settings.global_attention, why)
    # What remains was asked for by attention_normalizer, which speaks for every attention.
    asked = [kind for kind in KINDS if kind not in settings.named]
    if not asked or settings.attention[asked[0]] == "softmax":
        return
    name = settings.attention[asked[0]]
    found = {type(module) for module in model.modules()}
    if AverageAttention in found and "decoder" in asked:
        why = "cannot act on self_attn_type: average, which normalizes nothing; write scaled-dot"
        refuse("attention_normalizer", name, why)
    if ConvMultiStepAttention in found:
        refuse("attention_normalizer", name, "cannot act on a CNN decoder; use a transformer")
    if "global" in present and "context" in asked:
        why = f"is for transformers; for an RNN decoder write global_attention_function: {name}"
        refuse("attention_normalizer", name, why)
    if not present & set(KINDS):
        refuse("attention_normalizer", name, "has nothing to act on: this model has no attention")
