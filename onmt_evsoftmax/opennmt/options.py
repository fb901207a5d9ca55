"""Our options on OpenNMT-py's parsers; names, parameters and their checks come from the records."""

from __future__ import annotations

import argparse
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
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.opennmt.settings import (
    BACKENDS,
    EXTENDED,
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
        if self.dest in _HELP:
            text, default = _HELP[self.dest]
            if self.dest in ("attention_normalizer", *EXTENDED):
                text += f" One of: {', '.join(_names(self.dest, self.translating))}."
        else:
            owners = {r.name: p for r in records() for p in r.parameters if _sets(self.dest, p)}
            parameter, *_ = owners.values()
            text = f"{parameter.name} of {' and '.join(owners)}: {parameter.help}."
            default = str(parameter.default)
        default = "what the checkpoint has" if self.translating else default
        # The last part shows nothing: it keeps the formatter from adding the stored default, None.
        return text.replace("%", "%%") + f" (default: {default})%(default).0s"

    @help.setter
    def help(self, _: object) -> None:
        pass


def _names(option: str, translating: bool) -> list[str]:
    """The normalizers that an option may name; a translation may also try what is not trained."""
    if option == "generator_function":
        return normalizer_names("generator")
    uses = {"attention", "test-time"} if translating else {"attention"}
    return [record.name for record in records() if uses & record.uses]


def _normalizer_type(option: str, translating: bool) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            record = get_record(text)
            if option == "generator_function":
                get_loss(record)  # or it says that there is none
        except ValueError as error:
            raise UserError(f"{option}: {error}") from error
        if "attention" not in record.uses and text not in _names(option, translating):
            raise UserError(
                f"{option}: {text} is for {' and '.join(sorted(record.uses))} only; "
                f"choose one of: {', '.join(_names(option, translating))}"
            )
        return text

    return check


def _sets(option: str, parameter: Parameter) -> bool:
    return option_of(parameter.name) == option


def parameters_of(option: str) -> list[Parameter]:
    """The parameters that an option sets; others' are looked at if none of ours has that name."""
    own = [p for record in own_records() for p in record.parameters if _sets(option, p)]
    return own or [p for record in records() for p in record.parameters if _sets(option, p)]


def _parameter_type(option: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        problems = []
        for parameter in parameters_of(option):  # of several, the first that takes the text
            try:
                return parameter.parse(text)
            except ValueError as error:
                problems.append(str(error))
        raise UserError(f"{option}: {problems[0]}")

    return parse


def training_only(option: str) -> bool:
    """Whether an option sets a parameter that acts in training only."""
    return any(parameter.training_only for parameter in parameters_of(option))


def _backend(text: str) -> str:
    if text not in BACKENDS:
        raise UserError(f"attention_backend: {unknown_name('backend', text, BACKENDS)}")
    return text


def _add(group: Any, option: str, translating: bool) -> None:
    if option in (*NORMALIZER_OPTIONS, *EXTENDED):
        metavar, kind = "NAME", _normalizer_type(option, translating)
    elif option == "attention_backend":
        metavar, kind = "HOW", _backend
    else:
        metavar, kind = option.removeprefix(option_of("")).upper(), _parameter_type(option)
    names = (f"--{option}", f"-{option}")
    action = group.add(*names, type=kind, default=None, action=_Written, metavar=metavar)
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
            action.type = _normalizer_type(action.dest, translating=False)
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
    wanted = [key for key in dict.fromkeys(keys) if key.startswith(option_of(""))]
    found = [key for key in wanted if ours and parameters_of(key)]
    for key in found:
        _add(parser, key, ours[0].translating)
    return bool(found)


def patch_opts(module: Any) -> None:
    """``onmt.opts``: our options appear wherever the model's or translation's do."""

    @around(module)
    def model_opts(original: Any, parser: Any) -> None:
        original(parser)
        add_to_model(parser)

    @around(module)
    def translate_opts(original: Any, parser: Any, *args: Any, **kwargs: Any) -> None:
        original(parser, *args, **kwargs)
        add_to_translate(parser)
