"""Our options on OpenNMT-py's parsers; names, parameters and their checks come from the records."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

from onmt_evsoftmax.normalizers.registry import (
    Parameter,
    get_loss,
    get_record,
    normalizer_names,
    own_records,
    records,
)
from onmt_evsoftmax.opennmt.patching import replace
from onmt_evsoftmax.opennmt.settings import (
    BACKENDS,
    EXTENDED,
    KIND_OPTIONS,
    NORMALIZER_OPTIONS,
    STOCK,
    WRITTEN,
    option_of,
    own_parameters,
)
from onmt_evsoftmax.report.console import UserError, unknown_name

# Option → (what it is, the default in training). In translation the default is the checkpoint's.
_HELP = {
    "attention_normalizer": (
        "What turns attention scores into probabilities, in every attention.",
        STOCK,
    ),
    **{
        option: (f"The same for {what} only.", "attention_normalizer")
        for option, what in zip(
            KIND_OPTIONS.values(),
            (
                "the encoder's self-attention",
                "the decoder's self-attention",
                "the decoder's attention to the source",
            ),
            strict=True,
        )
    },
    "attention_backend": (
        "How sparse attention is computed: `fused` does without the attention matrix, `explicit` "
        "makes it; `auto` is fused where nothing reads the matrix.",
        "auto",
    ),
    "global_attention_function": ("What normalizes the attention of RNN decoders.", STOCK),
    "generator_function": (
        "What turns the output layer's scores into probabilities, with the loss that trains it.",
        STOCK,
    ),
}

#: In training, and in translation, where a model may be given another normalizer.
TRAINING, TRANSLATION = frozenset({"attention"}), frozenset({"attention", "test-time"})


class _Written(argparse._StoreAction):
    """Stores the value and remembers that the user wrote it: a checkpoint may say otherwise.

    Its help text is made when somebody asks for it, since that reads other packages' entry points.
    """

    translating: bool = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, values, option_string)
        setattr(namespace, WRITTEN, [*getattr(namespace, WRITTEN, []), self.dest])

    @property
    def help(self) -> str:
        text, default = _help(self.dest, self.translating)
        if self.translating:
            default = "what the checkpoint has"
        text = text.replace("%", "%%")
        # The last part shows nothing: it keeps the formatter from adding the stored default, None.
        return f"{text} (default: {default})%(default).0s"

    @help.setter
    def help(self, _: object) -> None:
        pass


def _help(option: str, translating: bool) -> tuple[str, str]:
    """What an option is, and its default in training."""
    if option in _HELP:
        text, default = _HELP[option]
        if option in ("attention_normalizer", *EXTENDED):
            text += f" One of: {', '.join(_names(option, translating))}."
        return text, default
    owners = [(record.name, p) for record in records() for p in _of(record.parameters, option)]
    names = " and ".join(name for name, _ in owners)
    (_, parameter) = owners[0]
    return f"{parameter.name} of {names}: {parameter.help}.", str(parameter.default)


def _names(option: str, translating: bool) -> list[str]:
    if option == "generator_function":
        return normalizer_names("generator")
    uses = TRANSLATION if translating else TRAINING
    return [record.name for record in records() if uses & record.uses]


def _of(parameters: Iterable[Parameter], option: str) -> list[Parameter]:
    return [parameter for parameter in parameters if option_of(parameter.name) == option]


def _normalizer_type(option: str, translating: bool) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            record = get_record(text)
            if option == "generator_function":
                get_loss(record)  # or it says that there is none
        except ValueError as error:
            raise UserError(f"{option}: {error}") from error
        uses = frozenset({"generator"}) if option == "generator_function" else TRAINING
        if translating and option != "generator_function":
            uses = TRANSLATION
        if not record.uses & uses:
            raise UserError(
                f"{option}: {text} is for {' and '.join(sorted(record.uses))} only; "
                f"choose one of: {', '.join(_names(option, translating))}"
            )
        return text

    return check


def _parameter_type(option: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        problems = []
        for parameter in _parameters(option):  # of several, the first that takes the text
            try:
                return parameter.parse(text)
            except ValueError as error:
                problems.append(str(error))
        raise UserError(f"{option}: {problems[0]}")

    return parse


def _parameters(option: str) -> list[Parameter]:
    """The parameters that an option sets; others' are looked at if none of ours has that name."""
    own = [p for record in own_records() for p in _of(record.parameters, option)]
    return own or [p for record in records() for p in _of(record.parameters, option)]


def training_only(option: str) -> bool:
    """Whether an option sets a parameter that acts in training only."""
    return any(parameter.training_only for parameter in _parameters(option))


def _backend(text: str) -> str:
    if text not in BACKENDS:
        raise UserError(f"attention_backend: {unknown_name('backend', text, BACKENDS)}")
    return text


def _type_of(option: str, translating: bool) -> Callable[[str], Any]:
    if option == "attention_backend":
        return _backend
    if option in (*NORMALIZER_OPTIONS, *EXTENDED):
        return _normalizer_type(option, translating)
    return _parameter_type(option)


def _metavar(option: str) -> str:
    if option in (*NORMALIZER_OPTIONS, *EXTENDED):
        return "NAME"
    return "HOW" if option == "attention_backend" else option.removeprefix("attention_").upper()


def _add(group: Any, option: str, translating: bool) -> None:
    action = group.add(
        f"--{option}",
        f"-{option}",
        type=_type_of(option, translating),
        default=None,
        action=_Written,
        metavar=_metavar(option),
    )
    action.translating = translating


def _all() -> list[str]:
    parameters = [option_of(parameter) for parameter in own_parameters()]
    return [*NORMALIZER_OPTIONS, *parameters, "attention_backend"]


def add_to_model(parser: Any) -> None:
    """Add our options to a parser that has OpenNMT-py's model options, and extend its two."""
    group = parser.add_argument_group("Model- Sparse attention (onmt_evsoftmax)")
    for option in _all():
        _add(group, option, translating=False)
    for action in parser._actions:
        if action.dest in EXTENDED:
            action.__class__ = _Written
            action.type = _type_of(action.dest, translating=False)
            action.choices = None
            action.metavar = "NAME"


def add_to_translate(parser: Any) -> None:
    """Let translation override a checkpoint: the same options, none of them set."""
    group = parser.add_argument_group("Sparse attention (onmt_evsoftmax): overrides the checkpoint")
    for option in (*_all(), *EXTENDED):
        _add(group, option, translating=True)
    group.add(
        "--alignment_layer",
        "-alignment_layer",
        type=int,
        default=None,
        metavar="N",
        help="Decoder layer that -report_align reads, counted from 0, or from the end if negative "
        "(default: what the checkpoint has)%(default).0s",
    )


def add_parameters_of_others(parser: Any, keys: Iterable[str]) -> bool:
    """Add those of ``keys`` that are parameters of another package's normalizers; whether any is.

    They cannot be added at once: finding them takes time, and nearly nobody has any.
    """
    ours = [action for action in parser._actions if action.dest == "attention_normalizer"]
    wanted = [key for key in dict.fromkeys(keys) if re.match(option_of(""), key)]
    found = [key for key in wanted if ours and _parameters(key)]
    for key in found:
        _add(parser, key, ours[0].translating)
    return bool(found)


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
