"""What the user asked for, read from OpenNMT-py's options: which normalizer goes where."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from onmt_evsoftmax.normalizers.registry import get_normalizer, get_record
from onmt_evsoftmax.report.console import UserError

# The three places where a transformer attends. A language model has only the second.
KINDS = ("encoder", "decoder", "context")

KIND_OPTIONS = {kind: f"{kind}_attention_normalizer" for kind in KINDS}

# Options that are parameters of the normalizers, with the name of the parameter.
PARAMETERS = {"attention_alpha": "alpha", "attention_eps": "eps"}

# What attention_backend may say: how to compute attention, not what.
BACKENDS = ("auto", "fused", "explicit")

# Options this package adds to OpenNMT-py; None means "not written".
ADDED = ("attention_normalizer", *KIND_OPTIONS.values(), *PARAMETERS, "attention_backend")

# Options OpenNMT-py has and this package extends; their default is softmax.
EXTENDED = ("generator_function", "global_attention_function")

OPTIONS = (*ADDED, *EXTENDED)

# Where the names of the options that the user wrote are kept on OpenNMT-py's namespace.
WRITTEN = "_evsoftmax_written"


@dataclass(frozen=True)
class Settings:
    """The normalizers of one model: per attention kind, with their parameters, and the others."""

    attention: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(KINDS, "softmax"))
    # Kinds the user named one by one: each of them must exist in the model.
    named: frozenset[str] = frozenset()
    # "alpha" and "eps" as far as they were set; they go to every normalizer that takes them.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    generator: str = "softmax"
    global_attention: str = "softmax"
    # One of BACKENDS.
    backend: str = "auto"

    @classmethod
    def of(cls, options: Namespace) -> Settings:
        """Read the settings from OpenNMT-py's options (a model's, or a checkpoint's)."""

        def get(name: str, default: Any = None) -> Any:
            value = getattr(options, name, None)
            return default if value is None else value

        general = get("attention_normalizer", "softmax")
        return cls(
            attention={kind: get(option, general) for kind, option in KIND_OPTIONS.items()},
            named=frozenset(kind for kind, option in KIND_OPTIONS.items() if get(option)),
            parameters={
                parameter: get(option)
                for option, parameter in PARAMETERS.items()
                if get(option) is not None
            },
            generator=get("generator_function", "softmax"),
            global_attention=get("global_attention_function", "softmax"),
            backend=get("attention_backend", "auto"),
        )

    @property
    def sparse_attention(self) -> bool:
        """Whether any multi-headed attention is to be anything but softmax."""
        return any(name != "softmax" for name in self.attention.values())

    @property
    def sparse(self) -> bool:
        """Whether OpenNMT-py without this package would compute something else."""
        others = (self.generator, self.global_attention)
        return self.sparse_attention or any(name != "softmax" for name in others)

    @property
    def learns_alpha(self) -> bool:
        """Whether some attention has a trained alpha per head."""
        return self.parameters.get("alpha") == "learn" and bool(self._users("alpha"))

    def normalizer(self, kind: str, heads: int | None = None) -> nn.Module:
        """A new normalizer for attention of that kind (or ``"global"``), parameters included."""
        name = self.global_attention if kind == "global" else self.attention[kind]
        options = {key: self.parameters[key] for key in self.parameters if takes(name, key)}
        if options.get("alpha") == "learn":
            if heads is None:
                raise UserError(
                    "attention_alpha: learn is one alpha per head of a transformer; "
                    "for global_attention_function write a number"
                )
            options["heads"] = heads
        try:
            return get_normalizer(name, **options)
        except ValueError as error:
            raise UserError(str(error)) from error

    def check(self) -> None:
        """Refuse a parameter that nothing would use."""
        for option, parameter in PARAMETERS.items():
            if self.parameters.get(parameter) and not self._users(parameter):
                owner = "entmax" if parameter == "alpha" else "evsoftmax"
                raise UserError(
                    f"{option} has no effect with these normalizers; it is for "
                    f"attention_normalizer: {owner}"
                )

    def _users(self, parameter: str) -> list[str]:
        names = {*self.attention.values(), self.global_attention}
        return [name for name in names if takes(name, parameter)]


def takes(name: str, parameter: str) -> bool:
    """Whether the normalizer of that name has that parameter."""
    try:
        return get_record(name).parameter(parameter) is not None
    except ValueError as error:
        raise UserError(str(error)) from error


def written(options: Namespace) -> dict[str, Any]:
    """The options of ours that the user wrote, in YAML or on the command line, with their values.

    A namespace that no OpenNMT-py parser made (a library user's) has no record: then everything of
    ours that differs from the default counts as written.
    """
    names = getattr(options, WRITTEN, None)
    if names is None:
        defaults = {name: "softmax" if name in EXTENDED else None for name in OPTIONS}
        names = [
            name for name in OPTIONS if getattr(options, name, None) not in (None, defaults[name])
        ]
    return {name: getattr(options, name) for name in OPTIONS if name in names}


def overrule(model_options: Namespace, wishes: Mapping[str, Any]) -> list[str]:
    """Let what the user wrote win over what ``model_options`` had; return what changed, in words.

    ``attention_normalizer`` speaks for every kind that is not itself written.
    """
    before = Settings.of(model_options)
    if "attention_normalizer" in wishes:
        for option in KIND_OPTIONS.values():
            setattr(model_options, option, None)
    for name, value in wishes.items():
        setattr(model_options, name, value)
    for option, parameter in PARAMETERS.items():
        # A parameter of the old normalizer that the new one does not have is not an error.
        if option not in wishes and not Settings.of(model_options)._users(parameter):
            setattr(model_options, option, None)
    return _differences(before, Settings.of(model_options))


def _differences(before: Settings, after: Settings) -> list[str]:
    def flat(settings: Settings) -> dict[str, Any]:
        return {
            **{f"{kind} attention": settings.attention[kind] for kind in KINDS},
            **{f"attention {name}": settings.parameters.get(name) for name in ("alpha", "eps")},
            "generator": settings.generator,
            "global attention": settings.global_attention,
            "attention backend": settings.backend,
        }

    old, new = flat(before), flat(after)
    return [
        f"{what} {old[what] or 'unset'} → {new[what] or 'unset'}"
        for what in old
        if old[what] != new[what]
    ]
