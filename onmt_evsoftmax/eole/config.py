"""The keys that choose a normalizer, added to eole's options, which refuse what they do not know.

They stand under ``model:``, or under its ``encoder:`` and ``decoder:``; eole hands a model's key to
both. Unset keys are not saved, so a softmax model stays one that every eole can load. A sparse
model's ``config.json`` has the keys, and :data:`NEEDS`, which an eole without this package refuses
and shows.
"""

from __future__ import annotations

from typing import Annotated, Any

from onmt_evsoftmax.normalizers.registry import get_record

#: The normalizer of all attention, and of one kind only.
KEYS = (
    "attention_normalizer",
    "encoder_attention_normalizer",
    "decoder_attention_normalizer",
    "context_attention_normalizer",
)
#: Saved with a sparse model: the package without which it must not be used.
NEEDS = "needs_package"
STOCK = "softmax"


def _known(name: str | None) -> str | None:
    """The name of a normalizer for attention; pydantic shows what the ValueError says."""
    if name is not None and not {"attention", "test-time"} & get_record(name).uses:
        raise ValueError(f"{name} is not made for attention")
    return name


def patch_config(module: Any) -> None:
    """``eole.config.models``: transformers have the keys."""
    from pydantic import AfterValidator, Field, TypeAdapter
    from pydantic.fields import FieldInfo

    classes: list[Any] = [
        found
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, module.Config)
    ]
    text = Field(
        default=None, description="Normalizer of attention, as evsoftmax (onmt_evsoftmax)."
    )
    optional: Any = Annotated[str | None, AfterValidator(_known)]
    plain: Any = str | None
    for found in classes:
        if issubclass(found, module.TransformerConfig):
            for key in KEYS:
                found.__pydantic_fields__[key] = FieldInfo.from_annotated_attribute(optional, text)
            found.__pydantic_fields__[NEEDS] = FieldInfo.from_annotated_attribute(plain, None)
    # Parts first, then the models that hold them.
    for found in sorted(classes, key=lambda each: issubclass(each, module.BaseModelConfig)):
        found.model_rebuild(force=True)
    module.build_model_config = TypeAdapter(module.ModelConfig).validate_python


def normalizer_of(config: Any, kind: str) -> str:
    """The normalizer that an encoder's or decoder's configuration names for a kind of attention."""
    for key in (f"{kind}_attention_normalizer", "attention_normalizer"):
        name = getattr(config, key, None)
        if name is not None:
            return str(name)
    return STOCK
