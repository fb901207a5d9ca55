"""The plugin: makes OpenNMT-py train and translate with the normalizers of this package.

Installing the package is enough: a start-up hook calls :func:`install` when OpenNMT-py is imported.
Nothing is forked; each module named below is patched in a few places right after it is imported,
and everything else in this package is what those patches do. This is the only part of the project
that imports ``onmt``.
"""

from __future__ import annotations

import onmt_evsoftmax_hook
from onmt_evsoftmax.opennmt.loading import LoadedModel, load_model
from onmt_evsoftmax.opennmt.recording import AttentionRecord, record_attention

__all__ = [
    "AttentionRecord",
    "LoadedModel",
    "install",
    "installed",
    "load_model",
    "record_attention",
]

_installed = False


def installed() -> bool:
    """Whether the plugin is live in this process."""
    return _installed


def install() -> None:
    """Patch OpenNMT-py, whatever of it is or will be imported; a second call does nothing."""
    global _installed
    if _installed:
        return

    import torch

    from onmt_evsoftmax.opennmt import (
        building,
        commands,
        generator,
        keys,
        options,
        resuming,
        rnn,
        workarounds,
    )
    from onmt_evsoftmax.opennmt.checkpoint import ALLOWED

    torch.serialization.add_safe_globals(list(ALLOWED))
    for name, patch in (
        ("onmt.opts", options.patch_opts),
        ("onmt.utils.misc", workarounds.patch_misc),
        ("onmt.inputters.inputter", workarounds.patch_inputter),
        ("onmt.inputters.text_corpus", workarounds.patch_text_corpus),
        ("onmt.utils.parse", keys.patch_parse),
        ("onmt.utils.parse", commands.patch_validation),
        ("onmt.modules.global_attention", rnn.patch_global_attention),
        ("onmt.modules.multi_headed_attn", workarounds.patch_attention),
        ("onmt.modules.alibi_position_bias", workarounds.patch_alibi),
        ("onmt.decoders.decoder", rnn.patch_decoder),
        ("onmt.models.model", resuming.patch_model),
        ("onmt.models.model_saver", commands.patch_model_saver),
        ("onmt.model_builder", building.patch_model_builder),
        ("onmt.utils.optimizers", resuming.patch_optimizers),
        ("onmt.utils.loss", generator.patch_loss),
        ("onmt.decoders.ensemble", generator.patch_ensemble),
        ("onmt.translate.beam_search", workarounds.patch_beam_search),
        ("onmt.translate.greedy_search", workarounds.patch_greedy_search),
        ("onmt.translate.translator", generator.patch_translator),
        ("onmt.translate.translator", workarounds.patch_translator),
        ("onmt.translate.translation_server", commands.patch_server),
        ("onmt.inference_engine", workarounds.patch_inference_engine),
        ("onmt.train_single", resuming.patch_train_single),
        ("onmt.train_single", workarounds.patch_train_single),
        ("onmt.bin.train", commands.patch_command),
        ("onmt.bin.translate", commands.patch_translate),
        ("onmt.bin.build_vocab", commands.patch_build_vocab),
        ("onmt.bin.server", commands.patch_server_command),
        ("onmt.bin.average_models", commands.patch_average),
        ("onmt.bin.release_model", commands.patch_release),
    ):
        onmt_evsoftmax_hook.after_import(name, patch)
    onmt_evsoftmax_hook.watch_converter()
    _installed = True  # at the end: what has failed once must not pass for done
