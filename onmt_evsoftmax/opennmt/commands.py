"""The stock commands: errors as one sentence, checkpoints read and written our way."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

import torch

from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.checkpoint import (
    AveragingTorch,
    CheckpointTorch,
    ConvertingTorch,
    sweep,
)
from onmt_evsoftmax.opennmt.keys import read_corpora
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.report import memory, threads
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import lines_of, replacing, same_length
from onmt_evsoftmax.report.outputs import check_outputs

# Errors about a file that the user named. (OpenNMT-py's own OSErrors are sentences, without errno.)
_MISTAKES = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def patch_command(module: Any) -> None:
    """``onmt.bin.*``: a mistake of the user's ends in one line and exit code 2, not a traceback."""

    @around(module)
    def main(original: Any) -> Any:
        threads.govern()
        memory.keep_freed()
        try:
            return original()
        except (UserError, OSError) as error:
            text = str(error)
            if isinstance(error, OSError) and error.errno is not None:
                if not isinstance(error, _MISTAKES) or error.filename is None:
                    raise
                text = f"cannot use {error.filename}: {error.strerror}"
            print(f"{os.path.basename(sys.argv[0])}: error: {text}", file=sys.stderr)
            sys.exit(2)


def patch_validation(module: Any) -> None:
    """``onmt.utils.parse``: what OpenNMT-py's own checks find is told in one line, too."""

    checks = ("validate_prepare_opts", "validate_train_opts", "validate_model_opts")

    @around(module.ArgumentParser, *checks)
    def validate(check: Any, cls: Any, opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        check_device(range(len(getattr(opt, "gpu_ranks", ()))), "gpu_ranks")
        try:
            return check(cls, opt, *args, **kwargs)
        except (AssertionError, OSError, ValueError) as error:
            raise UserError(" ".join(str(error).split())) from error


def check_device(gpus: Iterable[int], option: str) -> None:
    """Refuse GPUs that torch does not find."""
    found = torch.cuda.device_count()
    if any(gpu >= found for gpu in gpus):
        there = f"only {found}" if found else "none"
        raise UserError(
            f"{option} asks for a GPU, and torch finds {there} here; "
            f"leave {option} out to use the CPU"
        )


def patch_release(module: Any) -> None:
    """``onmt.bin.release_model``."""
    module.torch = ConvertingTorch()
    patch_command(module)


def patch_translate(module: Any) -> None:
    """``onmt.bin.translate``: texts have lines, and none is replaced by a translation of it."""

    @around(module)
    def translate(original: Any, opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        read = [*opt.models, opt.src, opt.tgt, getattr(opt, "config", None)]
        check_outputs([opt.output], option="-output", inputs=filter(None, read))
        # OpenNMT-py fails on a text without lines, and translates as much as both texts have.
        texts = [path for path in (opt.src, opt.tgt) if path and os.path.isfile(path)]
        same_length([(path, sum(1 for _ in lines_of(path))) for path in texts])
        return original(opt, *args, **kwargs)

    patch_command(module)


def patch_build_vocab(module: Any) -> None:
    """``onmt.bin.build_vocab``: what cannot be written is told before anything is counted."""

    @around(module)
    def build_vocab_main(original: Any, opts: Namespace) -> Any:
        made = [opts.src_vocab] if opts.share_vocab else [opts.src_vocab, opts.tgt_vocab]
        corpora = read_corpora(opts.data).values()
        read = [corpus[key] for corpus in corpora for key in corpus if str(key).startswith("path")]
        paths = [path for path in made if path]
        check_outputs(paths, option="vocabulary", inputs=filter(None, [opts.config, *read]))
        for path in paths:
            if os.path.exists(path) and not opts.overwrite:
                raise UserError(f"{path} exists; remove it, or say -overwrite")
        return original(opts)

    patch_command(module)


def patch_average(module: Any) -> None:
    """``onmt.bin.average_models``: only checkpoints with the same normalizers have a mean."""

    @around(module)
    def average_models(original: Any, *args: Any, **kwargs: Any) -> Any:
        module.torch = AveragingTorch()
        return original(*args, **kwargs)

    patch_command(module)


def patch_model_saver(module: Any) -> None:
    """``onmt.models.model_saver``: atomic saving, safe loading, no litter of killed runs."""

    module.torch = CheckpointTorch()

    @around(module)
    def build_model_saver(original: Any, model_opt: Any, opt: Any, *args: Any, **kw: Any) -> Any:
        sweep(opt.save_model)
        return original(model_opt, opt, *args, **kw)

    if versions.saves_safetensors(module.ModelSaver):
        _save_safetensors_whole(module.ModelSaver)


def _save_safetensors_whole(saver: Any) -> None:
    """3.5.1 can put the weights into a file of their own: that one, too, is whole or not there."""

    @around(saver)
    def _st_save(original: Any, self: Any, step: int, model: Any) -> Any:
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


def patch_server(module: Any) -> None:
    """``onmt.translate.translation_server``: a client that asks for a bad model gets an answer."""

    @around(module.ServerModel)
    def load(original: Any, self: Any, preload: bool = False) -> None:
        try:
            original(self, preload)
        except UserError as error:
            if preload:  # the server is starting: stop it with that sentence
                raise
            self.loading_lock.set()  # or the next client waits for a load that has ended
            raise module.ServerModelError(str(error)) from error

    @around(module.ServerModel)
    def unload(original: Any, self: Any) -> None:
        if self.loaded:  # the server unloads after every error, also one of loading
            original(self)


def patch_server_command(module: Any) -> None:
    """``onmt.bin.server``: a client gets JSON whatever was wrong with its question."""
    patch_command(module)
    flask = module.Flask

    def answer(error: Exception) -> Any:
        # An unknown model is told as such, and then looked up once more to be unloaded.
        context = error.__context__
        cause = context if isinstance(context, module.ServerModelError) else error
        text = getattr(cause, "description", None) or str(cause) or type(cause).__name__
        code = getattr(error, "code", None) or 400
        return module.jsonify({"error": text, "status": module.STATUS_ERROR}), code

    def answering(*args: Any, **kwargs: Any) -> Any:
        app = flask(*args, **kwargs)
        app.register_error_handler(Exception, answer)
        return app

    module.Flask = answering
