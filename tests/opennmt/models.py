"""Small random OpenNMT-py models, built the way its commands build them, on either version."""

from __future__ import annotations

import inspect
from argparse import Namespace
from typing import Any

import onmt.model_builder
import onmt.opts
import pyonmttok
import pytest
import torch
from onmt.translate import GNMTGlobalScorer, Translator
from onmt.utils.parse import ArgumentParser

from onmt_evsoftmax.kernels import triton
from onmt_evsoftmax.kernels.triton import serving
from onmt_evsoftmax.opennmt import install

install()

SPECIALS = ["<unk>", "<blank>", "<s>", "</s>"]
WORDS = [f"w{number}" for number in range(12)]


def vocabularies(words: list[str] = WORDS, task: str = "seq2seq") -> dict[str, Any]:
    """The same words on both sides."""
    vocabulary = pyonmttok.build_vocab_from_tokens([*SPECIALS, *words])
    vocabulary.default_id = 0
    return {
        "src": vocabulary,
        "tgt": vocabulary,
        "data_task": task,
        "decoder_start_token": "<s>",
    }


def parse(*arguments: str) -> Namespace:
    """Options as ``onmt_train`` would have them."""
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    required = ["-data", "{}", "-src_vocab", "none"]
    options, _ = parser.parse_known_args([*required, *arguments])
    ArgumentParser.update_model_opts(options)
    return options


def flags(**options: object) -> list[str]:
    """``layers=2`` as ``["-layers", "2"]``; True is a flag without a value."""
    pairs = [
        [f"-{key}"] + ([] if value is True else [str(value)]) for key, value in options.items()
    ]
    return [text for pair in pairs for text in pair]


TRANSFORMER = flags(
    encoder_type="transformer",
    decoder_type="transformer",
    layers=2,
    heads=2,
    hidden_size=16,
    word_vec_size=16,
    transformer_ff=16,
    dropout=0,
    attention_dropout=0,
)
LANGUAGE_MODEL = [
    *TRANSFORMER,
    *flags(model_task="lm", share_vocab=True, position_encoding=True),
    *flags(encoder_type="transformer_lm", decoder_type="transformer_lm"),
]
RNN = flags(
    encoder_type="rnn", decoder_type="rnn", layers=1, hidden_size=16, word_vec_size=16, dropout=0
)


def build(*arguments: str, words: list[str] = WORDS, seed: int = 0, scale: float = 0.5) -> Any:
    """A model in evaluation mode with random weights, large enough to make attention uneven."""
    options = parse(*arguments)
    vocabs = vocabularies(words, options.model_task)
    builder = onmt.model_builder.build_base_model
    takes_device = "gpu" in inspect.signature(builder).parameters
    model = builder(options, vocabs, False) if takes_device else builder(options, vocabs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
            elif not name.endswith("pre_alpha"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    model.options, model.vocabs = options, vocabs
    return model.eval()


def translator_of(model: Any, *arguments: str) -> Translator:
    """What ``onmt_translate`` with these arguments translates with, for a model of ``build``."""
    parser = ArgumentParser()
    onmt.opts.translate_opts(parser)
    options = parser.parse_args(["-model", "none", "-src", "none", *arguments])
    scorer = GNMTGlobalScorer.from_opt(options)
    return Translator.from_opt(model, model.vocabs, options, model.options, global_scorer=scorer)


def batch(lengths: list[int], seed: int = 0, vocabulary: int = 16) -> tuple[Any, Any]:
    """Random token ids (batch, longest, 1), padded on the right, and the lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, vocabulary, (len(lengths), max(lengths), 1), generator=generator)
    for row, length in enumerate(lengths):
        ids[row, length:] = 1
    return ids, torch.tensor(lengths)


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (8, 0)) -> None:
    """A GPU of this generation and Triton, as far as choosing a backend looks at them."""
    properties = Namespace(major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    for module in (triton, serving):
        monkeypatch.setattr(module, "available", lambda: True)
