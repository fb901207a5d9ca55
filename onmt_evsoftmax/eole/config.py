"""The keys that choose a normalizer, added to eole's options, which refuse what they do not know.

In training they stand under ``model:``, or under its ``encoder:`` and ``decoder:``; eole hands a
model's key to both. In prediction the model is what its folder says, and keys beside
``model_path:`` win over it. Unset keys are not saved, so a softmax model stays one that every eole
can load. A sparse model's ``config.json`` has the keys, and :data:`NEEDS`, which an eole without
this package refuses and shows.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from typing import Annotated, Any, Literal

from onmt_evsoftmax.eole.search import STOP
from onmt_evsoftmax.normalizers.registry import get_record
from onmt_evsoftmax.opennmt.options import parameters_of
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.opennmt.settings import (
    KIND_OPTIONS,
    LEARN,
    NORMALIZER_OPTIONS,
    Settings,
    option_of,
    override,
    own_parameters,
)

#: Saved with a sparse model: the package without which it must not be used.
NEEDS = "needs_package"

#: OpenNMT-py's key for learned distances in self-attention, beside the positions of the embeddings.
DISTANCES = "max_relative_positions"

#: Every key that decides on the normalizers of attention.
KEYS = (*NORMALIZER_OPTIONS, *map(option_of, own_parameters()))


def _known(name: str | None, uses: set[str]) -> str | None:
    """The name of a normalizer for attention; pydantic shows what the ValueError says."""
    if name is not None and not uses & get_record(name).uses:
        raise ValueError(f"{name} is for {' and '.join(sorted(get_record(name).uses))} only")
    return name


def _parsed(value: float | str | None, option: str, trains: bool) -> Any:
    """The value of a parameter; what its records say is wrong with it is a ValueError."""
    if value == LEARN and not trains:
        raise ValueError("learn is for training; here, write a number")
    return None if value is None else parameters_of(option)[0].parse(str(value))


def _add_keys(classes: list[Any], kinds: dict[str, Any]) -> None:
    """Give the classes of options these keys: name → type."""
    from pydantic import Field
    from pydantic.fields import FieldInfo

    for key, kind in kinds.items():
        default = Field(default=None, description="See the documentation of onmt_evsoftmax.")
        for found in classes:
            found.__pydantic_fields__[key] = FieldInfo.from_annotated_attribute(kind, default)


def _kinds(uses: set[str], trains: bool) -> dict[str, Any]:
    """The types of our keys for attention, which check what they are given."""
    from pydantic import AfterValidator

    kinds: dict[str, Any] = {}
    for key in KEYS:
        if key in NORMALIZER_OPTIONS:
            check = functools.partial(_known, uses=uses)
            kinds[key] = Annotated[str | None, AfterValidator(check)]
        else:
            parse = functools.partial(_parsed, option=key, trains=trains)
            kinds[key] = Annotated[float | str | None, AfterValidator(parse)]
    return kinds


def patch_models(module: Any) -> None:
    """``eole.config.models``: transformers have the keys."""
    from pydantic import PositiveInt, TypeAdapter

    classes: list[Any] = [
        found
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, module.Config)
    ]
    transformers = [found for found in classes if issubclass(found, module.TransformerConfig)]
    own = {NEEDS: str | None, DISTANCES: PositiveInt | None}
    _add_keys(transformers, _kinds({"attention"}, trains=True) | own)

    @around(module.BaseModelConfig)
    def update_model_opts(original: Any, self: Any) -> None:
        _check(self)
        original(self)

    # Parts first, then the models that hold them.
    for found in sorted(classes, key=lambda each: issubclass(each, module.BaseModelConfig)):
        found.model_rebuild(force=True)
    module.build_model_config = TypeAdapter(module.ModelConfig).validate_python


def _check(model: Any) -> None:
    """Refuse keys that nothing in the model would use, and positions that exclude each other."""
    settings = Settings.of(model)
    settings.check()
    needed = {"encoder": ("encoder",), "decoder": ("decoder",), "context": ("encoder", "decoder")}
    for kind in settings.named:
        for part in needed[kind]:
            if getattr(model, part) is None:
                raise ValueError(f"{KIND_OPTIONS[kind]}: the model has no {part}")
    for part in (model, model.encoder, model.decoder):
        other = f"position_encoding_type {getattr(model.embeddings, 'position_encoding_type', '')}"
        if getattr(part, "relative_positions_buckets", 0):
            other = "relative_positions_buckets"
        elif not other.endswith(("Relative", "Rotary", "Alibi")):
            continue
        if getattr(part, DISTANCES, None):
            raise ValueError(f"{DISTANCES}: {other} has its own distances")


def patch_run(module: Any) -> None:
    """``eole.config.run``: ``eole predict`` has the keys, too, and one for its search."""
    config = module.PredictConfig
    _add_keys([config], _kinds({"attention", "test-time"}, trains=False))
    _add_keys([module.InferenceConfig, config], {STOP: Literal["n_best", "beam_size"] | None})
    for found in (module.InferenceConfig, config, module.TrainConfig):
        found.model_rebuild(force=True)

    @around(config)
    def __init__(original: Any, self: Any, /, **data: Any) -> None:
        model = data.get("model")
        inside = [key for key in KEYS if isinstance(model, dict) and key in model]
        if inside:  # eole would ignore it: the model is what its folder says
            raise ValueError(f"eole predict: write {inside[0]} beside model_path, not under model")
        beside = [key for key in KEYS if data.get(key) is not None]
        if beside and data.get("engine") == "ct2":
            raise ValueError(f"{beside[0]}: CTranslate2 (engine: ct2) knows only softmax")
        original(self, **data)


def settings_of(config: Any, running: Any = None) -> tuple[Settings, list[str]]:
    """What an encoder's or decoder's options choose, and what a prediction's own keys change."""
    chosen = Namespace(**{key: getattr(config, key, None) for key in KEYS})
    given = {key: getattr(running, key, None) for key in KEYS}
    changes = override(chosen, {key: value for key, value in given.items() if value is not None})
    return Settings.of(chosen), changes
