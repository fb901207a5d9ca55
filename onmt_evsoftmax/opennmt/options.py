"""Our options on OpenNMT-py's parsers."""

from __future__ import annotations

import argparse
import functools
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

from onmt_evsoftmax.normalizers.registry import normalizer_names
from onmt_evsoftmax.opennmt.patching import replace
from onmt_evsoftmax.opennmt.settings import BACKENDS, EXTENDED, KIND_OPTIONS, WRITTEN
from onmt_evsoftmax.report.console import UserError, unknown_name

# Option → (what it is, the default in training). In translation the default is the checkpoint's.
_HELP = {
    "attention_normalizer": (
        "What turns attention scores into probabilities, in every attention.",
        "softmax",
    ),
    "encoder_attention_normalizer": (
        "The same for the encoder's self-attention only.",
        "attention_normalizer",
    ),
    "decoder_attention_normalizer": (
        "The same for the decoder's self-attention only.",
        "attention_normalizer",
    ),
    "context_attention_normalizer": (
        "The same for the decoder's attention to the source only.",
        "attention_normalizer",
    ),
    "attention_alpha": (
        "entmax's alpha: a number above 1, or `learn` for one per head, trained.",
        "1.5",
    ),
    "attention_eps": (
        "evsoftmax's eps in training, as in the paper; decoding is always exact.",
        "0, exact in training, too",
    ),
    "attention_backend": (
        "How ev-softmax attention is computed: `fused` needs no matrix of attention, `explicit` "
        "makes it; `auto` is fused where nothing reads the matrix.",
        "auto",
    ),
    "global_attention_function": ("What normalizes the attention of RNN decoders.", "softmax"),
    "generator_function": (
        "What turns the output layer's scores into probabilities, with the loss that trains it.",
        "softmax",
    ),
}
_METAVAR = {"attention_alpha": "ALPHA", "attention_eps": "EPS", "attention_backend": "HOW"}


class _Written(argparse._StoreAction):
    """Stores the value and remembers that the user wrote it: a checkpoint may say otherwise."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, values, option_string)
        setattr(namespace, WRITTEN, [*getattr(namespace, WRITTEN, []), self.dest])


def _one_of(option: str, names: Callable[[], Iterable[str]]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in names():
            raise UserError(f"{option}: {unknown_name('normalizer', text, names())}")
        return text

    return check


def _alpha(text: str) -> float | str:
    if text == "learn":
        return text
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 < value < float("inf"):
        raise UserError(f"attention_alpha must be a number above 1, or learn, not {text!r}")
    return value


def _eps(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise UserError(f"attention_eps must be 0 (exact) or a positive number, not {text!r}")
    return value


def _backend(text: str) -> str:
    if text not in BACKENDS:
        raise UserError(f"attention_backend: {unknown_name('backend', text, BACKENDS)}")
    return text


def _type_of(option: str) -> Callable[[str], Any]:
    if option == "attention_alpha":
        return _alpha
    if option == "attention_eps":
        return _eps
    if option == "attention_backend":
        return _backend
    return _one_of(option, functools.partial(_names, option))


def _names(option: str) -> list[str]:
    return normalizer_names("generator" if option == "generator_function" else "attention")


def _help(option: str, default: str | None = None) -> str:
    text, own_default = _HELP[option]
    if option in ("attention_normalizer", *EXTENDED):
        text += f" One of: {', '.join(_names(option))}."
    # Shows nothing: it keeps the formatter from adding the default as it is stored, None.
    return f"{text} (default: {default or own_default})%(default).0s"


def _add(group: Any, option: str, default: str | None = None) -> None:
    group.add(
        f"--{option}",
        f"-{option}",
        type=_type_of(option),
        default=None,
        action=_Written,
        metavar=_METAVAR.get(option, "NAME"),
        help=_help(option, default),
    )


def add_to_model(parser: Any) -> None:
    """Add our options to a parser that has OpenNMT-py's model options, and extend its two."""
    group = parser.add_argument_group("Model- Sparse attention (onmt_evsoftmax)")
    for option in ("attention_normalizer", *KIND_OPTIONS.values(), "attention_alpha"):
        _add(group, option)
    _add(group, "attention_eps")
    _add(group, "attention_backend")
    for action in parser._actions:
        if action.dest in EXTENDED:
            action.__class__ = _Written
            action.type = _type_of(action.dest)
            action.choices = None
            action.metavar = "NAME"
            action.help = _help(action.dest)


def add_to_translate(parser: Any) -> None:
    """Let translation overrule a checkpoint: the same options, none of them set."""
    group = parser.add_argument_group("Sparse attention (onmt_evsoftmax): overrules the checkpoint")
    for option in _HELP:
        _add(group, option, "what the checkpoint has")
    group.add(
        "--alignment_layer",
        "-alignment_layer",
        type=int,
        default=None,
        metavar="N",
        help="Decoder layer that -report_align reads, counted from 0, or from the end if negative "
        "(default: what the checkpoint has)%(default).0s",
    )


def patch_opts(module: Any) -> None:
    """``onmt.opts``: our options appear wherever the model's or translation's do."""

    def with_model_options(original: Callable[..., None]) -> Callable[..., None]:
        def model_opts(parser: Any) -> None:
            original(parser)
            add_to_model(parser)

        return model_opts

    def with_translate_options(original: Callable[..., None]) -> Callable[..., None]:
        def translate_opts(parser: Any, *args: Any, **kwargs: Any) -> None:
            original(parser, *args, **kwargs)
            add_to_translate(parser)

        return translate_opts

    replace(module, "model_opts", with_model_options)
    replace(module, "translate_opts", with_translate_options)
