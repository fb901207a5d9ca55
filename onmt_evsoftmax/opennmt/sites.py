"""The attention sites of a model: found, given their normalizers, and reported, all here.

OpenNMT-py's ``MultiHeadedAttention`` keeps its softmax as a submodule and applies it to scores in
which excluded keys were filled with −1e18. That submodule is the seam. ``GlobalAttention`` of RNN
decoders is prepared in :mod:`rnn`. What is put there stands in :mod:`modules`.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import onmt_evsoftmax
from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import fusion_blocker, gpu_fusion_blocker
from onmt_evsoftmax.kernels import triton
from onmt_evsoftmax.kernels.triton.normalizers import NAMES
from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.modules import (
    ALWAYS,
    EVALUATION,
    NOBODY,
    AttentionNormalizer,
    FusedAttention,
    fuse,
)
from onmt_evsoftmax.opennmt.settings import STOCK, Settings, option_of, record_of
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace.record import KINDS


@dataclass(frozen=True)
class Site:
    """One attention of a model: its kind, its layer (counted from 0) and the module itself.

    ``kind`` is encoder, decoder or context for multi-headed attention; for RNN decoders it is
    global, or copy for the separate copy attention.
    """

    kind: str
    layer: int
    module: Any

    @property
    def multi_headed(self) -> bool:
        """Whether this is a transformer's attention."""
        return self.kind in KINDS

    @property
    def heads(self) -> int:
        """How many heads it has."""
        return self.module.head_count if self.multi_headed else 1


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
class Placed:
    """What was put into one attention, and how it will be computed."""

    kind: str
    #: Who reads the attention matrix, if it is fused where nobody does; else None.
    fused_for: str | None = None
    #: Why it is not fused on the CPU, and on the GPU if there is one.
    blocker: str | None = None
    gpu_blocker: str | None = None


@dataclass(frozen=True)
class Report:
    """What took effect in one model; ``str()`` is the start-up line."""

    settings: Settings
    #: Kinds of attention the model has, in order.
    kinds: tuple[str, ...]
    placed: tuple[Placed, ...]
    translating: bool = False

    def fused(self, on_gpu: bool) -> list[str]:
        """What is computed without the attention matrix, in words, each once."""
        found: dict[str, None] = {}
        for place in self.placed:
            blocker = place.gpu_blocker if on_gpu else place.blocker
            # A step of decoding, one query per head, has a kernel on CPUs only; it yields the row.
            decodes = self.translating and place.kind != "encoder"
            if place.fused_for and blocker is None and not (decodes and on_gpu):
                limited = place.fused_for == EVALUATION and not self.translating
                found[place.kind + (" in training" if limited else "")] = None
        return list(found)

    def _fused_line(self) -> str:
        on_cpu, on_gpu = (", ".join(self.fused(gpu)) or "none" for gpu in (False, True))
        if not torch.cuda.is_available() or on_cpu == on_gpu:
            return on_cpu
        return f"{on_cpu} on CPU, {on_gpu} on GPU"

    def __str__(self) -> str:
        settings = self.settings.in_evaluation() if self.translating else self.settings
        chosen = {kind: settings.chosen(kind) for kind in self.kinds}
        parts = [f"{kind} attention {settings.described(name)}" for kind, name in chosen.items()]
        parts.append(f"generator {settings.generator}")
        count = len(self.placed)
        line = (
            f"onmt_evsoftmax {onmt_evsoftmax.__version__}: {', '.join(parts)}; "
            f"{count} attention module{'' if count == 1 else 's'} replaced"
        )
        if not self.placed:
            return line
        names = {chosen[place.kind] for place in self.placed}
        backends = {", ".join(row_backends(record_of(name).row_kernel)) for name in names}
        where = ", ".join(sorted(backends))
        return f"{line}; backend: {where}; fused attention: {self._fused_line()}"


def row_backends(kernel: str | None) -> list[str]:
    """What computes a row kernel, on the CPU and on the GPU if this machine has one."""
    on_cpu = kernel is not None and kernels.serves(kernel, torch.empty(1))
    found = [f"{kernels.backend()} kernels on CPU" if on_cpu else "torch on CPU"]
    if torch.cuda.is_available():
        found.append(f"{on_gpu(kernel)} on GPU")
    return found


def on_gpu(kernel: str | None) -> str:
    """What computes a row kernel on a GPU."""
    if kernel is None or kernel not in NAMES or kernels.chosen() == "torch":
        return "torch"
    return "Triton kernels" if triton.available() else "torch (Triton is not installed)"


