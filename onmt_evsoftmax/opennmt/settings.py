"""What the user asked for, read from OpenNMT-py's options: which normalizer goes where."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from onmt_evsoftmax.normalizers.registry import Normalizer, get_normalizer, get_record, own_records
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace.record import KINDS

#: What OpenNMT-py computes by itself.
STOCK = "softmax"

KIND_OPTIONS = {kind: f"{kind}_attention_normalizer" for kind in KINDS}

#: Options that name the normalizer of attention.
NORMALIZER_OPTIONS = ("attention_normalizer", *KIND_OPTIONS.values())

#: Options OpenNMT-py has and this package extends; their default is softmax.
EXTENDED = ("generator_function", "global_attention_function")

#: What attention_backend may say: how to compute attention, not what.
BACKENDS = ("auto", "fused", "explicit")

#: Value of a parameter that is to be trained, one per head.
LEARN = "learn"

#: Where OpenNMT-py's namespace keeps the names of the options that the user wrote.
WRITTEN = "_evsoftmax_written"

#: Where a checkpoint's options say which distribution brought a normalizer: name → distribution.
PACKAGES = "normalizer_packages"


def option_of(parameter: str) -> str:
    """The option that sets a parameter of the attention's normalizers."""
    return f"attention_{parameter}"


def own_parameters() -> list[str]:
    """Parameters of our own normalizers, each once."""
    return list(dict.fromkeys(p.name for record in own_records() for p in record.parameters))


def options_of(*namespaces: Namespace) -> list[str]:
    """Names of all options of ours: what this package adds or extends, for every command.

    Parameters of another package's normalizer are among them if a namespace uses that normalizer.
    """
    found = [*own_parameters()]
    for namespace in namespaces:
        found += Settings.of(namespace).parameters
    parameters = [option_of(parameter) for parameter in dict.fromkeys(found)]
    return [*NORMALIZER_OPTIONS, *parameters, "attention_backend", *EXTENDED]


@dataclass(frozen=True)
class Settings:
    """The normalizers of one model: per attention kind, with their parameters, and the others."""

    attention: Mapping[str, str]
    #: Kinds the user named one by one: each of them must exist in the model.
    named: frozenset[str]
    #: Parameters as far as they were set; each goes to every normalizer that takes it.
    parameters: Mapping[str, Any]
    generator: str
    global_attention: str
    #: One of BACKENDS.
    backend: str

    @classmethod
    def of(cls, options: Namespace) -> Settings:
        """Read the settings from OpenNMT-py's options (a model's, or a checkpoint's)."""

        def get(name: str, default: Any = None) -> Any:
            value = getattr(options, name, None)
            return default if value is None else value

        general = get("attention_normalizer", STOCK)
        attention = {kind: get(option, general) for kind, option in KIND_OPTIONS.items()}
        global_attention = get("global_attention_function", STOCK)
        parameters = own_parameters()
        for name in {*attention.values(), global_attention}:
            parameters += _parameters_of(name)
        return cls(
            attention=attention,
            named=frozenset(kind for kind, option in KIND_OPTIONS.items() if get(option)),
            parameters={
                parameter: get(option_of(parameter))
                for parameter in dict.fromkeys(parameters)
                if get(option_of(parameter)) is not None
            },
            generator=get("generator_function", STOCK),
            global_attention=global_attention,
            backend=get("attention_backend", "auto"),
        )

    @property
    def names(self) -> list[str]:
        """Every normalizer that is used, each once."""
        return sorted({*self.attention.values(), self.global_attention, self.generator})

    @property
    def sparse(self) -> bool:
        """Whether OpenNMT-py without this package would compute something else."""
        return self.names != [STOCK]

    @property
    def learned(self) -> list[str]:
        """Parameters that are trained, one per head."""
        return [p for p, value in self.parameters.items() if value == LEARN and self._users(p)]

    def in_evaluation(self) -> Settings:
        """What of the settings decides on a trained model's output: not how it was trained."""
        acting = {p: v for p, v in self.parameters.items() if not self._only_trains(p)}
        return replace(self, named=frozenset(), parameters=acting, backend="auto")

    def chosen(self, kind: str) -> str:
        """The name of the normalizer for attention of that kind, or for an RNN's."""
        return self.attention.get(kind, self.global_attention)

    def normalizer(self, kind: str, heads: int | None = None) -> nn.Module:
        """A new normalizer for attention of that kind, parameters included."""
        record = record_of(self.chosen(kind))
        options = {p: value for p, value in self.parameters.items() if record.parameter(p)}
        if LEARN in options.values():
            if heads is None:
                (parameter, *_) = [p for p, value in options.items() if value == LEARN]
                raise UserError(
                    f"{option_of(parameter)}: learn trains one value per head of a transformer; "
                    "for global_attention_function write a number"
                )
            options["heads"] = heads
        try:
            return get_normalizer(record.name, **options)
        except ValueError as error:
            raise UserError(str(error)) from error

    def described(self, name: str) -> str:
        """A normalizer's name with the parameters it was given, as ``entmax(alpha=learn)``."""
        given = [f"{p}={v}" for p, v in self.parameters.items() if record_of(name).parameter(p)]
        return f"{name}({', '.join(given)})" if given else name

    def check(self) -> None:
        """Refuse a parameter that nothing would use."""
        for parameter, value in self.parameters.items():
            if value and not self._users(parameter):
                owners = [record.name for record in own_records() if record.parameter(parameter)]
                raise UserError(
                    f"{option_of(parameter)} has no effect with these normalizers; it is for "
                    f"attention_normalizer: {' or '.join(owners)}"
                )

    def _users(self, parameter: str) -> list[Normalizer]:
        names = {*self.attention.values(), self.global_attention}
        return [record_of(name) for name in names if record_of(name).parameter(parameter)]

    def _only_trains(self, parameter: str) -> bool:
        found = [record.parameter(parameter) for record in self._users(parameter)]
        return all(p is not None and p.training_only for p in found)


