"""Our options on OpenNMT-py's parsers, and an error for keys that no OpenNMT-py command knows."""

from __future__ import annotations

import argparse
import functools
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

from onmt_evsoftmax.console import UserError, unknown_name
from onmt_evsoftmax.normalizers import get_loss, normalizer_names
from onmt_evsoftmax.opennmt.patching import replace
from onmt_evsoftmax.opennmt.settings import EXTENDED, KIND_OPTIONS, WRITTEN

_HELP = {
    "attention_normalizer": "What turns attention scores into probabilities, in every attention.",
    "encoder_attention_normalizer": "The same for the encoder's self-attention only.",
    "decoder_attention_normalizer": "The same for the decoder's self-attention only.",
    "context_attention_normalizer": "The same for the decoder's attention to the source only.",
    "attention_alpha": "entmax's alpha: a number above 1, or `learn` for one per head.",
    "attention_eps": "evsoftmax's eps in training, as in the paper; decoding is always exact.",
    "global_attention_function": "What normalizes the attention of RNN decoders.",
    "generator_function": "What turns the output layer's scores into probabilities; "
    "also chooses its loss.",
}


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


def trainable_names() -> list[str]:
    """Normalizers that have a loss, so that a generator can be trained with them."""

    def has_loss(name: str) -> bool:
        try:
            return bool(get_loss(name))
        except ValueError:
            return False

    return [name for name in normalizer_names() if has_loss(name)]


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


def _type_of(option: str) -> Callable[[str], Any]:
    if option == "attention_alpha":
        return _alpha
    if option == "attention_eps":
        return _eps
    return _one_of(option, trainable_names if option == "generator_function" else normalizer_names)


def _add(group: Any, option: str) -> None:
    choices = ""
    if option == "attention_normalizer":
        choices = f" One of: {', '.join(normalizer_names())}."
    group.add(
        f"--{option}",
        f"-{option}",
        type=_type_of(option),
        default=None,
        action=_Written,
        help=_HELP[option] + choices,
    )


def add_to_model(parser: Any) -> None:
    """Add our options to a parser that has OpenNMT-py's model options, and extend its two."""
    group = parser.add_argument_group("Model- Sparse attention (onmt_evsoftmax)")
    for option in ("attention_normalizer", *KIND_OPTIONS.values(), "attention_alpha"):
        _add(group, option)
    _add(group, "attention_eps")
    for action in parser._actions:
        if action.dest in EXTENDED:
            names = trainable_names() if action.dest == "generator_function" else normalizer_names()
            action.__class__ = _Written
            action.type = _type_of(action.dest)
            action.choices = None
            action.help = f"{_HELP[action.dest]} One of: {', '.join(names)}."


def add_to_translate(parser: Any) -> None:
    """Let translation overrule a checkpoint: the same options, none of them set."""
    group = parser.add_argument_group("Sparse attention (onmt_evsoftmax): overrules the checkpoint")
    for option in _HELP:
        _add(group, option)
    group.add(
        "--alignment_layer",
        "-alignment_layer",
        type=int,
        default=None,
        help="Decoder layer that -report_align reads.",
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


def patch_parse(module: Any) -> None:
    """``onmt.utils.parse``: an option that no command knows is an error, not silence."""
    parser_class = module.ArgumentParser
    original = parser_class.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> tuple[Namespace, list[str]]:
        options, left = original(self, *args, **kwargs)
        _refuse_unknown(self, parser_class, left)
        return options, left

    parser_class.parse_known_args = parse_known_args


def _refuse_unknown(parser: Any, parser_class: Any, left: list[str]) -> None:
    keys = [token.lstrip("-").split("=")[0] for token in left if _is_option(token)]
    if not keys:
        return
    known = known_keys(parser_class) | {
        text.lstrip("-") for action in parser._actions for text in action.option_strings
    }
    sources = {
        key: source.split("|")[-1]
        for source, settings in parser._source_to_settings.items()
        if source.startswith("config_file")
        for key in settings
    }
    for key in keys:
        if key not in known:
            raise UserError(_unknown_key(key, sources.get(key), known))


def _is_option(token: str) -> bool:
    if not token.startswith("-") or len(token.lstrip("-")) == 0:
        return False
    try:
        float(token)
    except ValueError:
        return True
    return False


def _unknown_key(key: str, source: str | None, known: set[str]) -> str:
    import difflib

    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    where = f"{source}: the key {key!r}" if source else f"the option -{key}"
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{where} is unknown to every OpenNMT-py command{hint}"


@functools.cache
def known_keys(parser_class: Any) -> set[str]:
    """Every key that some command takes, so that commands can share one YAML file."""
    import onmt.opts as opts

    build_vocab = getattr(opts, "data_prepare_opts", None) or opts.dynamic_prepare_opts
    translate_takes = opts.translate_opts.__wrapped__.__code__.co_varnames
    parsers = [parser_class() for _ in range(3)]
    opts.train_opts(parsers[0])
    build_vocab(parsers[1], build_vocab_only=True)
    opts.translate_opts(parsers[2], **({"dynamic": True} if "dynamic" in translate_takes else {}))
    return {
        text.lstrip("-")
        for parser in parsers
        for action in parser._actions
        for text in action.option_strings
    }
