"""Which normalizer a model uses: registered, chosen, saved with the model and found again."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from onmt_evsoftmax.normalizers.registry import get_record, normalizer_names
from onmt_evsoftmax.report.console import unknown_name
from onmt_evsoftmax.trace.record import KINDS
from onmt_evsoftmax.transformers.attention import ATTRIBUTE, BY_KIND, STOCK, implementation
from onmt_evsoftmax.transformers.sites import attention_sites, refusal

_registered: set[str] = set()


def _register(*names: str) -> None:
    for name in names:
        AttentionInterface.register(name, implementation(name))
        # Without a mask of its own an implementation gets None: no padding, no causality.
        AttentionMaskInterface.register(name, sdpa_mask)
        _registered.add(name)


def use(
    model: PreTrainedModel, normalizer: str, kinds: str | Sequence[str] = KINDS
) -> PreTrainedModel:
    """Let ``model`` attend with another normalizer; returns the model.

    ``kinds`` are those of encoder, decoder and context attention (the decoder's to the encoder)
    to change; the others stay as they are. ``"sdpa"`` puts transformers' own softmax back.
    """
    if normalizer != STOCK:
        _register(get_record(normalizer).name)
    wanted = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in wanted:
        if kind not in KINDS:
            raise ValueError(unknown_name("kind of attention", kind, KINDS))
    sites = attention_sites(model)
    present = [kind for kind in KINDS if kind in sites.values()]
    if not set(wanted) & set(present):
        having = f"only {', '.join(present)}" if present else "none that could have a normalizer"
        raise ValueError(f"{type(model).__name__} has no {' or '.join(wanted)} attention, {having}")
    chosen = {
        kind: name for kind, name in chosen_normalizers(model.config).items() if kind in present
    }
    chosen |= {kind: normalizer for kind in present if kind in wanted}
    _apply(model, chosen)
    return model


def chosen_normalizers(config: PreTrainedConfig) -> dict[str, str]:
    """Kind of attention → what the model uses now; ``"sdpa"`` is transformers' own softmax."""
    name = config._attn_implementation
    chosen = getattr(config, ATTRIBUTE) if name == BY_KIND else {}
    rest = name if name in _registered else STOCK
    return {kind: chosen.get(kind, STOCK if chosen else rest) for kind in KINDS}


def _apply(model: PreTrainedModel, chosen: dict[str, str]) -> None:
    names = set(chosen.values())
    name = names.pop() if len(names) == 1 else BY_KIND
    model.set_attn_implementation(name)
    for config in {
        id(m.config): m.config for m in model.modules() if hasattr(m, "config")
    }.values():
        setattr(config, ATTRIBUTE, dict(chosen) if name == BY_KIND else name)
    _assign(model)


def _assign(model: PreTrainedModel) -> None:
    """Tell every attention module its normalizer; refuse a model that would not ask."""
    sites = attention_sites(model)
    if model.config._attn_implementation == BY_KIND:
        chosen = getattr(model.config, ATTRIBUTE)
        for module, kind in sites.items():
            setattr(module, ATTRIBUTE, chosen.get(kind, STOCK))


def install() -> None:
    """Register all normalizers, and teach transformers to keep the choice in ``config.json``."""
    _register(*normalizer_names(), BY_KIND)
    _wrap(PreTrainedConfig, "to_dict", _saved)
    _wrap(PreTrainedModel, "get_correct_attn_implementation", _loaded)
    _wrap(PreTrainedModel, "post_init", _built)


def _wrap(owner: Any, name: str, replacement: Any) -> None:
    setattr(owner, name, functools.partialmethod(replacement, getattr(owner, name)))


def _saved(config: PreTrainedConfig, original: Any) -> dict[str, Any]:
    """The configuration with its normalizer.

    transformers forgets ``attn_implementation``; written down, it also makes recent versions
    refuse the model where this package was not imported.
    """
    fields: dict[str, Any] = original(config)
    name = config._attn_implementation
    fields.pop(ATTRIBUTE, None)
    if name in _registered:
        chosen = getattr(config, ATTRIBUTE, name) if name == BY_KIND else name
        fields |= {"attn_implementation": name, ATTRIBUTE: chosen}
    return fields


def _loaded(
    model: PreTrainedModel, original: Any, requested: str | None, *args: Any, **kwargs: Any
) -> str:
    """The implementation of a model being built: if none is asked for, that of its saved config."""
    saved = getattr(model.config, ATTRIBUTE, None)
    if requested is None and saved is not None:
        requested = BY_KIND if isinstance(saved, dict) else saved
    asked = {requested, *(saved.values() if isinstance(saved, dict) else ())}
    if new := asked - _registered:  # among them may be one that was registered since the import
        _register(*new.intersection(normalizer_names()))
    if requested in _registered and not model._can_set_attn_implementation():
        raise refusal(model)
    name: str = original(model, requested, *args, **kwargs)
    return name


def _built(model: PreTrainedModel, original: Any) -> None:
    original(model)
    if model.config._attn_implementation in _registered:
        _assign(model)
