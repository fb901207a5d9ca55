"""Building a model, fresh or from a checkpoint: the normalizers, learned alphas, the optimizer."""

from __future__ import annotations

import contextvars
import functools
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.opennmt.checkpoint import CheckpointTorch
from onmt_evsoftmax.opennmt.generator import put_output
from onmt_evsoftmax.opennmt.patching import replace
from onmt_evsoftmax.opennmt.settings import OPTIONS, Settings, overrule, written
from onmt_evsoftmax.opennmt.swap import put_normalizers
from onmt_evsoftmax.report.console import UserError

# What the user of a translation wrote, while the model it is meant for is being built.
_wishes: contextvars.ContextVar[Mapping[str, Any] | None] = contextvars.ContextVar(
    "wishes", default=None
)

# Under this key a loaded checkpoint remembers its weights' names; OpenNMT-py deletes them as it
# loads, and the optimizer's state, which is by position, needs their order.
_NAMES = "onmt_evsoftmax names"


def patch_model_builder(module: Any) -> None:
    """``onmt.model_builder``: every model is built with the normalizers its options name."""

    def with_normalizers(original: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        def build_base_model(model_opt: Namespace, *args: Any, **kwargs: Any) -> nn.Module:
            from onmt.utils.logging import logger

            wishes = _wishes.get()
            if wishes and (changes := overrule(model_opt, wishes)):
                logger.warning(_told(changes, "the checkpoint"))
            model = original(model_opt, *args, **kwargs)
            report = put_normalizers(model, model_opt)
            put_output(model, model_opt)
            # 3.0.4 passes the checkpoint here and has loaded it by now; 3.5.1 loads it later.
            checkpoint = kwargs.get("checkpoint") or next(
                (arg for arg in args[1:] if isinstance(arg, dict)), None
            )
            if checkpoint is not None:
                load_alphas(model, checkpoint["model"])
            logger.info(str(report))
            return model

        return build_base_model

    def with_wishes(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_test_model(opt: Namespace, *args: Any, **kwargs: Any) -> Any:
            # A language model prior is loaded with the options of the training around it, which
            # say nothing about that model.
            path = kwargs.get("model_path")
            mine = path is None or path in getattr(opt, "models", [])
            wishes = written(opt) if mine else {}
            if wishes.get("attention_alpha") == "learn":
                raise UserError("attention_alpha learn is for training; here, write a number")
            token = _wishes.set(wishes)
            try:
                return original(opt, *args, **kwargs)
            finally:
                _wishes.reset(token)

        return load_test_model

    replace(module, "build_base_model", with_normalizers)
    replace(module, "load_test_model", with_wishes)
    if hasattr(module, "torch"):
        module.torch = CheckpointTorch()


def patch_train_single(module: Any) -> None:
    """``onmt.train_single``: with ``train_from``, what is written wins, the rest is inherited."""

    def with_ours(original: Callable[..., Namespace]) -> Callable[..., Namespace]:
        def _get_model_opts(opt: Namespace, checkpoint: dict[str, Any] | None = None) -> Namespace:
            wishes = written(opt)
            model_opt = original(opt, checkpoint=checkpoint)
            if checkpoint is not None:
                checkpoint[_NAMES] = list(checkpoint.get("model", ()))
                for name in OPTIONS:
                    setattr(
                        model_opt, name, getattr(checkpoint["opt"], name, None) or _default(name)
                    )
                if changes := overrule(model_opt, wishes):
                    module.logger.warning(_told(changes, f"the checkpoint {opt.train_from}"))
                # The loss and the optimizer are built from the command's own options.
                for name in OPTIONS:
                    setattr(opt, name, getattr(model_opt, name))
            _check_training(opt)
            return model_opt

        return _get_model_opts

    replace(module, "_get_model_opts", with_ours)


def _told(changes: list[str], loser: str) -> str:
    return f"onmt_evsoftmax: what is written wins over {loser}: {', '.join(changes)}"


def _default(name: str) -> Any:
    return "softmax" if name in ("generator_function", "global_attention_function") else None


def _check_training(opt: Namespace) -> None:
    settings = Settings.of(opt)
    settings.check()
    if settings.generator == "softmax":
        return
    if opt.copy_attn:
        raise UserError(
            f"generator_function: {settings.generator} does not go with copy_attn, whose generator "
            "mixes two softmaxes; remove one of them"
        )
    if getattr(opt, "lm_prior_model", None):
        raise UserError(
            f"generator_function: {settings.generator} does not go with lm_prior_model, which "
            "compares softmaxes; remove one of them"
        )


def alphas(names: Iterable[str]) -> list[str]:
    """Of parameter names, those of learned alphas."""
    return [name for name in names if name.endswith(".softmax.normalizer.pre_alpha")]


def load_alphas(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Take learned alphas from a checkpoint's ``weights``; what it has none for stays as it is."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in alphas(parameters):
            if name in weights:
                parameters[name].copy_(weights[name])


def patch_model(module: Any) -> None:
    """``onmt.models.model``: 3.5.1 loads strictly; alphas may be new, or no longer wanted.

    It also looks for a copy generator's weights under names they were not saved with.
    """
    original = module.BaseModel.load_state_dict
    if original is nn.Module.load_state_dict:
        return

    @functools.wraps(original)
    def load_state_dict(self: Any, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        weights = checkpoint["model"]
        mine = {name: p for name, p in self.named_parameters() if name in alphas([name])}
        for name in alphas(list(weights)):
            if name not in mine:
                del weights[name]
        for name, parameter in mine.items():
            weights.setdefault(name, parameter.detach().clone())
        for name in [name for name in checkpoint.get("generator") or () if "." in name]:
            weights[f"generator.{name}"] = checkpoint["generator"].pop(name)
        return original(self, checkpoint, *args, **kwargs)

    module.BaseModel.load_state_dict = load_state_dict


def patch_optimizers(module: Any) -> None:
    """``onmt.utils.optimizers``: optimizer state survives alphas that come or go."""
    optimizer = module.Optimizer
    original = optimizer.from_opt.__func__

    @functools.wraps(original)
    def from_opt(
        cls: Any, model: nn.Module, opt: Namespace, checkpoint: dict[str, Any] | None = None
    ) -> Any:
        if checkpoint is not None and _NAMES in checkpoint:
            _match_optimizer(model, checkpoint)
        return original(cls, model, opt, checkpoint=checkpoint)

    optimizer.from_opt = classmethod(from_opt)


def _match_optimizer(model: nn.Module, checkpoint: dict[str, Any]) -> None:
    """Renumber the optimizer's state, which is by position, if the set of alphas has changed."""
    new = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    old = _parameter_names(new, checkpoint[_NAMES])
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
    old = [name for name in new if name not in set(alphas(new))]
    for position, name in enumerate(stored):
        if name in alphas([name]):
            before = next(other for other in reversed(stored[:position]) if other in old)
            old.insert(old.index(before) + 1, name)
    return old
