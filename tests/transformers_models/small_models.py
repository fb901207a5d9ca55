"""Small random models of the families that the tests run, each with a padded batch of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf

PAD, START, END, WORDS = 0, 1, 2, 40


@dataclass(frozen=True)
class Family:
    """How to build a model and what to feed it; ``kinds`` are its kinds of attention."""

    build: Callable[..., Any]
    kinds: tuple[str, ...]
    generates: bool = True
    config: dict[str, Any] = field(default_factory=dict)


TOKENS = {
    "vocab_size": WORDS,
    "pad_token_id": PAD,
    "bos_token_id": START,
    "eos_token_id": END,
    "decoder_start_token_id": START,
}
BART = {
    **TOKENS,
    "forced_eos_token_id": None,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
}
ALL = ("encoder", "decoder", "context")
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    **TOKENS,
}
FAMILIES = {
    "marian": Family(
        lambda **c: hf.MarianMTModel(hf.MarianConfig(**c)),
        ALL,
        config={**BART, "decoder_vocab_size": WORDS},
    ),
    "bart": Family(
        lambda **c: hf.BartForConditionalGeneration(hf.BartConfig(**c)), ALL, config=BART
    ),
    "m2m100": Family(
        lambda **c: hf.M2M100ForConditionalGeneration(hf.M2M100Config(**c)), ALL, config=BART
    ),
    "t5": Family(
        lambda **c: hf.T5ForConditionalGeneration(hf.T5Config(**c)),
        ALL,
        config={**TOKENS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2},
    ),
    "bert": Family(
        lambda **c: hf.BertForMaskedLM(hf.BertConfig(**c)), ("encoder",), False, config=SMALL
    ),
    "llama": Family(
        lambda **c: hf.LlamaForCausalLM(hf.LlamaConfig(**c)),
        ("decoder",),
        config={**SMALL, "num_key_value_heads": 2},
    ),
    "whisper": Family(
        lambda **c: hf.WhisperForConditionalGeneration(hf.WhisperConfig(**c)),
        ALL,
        config={
            **BART,
            "num_mel_bins": 4,
            "max_source_positions": 7,
            "max_target_positions": 64,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
}
#: Families that the running transformers can give another normalizer.
ABLE = [n for n in FAMILIES if n != "t5" or hf.T5PreTrainedModel._can_set_attn_implementation()]


def build(name: str, implementation: str = "evsoftmax", dtype: Any = None, **config: Any) -> Any:
    """The family's model with fixed weights, in evaluation mode.

    Weights are larger than at the start of a training, so that attention is not flat.
    """
    torch.manual_seed(7)
    family = FAMILIES[name]
    model = family.build(**{**family.config, **config}, attn_implementation=implementation)
    for module in model.modules():
        fixed = "Sinusoidal" in type(module).__name__  # such positions are not saved
        for parameter in () if fixed else module.parameters(recurse=False):
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.4)
    if dtype is not None:
        model = model.to(dtype)
    return model.eval()


def batch(name: str, side: str = "right") -> dict[str, torch.Tensor]:
    """Two sentences of different lengths, padded on one side, and what a decoder reads."""
    generator = torch.Generator().manual_seed(3)

    def sentences(lengths: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(3, WORDS, (2, max(lengths)), generator=generator)
        mask = torch.ones_like(ids)
        shorter = max(lengths) - min(lengths)
        hidden = slice(None, shorter) if side == "left" else slice(max(lengths) - shorter, None)
        ids[1, hidden], mask[1, hidden] = PAD, 0
        return ids, mask

    ids, mask = sentences((7, 4))
    if "context" not in FAMILIES[name].kinds:
        return {"input_ids": ids, "attention_mask": mask}
    target = torch.randint(3, WORDS, (2, 5), generator=generator)
    if name == "whisper":
        sound = torch.randn(2, 4, 14, generator=generator)
        return {"input_features": sound, "decoder_input_ids": target}
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": target}
