"""Everything that differs between the supported versions of OpenNMT-py, one named probe each.

The two ends of the range, 3.0.4 and 3.5.1, are tested. A probe looks at the thing that differs, not
at the version number, so a version in between, or the next one, is served by what it does. No other
module of this folder asks which OpenNMT-py is running.
"""

from __future__ import annotations

import argparse
import inspect
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

#: Both ends of the supported range; what lies between should work.
OLDEST, NEWEST = (3, 0, 4), (3, 5, 1)

#: 3.5.1's default ``self_attn_type``: the same attention as ``scaled-dot``, by faster code.
FLASH = "scaled-dot-flash"


# --- commands and their options -------------------------------------------------------------------


def vocabulary_options(opts: Any) -> Callable[..., None]:
    """What adds ``onmt_build_vocab``'s options: 3.5.1 gave the function of 3.0.4 another name."""
    found: Callable[..., None] = (
        getattr(opts, "data_prepare_opts", None) or opts.dynamic_prepare_opts
    )
    return found


def all_translation_options(opts: Any) -> dict[str, bool]:
    """Arguments that make ``opts.translate_opts`` add every option: 3.5.1 leaves some out."""
    takes = inspect.signature(opts.translate_opts).parameters  # of the function we replaced
    return {"dynamic": True} if "dynamic" in takes else {}


def corpus_keys(parse: Any) -> set[str]:
    """What a corpus of ``data`` may say, from ``onmt.utils.parse`` and the transforms.

    Source features have a key of their own in 3.0.4; in 3.5.1 a corpus may be one file of text, and
    two transforms take their options from the corpus.
    """
    paths = {"path_src", "path_tgt", "path_align"}
    texts = {f"{side}_{what}" for side in ("src", "tgt") for what in ("prefix", "suffix")}
    validated = parse.DataOptsCheckerMixin._validate_data
    read = inspect.unwrap(validated.__func__).__code__.co_consts
    found = {key for key in ("src_feats", "path_txt") if key in read}
    parser = argparse.ArgumentParser()
    for name in ("clean", "normalize"):
        if transform := parse.AVAILABLE_TRANSFORMS.get(name):
            transform.add_options(parser)
    found |= {action.dest for action in parser._actions} - {"help"}
    return {"transforms", "weight"} | paths | texts | found


def is_data_parallel(options: Namespace) -> bool:
    """Whether each GPU reads its own share of the corpus; 3.0.4 knows nothing else."""
    return getattr(options, "parallel_mode", "data_parallel") == "data_parallel"


def trains_low_rank(options: Namespace) -> bool:
    """Whether only LoRA layers are trained and saved, which 3.0.4 does not have."""
    return bool(getattr(options, "lora_layers", None))


# --- building, loading and saving models ----------------------------------------------------------


def checkpoint_loaded_by_builder(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The checkpoint among ``build_base_model``'s arguments, which it has loaded by its end.

    That is 3.0.4; in 3.5.1 the builder gets none, and :func:`loads_strictly` is true.
    """
    given = kwargs.get("checkpoint")
    return given or next((arg for arg in args[1:] if isinstance(arg, dict)), None)


def loads_strictly(model_class: Any) -> bool:
    """Whether models have a ``load_state_dict`` of their own, which refuses unexpected weights.

    3.5.1 has; it also looks for a copy generator's weights under names they were not saved with.
    """
    return model_class.load_state_dict is not nn.Module.load_state_dict


def builder_reads_files(builder: Any) -> bool:
    """Whether ``onmt.model_builder`` itself opens checkpoints with ``torch.load``: 3.0.4 does."""
    return hasattr(builder, "torch")


def saves_safetensors(saver_class: Any) -> bool:
    """Whether weights can go into a file of their own, as in 3.5.1."""
    return hasattr(saver_class, "_st_save")


# --- attention ------------------------------------------------------------------------------------


def fast_paths(attention: Any) -> dict[str, Any]:
    """Attribute → value that keeps ``attention`` off its fast paths; empty if it has none.

    3.5.1 has three on a GPU (flash attention with and without a cache, and torch's SDPA), none of
    which reaches the normalizer.
    """
    return (
        {"self_attn_type": "scaled-dot", "flash2": False}
        if hasattr(attention, "self_attn_type")
        else {}
    )


def learns_bias(attention: Any) -> bool:
    """Whether a learned bias for classes of distances is added to the scores: 3.5.1, as T5."""
    return bool(getattr(attention, "relative_positions_buckets", 0))


def alibi_slopes(attention: Any) -> Tensor | None:
    """What every step of distance takes from the scores of each head, if anything: in 3.5.1."""
    if attention.max_relative_positions != -2:
        return None
    slopes: Tensor = attention.alibi.slopes.flatten()
    return slopes


def adds_positions(attention: Any) -> bool:
    """Whether distances add to the scores: relative positions or ALiBi; rotary ones (-1) do not."""
    return attention.max_relative_positions not in (0, -1)


def rotate(attention: Any, query: Tensor, key: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """Query and key (batch, heads, length, size) turned by their places, if 3.5.1 is asked to.

    ``first`` is the place of the first of them.
    """
    if attention.max_relative_positions != -1:
        return query, key
    from onmt.modules.multi_headed_attn import apply_rotary_emb, rotaryembeddings

    end = first + query.size(2)
    if end > attention.rope.size(0):
        attention.rope, attention.cos, attention.sin = rotaryembeddings(
            attention.rotary_dim, maxseqlen=end + 2048, base=attention.rotary_theta
        )
    rope = attention.rope[first:end].to(query.device)
    turned: tuple[Tensor, Tensor] = apply_rotary_emb(
        query, key, rope, interleave=attention.rotary_interleave
    )
    return turned


def shares_keys(attention: Any) -> bool:
    """Whether heads share keys (``num_kv``) or GPUs share heads; 3.0.4 has neither."""
    return bool(getattr(attention, "num_kv", 0)) or getattr(attention, "parallel_gpu", 1) > 1


def run_layer(attention: Any, layer: nn.Module, tensor: Tensor) -> Tensor:
    """Apply one of ``attention``'s linear layers; 3.5.1 may recompute it in the backward pass."""
    run = getattr(attention, "maybe_ckpt", None)
    return run(layer, tensor) if run else layer(tensor)


# --- search ---------------------------------------------------------------------------------------


def is_time_first(search: Any) -> bool:
    """Whether a search wants attention as (step, beams, source), as 3.0.4 does.

    3.5.1 wants (beams, step, source), and keeps a list of what has finished.
    """
    return "is_finished_list" not in search.update_finished.__code__.co_names
