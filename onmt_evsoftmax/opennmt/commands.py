"""The stock commands: errors as one sentence, checkpoints read and written our way."""

from __future__ import annotations

import functools
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.checkpoint import AveragingTorch, CheckpointTorch, sweep
from onmt_evsoftmax.opennmt.patching import replace
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import replacing


def patch_command(module: Any) -> None:
    """``onmt.bin.*``: a mistake of the user's ends in one line and exit code 2, not a traceback."""
    main = module.main

    @functools.wraps(main)
    def run() -> Any:
        try:
            return main()
        except UserError as error:
            print(f"{os.path.basename(sys.argv[0])}: error: {error}", file=sys.stderr)
            sys.exit(2)

    module.main = run


def patch_release(module: Any) -> None:
    """``onmt.bin.release_model``."""
    module.torch = CheckpointTorch()
    patch_command(module)


def patch_average(module: Any) -> None:
    """``onmt.bin.average_models``: only checkpoints with the same normalizers have a mean."""

    def checked(original: Callable[..., Any]) -> Callable[..., Any]:
        def average_models(*args: Any, **kwargs: Any) -> Any:
            module.torch = AveragingTorch()
            return original(*args, **kwargs)

        return average_models

    replace(module, "average_models", checked)
    module.torch = AveragingTorch()
    patch_command(module)


def patch_model_saver(module: Any) -> None:
    """``onmt.models.model_saver``: atomic saving, safe loading, no litter of killed runs."""

    def swept(original: Callable[..., Any]) -> Callable[..., Any]:
        def build_model_saver(model_opt: Namespace, opt: Namespace, *args: Any, **kw: Any) -> Any:
            sweep(opt.save_model)
            return original(model_opt, opt, *args, **kw)

        return build_model_saver

    module.torch = CheckpointTorch()
    replace(module, "build_model_saver", swept)
    if versions.saves_safetensors(module.ModelSaver):
        _save_safetensors_whole(module.ModelSaver)


def _save_safetensors_whole(saver: Any) -> None:
    """3.5.1 can put the weights into a file of their own: that one, too, is whole or not there."""
    original = saver._st_save

    @functools.wraps(original)
    def _st_save(self: Any, step: int, model: Any) -> Any:
        try:
            import safetensors.torch as library
        except ImportError:
            return original(self, step, model)  # which says what to install
        write = library.save_file

        def save_file(weights: Any, path: str) -> None:
            with replacing(path) as temporary:
                write(weights, temporary)

        library.save_file = save_file
        try:
            return original(self, step, model)
        finally:
            library.save_file = write

    saver._st_save = _st_save


def patch_server(module: Any) -> None:
    """``onmt.translate.translation_server``: a client that asks for a bad model gets an answer."""
    model = module.ServerModel
    load = model.load

    @functools.wraps(load)
    def load_or_tell(self: Any, preload: bool = False) -> None:
        try:
            load(self, preload)
        except UserError as error:
            if preload:  # the server is starting: stop it with that sentence
                raise
            raise module.ServerModelError(str(error)) from error

    model.load = load_or_tell