def put_normalizers(
    model: nn.Module, options: Namespace, overrides: Mapping[str, Any] | None = None
) -> Report:
    """Replace the normalizers of ``model`` as ``options`` say; refuse what would stay softmax.

    ``overrides`` are the options that a translation wrote; None means that the model is to train.
    """
    settings = Settings.of(options)
    settings.check()
    if settings.learned and versions.trains_low_rank(options):
        option = option_of(settings.learned[0])
        raise UserError(f"{option}: learn cannot be saved with LoRA layers; write a number")
    sites = list(attention_sites(model))
    _refuse_leftovers(model, settings, {site.kind for site in sites})
    placed = [
        _put(site, settings, _reader(model, site.kind, options), _dtype(options))
        for site in sites
        if settings.chosen(site.kind) != STOCK
    ]
    kinds = tuple(dict.fromkeys(site.kind for site in sites))
    report = Report(settings, kinds, tuple(placed), translating=overrides is not None)
    # A translation inherits how its model was trained, which need not be possible here.
    demanded = overrides is None or "attention_backend" in overrides
    if settings.backend == "fused" and demanded and not (report.fused(False) or report.fused(True)):
        blockers = list(dict.fromkeys(place.blocker for place in placed if place.blocker))
        if any(place.fused_for for place in placed):
            blockers.append("decoding computes one row at a time, which is fused on CPUs only")
        why = "; ".join(blockers) or "all attention is softmax"
        raise UserError(f"attention_backend: fused is not possible here: {why}; write auto")
    return report


def _dtype(options: Namespace) -> torch.dtype:
    """The type of a model's queries on a GPU."""
    return torch.float16 if getattr(options, "model_dtype", "fp32") == "fp16" else torch.float32


def _put(site: Site, settings: Settings, reader: str, dtype: torch.dtype) -> Placed:
    """Put a new normalizer into one attention, and fuse that if it can be."""
    attention = site.module
    heads = site.heads if site.multi_headed else None
    module = AttentionNormalizer(settings.normalizer(site.kind, heads))
    module.to(next(attention.parameters()).device)
    if not site.multi_headed:
        attention.normalizer = module.train(attention.training)
        return Placed(site.kind)
    # A new module is in training mode, so what acts in training only is seen here, too.
    common = _blocker(attention, reader, settings.backend)
    blocker = common or fusion_blocker(module.normalizer, attention.dim_per_head)
    on_gpu: str | None = "there is no GPU"
    if torch.cuda.is_available():
        on_gpu = common or gpu_fusion_blocker(
            module.normalizer, attention.dim_per_head, dtype, versions.adds_positions(attention)
        )
    attention.softmax = module.train(attention.training)
    disable_fast_paths(attention)
    if blocker is None or on_gpu is None:
        fuse(attention, reader)
        return Placed(site.kind, reader, blocker, on_gpu)
    if isinstance(attention, FusedAttention):  # from a call with other options
        attention.reader = ALWAYS
    return Placed(site.kind, None, blocker, on_gpu)


def _blocker(attention: Any, reader: str, backend: str) -> str | None:
    """Why this attention of a model cannot be fused, wherever it is computed, or None."""
    if backend == "explicit":
        return "attention_backend is explicit"
    if reader == ALWAYS:
        return "copy attention, coverage and guided alignment read the attention matrix"
    if versions.learns_bias(attention):
        return "a learned bias of positions needs a gradient as large as the attention matrix"
    if versions.shares_keys(attention):
        return "shared keys (num_kv) and tensor parallelism are not fused"
    return None


def disable_fast_paths(attention: Any) -> None:
    """Turn off the paths that never reach the normalizer (flash attention, SDPA)."""
    for name, value in versions.fast_paths(attention).items():
        setattr(attention, name, value)


def _reader(model: nn.Module, kind: str, options: Namespace) -> str:
    """Who reads the matrix that an attention of this kind returns.

    OpenNMT-py drops those of encoders, and of self-attention in a decoder with an encoder. The
    others it passes on: to the search, which may want them, and in training to what is asked below.
    """
    if kind == "encoder" or (kind == "decoder" and getattr(model, "encoder", None) is not None):
        return NOBODY
    asked = ("copy_attn", "coverage_attn", "lambda_align", "lambda_coverage")
    return ALWAYS if any(getattr(options, name, None) for name in asked) else EVALUATION


def _refuse_leftovers(model: nn.Module, settings: Settings, present: set[str]) -> None:
    """An attention that was asked to be sparse but has no normalizer to replace is an error."""
    from onmt.modules import AverageAttention, ConvMultiStepAttention

    def refuse(option: str, name: str, why: str) -> None:
        raise UserError(f"{option}: {name} {why}")

    for kind in sorted(settings.named):
        name = settings.attention[kind]
        if name != STOCK and kind not in present:
            why = f"has nothing to act on: this model has no multi-headed {kind} attention"
            refuse(f"{kind}_attention_normalizer", name, why)
    if settings.global_attention != STOCK and "global" not in present:
        why = "has nothing to act on: it is for RNN decoders; here, write attention_normalizer"
        refuse("global_attention_function", settings.global_attention, why)
    # What remains was asked for by attention_normalizer, which speaks for every attention.
    asked = [kind for kind in KINDS if kind not in settings.named]
    if not asked or settings.attention[asked[0]] == STOCK:
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