def record_of(name: str) -> Normalizer:
    """The record of a normalizer; a mistake is the user's."""
    try:
        return get_record(name)
    except ValueError as error:
        raise UserError(str(error)) from error


def _parameters_of(name: str) -> list[str]:
    """A normalizer's parameters; one that is not installed here has none that are known."""
    try:
        return [parameter.name for parameter in get_record(name).parameters]
    except ValueError:
        return []


def packages_of(names: Iterable[str]) -> dict[str, str]:
    """Of these normalizers, those that another distribution brought, with its name."""
    found = {name: record_of(name).package for name in names}
    return {name: package for name, package in found.items() if package is not None}


def written(options: Namespace) -> dict[str, Any]:
    """The options of ours that the user wrote, in YAML or on the command line, with their values.

    A namespace that no OpenNMT-py parser made (a library user's) does not say which: then
    everything of ours that differs from the default counts as written.
    """
    ours = options_of(options)
    names = getattr(options, WRITTEN, None)
    if names is None:
        names = [name for name in ours if getattr(options, name, None) not in (None, default(name))]
    return {name: getattr(options, name) for name in ours if name in names}


def default(option: str) -> str | None:
    """The value of an option of ours that nobody has written."""
    return STOCK if option in EXTENDED else None


def override(model_options: Namespace, overrides: Mapping[str, Any]) -> list[str]:
    """Let what the user wrote win over what ``model_options`` had; return what changed, in words.

    ``attention_normalizer`` speaks for every kind that is not itself written.
    """
    before = Settings.of(model_options)
    if "attention_normalizer" in overrides:
        for option in KIND_OPTIONS.values():
            setattr(model_options, option, None)
    for name, value in overrides.items():
        setattr(model_options, name, value)
    after = Settings.of(model_options)
    for parameter in before.parameters:
        # A parameter of the old normalizer that the new one does not have is not an error.
        if option_of(parameter) not in overrides and not after._users(parameter):
            setattr(model_options, option_of(parameter), None)
    return differences(before, Settings.of(model_options))


def differences(before: Settings, after: Settings) -> list[str]:
    """What changed from one to the other, in words."""
    parameters = dict.fromkeys([*before.parameters, *after.parameters])

    def flat(settings: Settings) -> dict[str, Any]:
        return {
            **{f"{kind} attention": settings.attention[kind] for kind in KINDS},
            **{f"attention {p}": settings.parameters.get(p, "unset") for p in parameters},
            "generator": settings.generator,
            "global attention": settings.global_attention,
            "attention backend": settings.backend,
        }

    old, new = flat(before), flat(after)
    return [f"{what} {old[what]} → {new[what]}" for what in old if old[what] != new[what]]
