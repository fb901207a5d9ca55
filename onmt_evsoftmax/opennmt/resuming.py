"""Training from a checkpoint: options, learned parameters and the optimizer's state go along."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.opennmt.settings import (
    STOCK,
    Settings,
    default,
    option_of,
    options_of,
    override,
    record_of,
    written,
)
from onmt_evsoftmax.report.console import UserError

# Under this key a loaded checkpoint remembers its weights' names; OpenNMT-py deletes them as it
# loads, and the optimizer's state, which is by position, needs their order.
_NAMES = "onmt_evsoftmax names"


def patch_train_single(module: Any) -> None:
    """``onmt.train_single``: with ``train_from``, what is written wins, the rest is inherited."""

    @around(module)
    def _get_model_opts(
        original: Any, opt: Namespace, checkpoint: dict[str, Any] | None = None
    ) -> Any:
        overrides = written(opt)
        model_opt = original(opt, checkpoint=checkpoint)
        if checkpoint is not None:
            checkpoint[_NAMES] = list(checkpoint.get("model", ()))
            stored = checkpoint["opt"]
            for name in options_of(opt, stored):
                setattr(model_opt, name, getattr(stored, name, None) or default(name))
            if changes := override(model_opt, overrides):
                module.logger.warning(overridden(changes, f"the checkpoint {opt.train_from}"))
            # The loss and the optimizer are built from the command's own options.
            for name in options_of(opt, model_opt):
                setattr(opt, name, getattr(model_opt, name, None))
        _check_training(opt, module.logger)
        return model_opt


def overridden(changes: list[str], loser: str) -> str:
    """The line that says which options of a checkpoint were not used."""
    return f"onmt_evsoftmax: what is written wins over {loser}: {', '.join(changes)}"


def _check_training(opt: Namespace, logger: Any) -> None:
    settings = Settings.of(opt)
    settings.check()
    if warning := _alignment_warning(opt, settings):
        logger.warning(warning)
    if settings.generator == STOCK:
        return
    for option, what in (
        ("copy_attn", "whose generator mixes two softmaxes"),
        ("lm_prior_model", "which compares softmaxes"),
    ):
        if getattr(opt, option, None):
            raise UserError(
                f"generator_function: {settings.generator} does not go with {option}, {what}; "
                "remove one of them"
            )


def _alignment_warning(opt: Namespace, settings: Settings) -> str | None:
    """Guided alignment pushes up the attention to the gold words, which zeros do not let it.

    The loss is −log p of the gold link; where p is exactly 0, OpenNMT-py puts a constant.
    """
    name = settings.attention["context"]
    if not getattr(opt, "lambda_align", 0) or name == STOCK:
        return None
    remedies = [p.name for p in record_of(name).parameters if p.training_only]
    if any(settings.parameters.get(parameter) for parameter in remedies):
        return None
    advice = [f"set {option_of(p)} to a small number, for example 1e-6" for p in remedies]
    advice.append("use context_attention_normalizer: softmax")
    return (
        f"onmt_evsoftmax: guided alignment (lambda_align) with {name}: a gold link to which "
        f"attention is exactly 0 trains nothing; {', or '.join(advice)}"
    )


def learned(names: Iterable[str]) -> list[str]:
    """Of the names in a model's state, those that belong to its normalizers (learned alphas)."""
    return [name for name in names if re.search(r"\.(softmax|normalizer)\.normalizer\.", name)]


def load_learned(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Take what normalizers have learned from a checkpoint's ``weights``, as far as it has it."""
    state = model.state_dict()
    with torch.no_grad():
        for name in learned(state):
            if name in weights:
                state[name].copy_(weights[name])


def patch_model(module: Any) -> None:
    """``onmt.models.model``: where loading is strict, alphas may be new, or no longer wanted."""
    if not versions.loads_strictly(module.BaseModel):
        return

    @around(module.BaseModel)
    def load_state_dict(
        original: Any, self: Any, checkpoint: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        weights, state = checkpoint["model"], self.state_dict()
        mine = learned(state)
        for name in set(learned(weights)) - set(mine):
            del weights[name]
        for name in mine:
            weights.setdefault(name, state[name].clone())
        for name in [name for name in checkpoint.get("generator") or () if "." in name]:
            weights[f"generator.{name}"] = checkpoint["generator"].pop(name)
        return original(self, checkpoint, *args, **kwargs)


def patch_optimizers(module: Any) -> None:
    """``onmt.utils.optimizers``: optimizer state survives alphas that come or go."""

    @around(module.Optimizer)
    def from_opt(
        original: Any, cls: Any, model: nn.Module, opt: Namespace, checkpoint: Any = None
    ) -> Any:
        if checkpoint is not None and _NAMES in checkpoint:
            _match_optimizer(model, checkpoint)
        return original(cls, model, opt, checkpoint=checkpoint)


def _match_optimizer(model: nn.Module, checkpoint: dict[str, Any]) -> None:
    """Renumber the optimizer's state, which is by position, if the set of alphas has changed."""
    new = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    buffers = {name for name, _ in model.named_buffers()}
    old = _parameter_names(new, [name for name in checkpoint[_NAMES] if name not in buffers])
    state = (checkpoint.get("optim") or {}).get("optimizer")
    if old == new or not isinstance(state, dict) or len(state["param_groups"]) != 1:
        return
    (group,) = state["param_groups"]
    if len(group["params"]) != len(old):
        return  # something else has changed; let torch say so
    by_name = dict(zip(old, group["params"], strict=True))
    state["state"] = {
        index: state["state"][by_name[name]]
        for index, name in enumerate(new)
        if by_name.get(name) in state["state"]
    }
    group["params"] = list(range(len(new)))


def _parameter_names(new: list[str], stored: list[str]) -> list[str]:
    """Names of the checkpoint's parameters in order: the model's own, but with its alphas."""
    old = [name for name in new if name not in set(learned(new))]
    for position, name in enumerate(stored):
        if learned([name]):
            before = next(other for other in reversed(stored[:position]) if other in old)
            old.insert(old.index(before) + 1, name)
    return old
