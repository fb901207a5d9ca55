"""Building a model, for training or translation, with the normalizers that its options name."""

from __future__ import annotations

import contextvars
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.checkpoint import CheckpointTorch
from onmt_evsoftmax.opennmt.commands import check_device
from onmt_evsoftmax.opennmt.generator import put_output
from onmt_evsoftmax.opennmt.options import training_only
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.opennmt.resuming import load_learned, overridden
from onmt_evsoftmax.opennmt.settings import LEARN, override, written
from onmt_evsoftmax.opennmt.sites import put_normalizers
from onmt_evsoftmax.report import threads
from onmt_evsoftmax.report.console import UserError

# What the user of a translation wrote, while its model is being built; None in training.
_overrides: contextvars.ContextVar[Mapping[str, Any] | None] = contextvars.ContextVar(
    "overrides", default=None
)


def patch_model_builder(module: Any) -> None:
    """``onmt.model_builder``: every model is built with the normalizers its options name."""

    @around(module)
    def build_base_model(original: Any, model_opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        from onmt.utils.logging import logger

        overrides = _overrides.get()
        if overrides and (changes := override(model_opt, overrides)):
            logger.warning(overridden(changes, "the checkpoint"))
        model = original(model_opt, *args, **kwargs)
        report = put_normalizers(model, model_opt, overrides)
        put_output(model, model_opt)
        if checkpoint := versions.checkpoint_loaded_by_builder(args, kwargs):
            load_learned(model, checkpoint["model"])
        logger.info(str(report))
        threads.watch(model)
        return model

    @around(module)
    def load_test_model(original: Any, opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        # A language model prior is loaded with the options of the training around it, which say
        # nothing about that model.
        path = kwargs.get("model_path")
        mine = path is None or path in getattr(opt, "models", [])
        overrides = written(opt) if mine else {}
        _refuse_training_options(overrides)
        _check_translation(opt)
        token = _overrides.set(overrides)
        try:
            return original(opt, *args, **kwargs)
        finally:
            _overrides.reset(token)

    if versions.builder_reads_files(module):
        module.torch = CheckpointTorch()


def _check_translation(opt: Namespace) -> None:
    """Refuse a GPU that is not there, and more translations than the beam has."""
    check_device([getattr(opt, "gpu", -1)], "-gpu")
    if 1 < getattr(opt, "beam_size", 1) < getattr(opt, "n_best", 1):
        raise UserError(f"n_best {opt.n_best} needs a beam_size of {opt.n_best} or more")


def _refuse_training_options(overrides: Mapping[str, Any]) -> None:
    """A translation cannot learn a parameter, nor use one that acts in training only."""
    for option, value in overrides.items():
        if value == LEARN:
            raise UserError(f"{option} learn is for training; here, write a number")
        if value and training_only(option):
            raise UserError(f"{option} acts in training only; remove it: translation is exact")
