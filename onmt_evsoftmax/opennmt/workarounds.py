"""Workarounds for OpenNMT-py bugs that users run into, with this torch or any.

Each function below is one workaround and says which bug it is for; where OpenNMT-py is mended, it
can go. None of them has to do with normalizers.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import lines_of


def patch_misc(module: Any) -> None:
    """``onmt.utils.misc``: a vocabulary may be written into the current folder."""

    @around(module)
    def check_path(original: Any, path: str, *args: Any, **kwargs: Any) -> None:
        original(path if os.path.dirname(path) else os.path.join(".", path), *args, **kwargs)


def patch_text_corpus(module: Any) -> None:
    """``onmt.inputters.text_corpus``: text that is not UTF-8 is told with its file and line."""

    @around(module.ParallelCorpus)
    def load(original: Any, self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from original(self, *args, **kwargs)
        except UnicodeDecodeError:
            for path in filter(None, (self.src, self.tgt, self.align)):
                for _ in lines_of(path):
                    pass  # at the line that cannot be decoded, this is a UserError
            raise


def patch_inputter(module: Any) -> None:
    """``onmt.inputters.inputter``: a file that is no vocabulary is told as such."""

    @around(module)
    def _read_vocab_file(original: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(path, *args, **kwargs)
        except (IndexError, ValueError) as error:  # empty, no UTF-8, or a count that is none
            raise UserError(
                f"the vocabulary {path} is not a list of words in UTF-8, one on a line"
            ) from error


def patch_attention(module: Any) -> None:
    """``onmt.modules.multi_headed_attn``: heads that do not divide the model's size are told."""

    @around(module.MultiHeadedAttention)
    def __init__(
        original: Any, self: Any, head_count: int, model_dim: int, *args: Any, **kwargs: Any
    ) -> None:
        if model_dim % head_count:
            raise UserError(f"heads: {head_count} cannot share a hidden_size of {model_dim} evenly")
        original(self, head_count, model_dim, *args, **kwargs)


def patch_beam_search(module: Any) -> None:
    """``onmt.translate.beam_search``: attention by step and beam, as ``-attn_debug`` needs it.

    Both versions read the length of sentence i at position i, but lengths are stored once per beam:
    attention is then cut to the length of another sentence.
    """
    search = module.BeamSearchBase
    time_first = versions.is_time_first(search)
    _accept_any_layout(search, time_first)

    @around(search, "update_finished" if time_first else "beams_non_finished")
    def with_own_lengths(original: Any, self: Any, *args: Any) -> Any:
        if time_first and isinstance(self, module.BeamSearchLM):
            return original(self, *args)  # it has no source to cut
        stored = self.src_len
        # 3.0.4 keeps the lengths of the whole batch, 3.5.1 those of the sentences still searched.
        rows = self._batch_offset if time_first else torch.arange(len(stored) // self.beam_size)
        self.src_len = stored[rows.to(stored.device) * self.beam_size]
        try:
            return original(self, *args)
        finally:
            self.src_len = stored


def patch_greedy_search(module: Any) -> None:
    """``onmt.translate.greedy_search``: the same for sampling and greedy search."""
    search = module.GreedySearch
    time_first = versions.is_time_first(search)
    _accept_any_layout(search, time_first)
    if not time_first:
        return

    @around(search)
    def update_finished(original: Any, self: Any) -> None:
        # 3.0.4 forgets to drop the lengths of the sentences that have finished.
        alive = ~self.is_finished.view(-1)
        original(self)
        if not self.done and not isinstance(self, module.GreedySearchLM):
            self.src_len = self.src_len[alive]


def _accept_any_layout(search: Any, time_first: bool) -> None:
    """Decoders return attention as (beams, 1, source) or (1, beams, source); turn it if needed."""

    @around(search)
    def advance(original: Any, self: Any, log_probs: Tensor, attn: Tensor | None) -> None:
        if attn is not None and attn.dim() == 3:
            wrong = attn.size(1) if time_first else attn.size(0)
            if wrong == 1 and log_probs.size(0) != 1:
                attn = attn.transpose(0, 1)
        original(self, log_probs, attn)


def patch_alibi(module: Any) -> None:
    """``onmt.modules.alibi_position_bias``: a bias kept from longer queries is not a step's bias.

    After a forced pass (gold scores, validation) 3.5.1 would give every decoding step the bias of
    the first position.
    """

    @around(module.AlibiPositionalBias)
    def forward(original: Any, self: Any, qk_dots: Tensor) -> Any:
        if self.bias is not None and self.bias.shape[-2:] != qk_dots.shape[-2:]:
            self.bias = None
        return original(self, qk_dots)


def patch_translator(module: Any) -> None:
    """``onmt.translate.translator``: alignments from a layer that exists, or a sentence."""

    @around(module)
    def build_translator(original: Any, opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        translator = original(opt, *args, **kwargs)
        if opt.report_align:
            members = getattr(translator.model, "models", [translator.model])
            for model in members:
                _set_alignment_layer(model.decoder, getattr(opt, "alignment_layer", None))
        return translator

    @around(module)
    def tile(original: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        # 3.0.4 also tiles the encoder's final state, which a transformer does not have.
        return None if x is None else original(x, *args, **kwargs)


def _set_alignment_layer(decoder: Any, layer: int | None) -> None:
    if getattr(decoder, "alignment_layer", None) is None:
        raise UserError("-report_align needs a translation model with a transformer decoder")
    if layer is not None:
        decoder.alignment_layer = layer
    count = len(decoder.transformer_layers)
    if not -count <= decoder.alignment_layer < count:
        raise UserError(
            f"-report_align reads decoder layer {decoder.alignment_layer} but there are {count}: "
            f"add -alignment_layer with a number from {-count} to {count - 1}, for example -1"
        )


def patch_inference_engine(module: Any) -> None:
    """``onmt.inference_engine``: 3.5.1 forgets the data that a copy model needs to decode."""

    @around(module.InferenceEnginePY)
    def __init__(original: Any, self: Any, opt: Namespace) -> None:
        original(self, opt)
        if hasattr(self, "translator"):  # not where several processes share a model
            opt.copy_attn = self.translator.copy_attn

    @around(module)
    def build_dynamic_dataset_iter(original: Any, opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("copy", getattr(opt, "copy_attn", False))
        return original(opt, *args, **kwargs)


def patch_train_single(module: Any) -> None:
    """``onmt.train_single``: the GPUs of all machines share the corpus.

    Both versions deal the sentences out to the GPUs of one machine, so the first GPU of every
    machine reads the same ones, and a second machine adds nothing.
    """

    @around(module)
    def build_dynamic_dataset_iter(original: Any, opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        here = len(opt.gpu_ranks)
        if "stride" in kwargs and versions.is_data_parallel(opt) and 0 < here < opt.world_size:
            kwargs.update(stride=opt.world_size, offset=opt.gpu_ranks[kwargs["offset"]])
        return original(opt, *args, **kwargs)
