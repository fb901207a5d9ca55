"""``onmt_evsoftmax to-eole``: a transformer of OpenNMT-py as a model of eole.

The two compute the same; the weights have other names, and the options another shape. What eole
would compute differently, or not at all, is refused.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.eole.config import DISTANCES, NEEDS
from onmt_evsoftmax.eole.search import STOP
from onmt_evsoftmax.opennmt.checkpoint import load
from onmt_evsoftmax.opennmt.settings import KIND_OPTIONS, STOCK, Settings, option_of
from onmt_evsoftmax.report.console import UserError, command_line
from onmt_evsoftmax.report.outputs import write_outputs

DESCRIPTION = """\
Convert a transformer of OpenNMT-py (3.0 to 3.5), with any normalizer in its attention, to eole."""

EPILOG = """\
Run it where eole is installed; docs/eole.md says how. The folder is what `eole predict` takes, and
what `eole train` continues from.

example:
  $ onmt_evsoftmax to-eole model_step_10000.pt -o model-eole
  $ eole predict -model_path model-eole -src test.en -output test.de
"""

#: Names of OpenNMT-py's weights → eole's, in this order; {n} is a layer.
NAMES = (
    (r"^encoder\.embeddings\.make_embedding\.emb_luts\.0\.", "src_emb.embeddings."),
    (r"^decoder\.embeddings\.make_embedding\.emb_luts\.0\.", "tgt_emb.embeddings."),
    (r"^encoder\.transformer\.(\d+)\.", r"encoder.transformer_layers.\1."),
    (r"\.(\d+)\.layer_norm\.", r".\1.input_layernorm."),
    (r"\.(\d+)\.layer_norm_1\.", r".\1.input_layernorm."),
    (r"\.(\d+)\.layer_norm_2\.", r".\1.precontext_layernorm."),
    (r"\.feed_forward\.layer_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.w_1\.", ".mlp.gate_up_proj."),
    (r"\.feed_forward\.w_2\.", ".mlp.down_proj."),
    (r"\.feed_forward\.w_3\.", ".mlp.up_proj."),
    (r"\.(softmax|normalizer)\.normalizer\.", ".normalizer."),
)
#: What OpenNMT-py has as state but eole computes.
_DROPPED = re.compile(r"\.pe\.pe$|\.dropout")


def _refuse(path: str, options: Namespace) -> None:
    """A sentence for every model that eole would run differently."""

    def option(name: str, default: Any = None) -> Any:
        return getattr(options, name, default)

    reasons = {
        "it is not a transformer for translation": option("model_task", "seq2seq") != "seq2seq"
        or {option("encoder_type"), option("decoder_type")} != {"transformer"},
        "it copies from the source": option("copy_attn"),
        "its positions are rotary": option("max_relative_positions", 0) == -1,
        "its positions are ALiBi's": option("max_relative_positions", 0) == -2,
        "its distances are in buckets": option("relative_positions_buckets", 0),
        "its decoder has average attention": option("self_attn_type") == "average",
        "it has parallel residuals": option("parallel_residual"),
        "its heads share keys": option("num_kv"),
        "its layer norm is not standard": option("layer_norm", "standard") != "standard",
        "its generator is sparse": option("generator_function", STOCK)
        not in (STOCK, "log_softmax", None),
        "it has features": option("src_feats_vocab") or option("n_src_feats", 0),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"{path} cannot be converted to eole: {reason}")


def convert_weights(
    state: Mapping[str, Tensor], generator: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights under eole's names."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if _DROPPED.search(name):
            continue
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        if name.startswith("generator."):
            continue
        found[name] = tensor.clone()  # shared weights are stored twice: safetensors has no sharing
        if re.fullmatch(r"decoder\.transformer_layers\.\d+\.input_layernorm\.weight", name):
            found[name.replace("input_layernorm.weight", "layer_scalar")] = tensor.new_ones(1)
    weights = {name.removeprefix("0."): tensor for name, tensor in generator.items()}
    for part in ("weight", "bias"):
        found[f"generator.{part}"] = weights[part].clone()
    return found


def _positions(size: int, length: int = 5000) -> Tensor:
    """Sinusoids as both toolkits interleave them: (length, 1, size)."""
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float) * -(math.log(10000.0) / size))
    angles = torch.arange(length).float()[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).reshape(length, 1, size)


def convert_options(options: Namespace, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """eole's ``model`` section."""
    settings = Settings.of(options)
    size = weights["encoder.layer_norm.weight"].numel()
    model: dict[str, Any] = {
        "architecture": "transformer",
        "hidden_size": size,
        "heads": options.heads,
        "transformer_ff": options.transformer_ff,
        "layer_norm": "standard",
        "norm_eps": getattr(options, "norm_eps", 1e-6),
        "mlp_activation_fn": getattr(options, "pos_ffn_activation_fn", "relu"),
        "add_qkvbias": "encoder.transformer_layers.0.self_attn.linear_query.bias" in weights,
        "add_final_linear_bias": "encoder.transformer_layers.0.self_attn.final_linear.bias"
        in weights,
        "add_ffnbias": "encoder.transformer_layers.0.mlp.down_proj.bias" in weights,
        "share_embeddings": bool(options.share_embeddings),
        "share_decoder_embeddings": bool(options.share_decoder_embeddings),
        "generator_bias": True,
        "embeddings": {
            "src_word_vec_size": weights["src_emb.embeddings.weight"].size(1),
            "tgt_word_vec_size": weights["tgt_emb.embeddings.weight"].size(1),
            "position_encoding_type": "SinusoidalInterleaved"
            if options.position_encoding
            else None,
        },
        "encoder": {"encoder_type": "transformer", "layers": options.enc_layers},
        "decoder": {"decoder_type": "transformer", "layers": options.dec_layers},
    }
    if set(settings.attention.values()) != {STOCK}:
        model |= {KIND_OPTIONS[kind]: name for kind, name in settings.attention.items()}
        model |= {option_of(name): value for name, value in settings.parameters.items()}
        model[NEEDS] = "onmt_evsoftmax"
    if getattr(options, "max_relative_positions", 0):
        model |= {DISTANCES: options.max_relative_positions, NEEDS: "onmt_evsoftmax"}
    return model


def convert_search(options: Namespace, search: str) -> dict[str, Any]:
    """eole's ``inference`` section: OpenNMT-py's defaults, and when its searches end."""
    inference = {"length_penalty": "avg", "max_length_ratio": 0}
    # 3.5, which has buckets, ends as eole does.
    if search == "opennmt" and not hasattr(options, "relative_positions_buckets"):
        inference[STOP] = "beam_size"
    return inference


def convert(path: str, folder: str | Path, search: str = "opennmt") -> None:
    """Write the model of the checkpoint ``path`` into ``folder``.

    ``search``: whose rule ends a beam search, ``"opennmt"`` or ``"eole"``.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise UserError("eole's models are safetensors: pip install safetensors") from error
    checkpoint = load(path, "cpu")
    options = checkpoint["opt"]
    if checkpoint.get("model") is None:
        raise UserError(f"{path} has its weights in safetensors; give a checkpoint that holds them")
    _refuse(path, options)
    weights = convert_weights(checkpoint["model"], checkpoint["generator"])
    model = convert_options(options, weights)
    if options.position_encoding:
        for side in ("src", "tgt"):
            size = model["embeddings"][f"{side}_word_vec_size"]
            weights[f"{side}_emb.pe.pe"] = _positions(size)
    vocabulary = checkpoint["vocab"]
    start = vocabulary.get("decoder_start_token", "<s>")
    tokens = {side: _tokens(vocabulary[side]) for side in ("src", "tgt")}
    specials = {
        "unk_token": "<unk>",
        "pad_token": "<blank>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    config = {
        "share_vocab": bool(options.share_vocab),
        "src_vocab": "vocab.json",  # required, but not read: the tokens are in vocab.json
        "transforms": [],
        "inference": convert_search(options, search),
        "training": {"compute_dtype": "fp32"},
        "model": model,
    }
    target = Path(folder)
    if target.is_dir() and any(target.iterdir()):
        raise UserError(f"{folder} is not empty; choose another folder")
    as_text = functools.partial(json.dumps, indent=2, ensure_ascii=False)
    vocab = {**tokens, "decoder_start_token": start, "specials": specials}
    write_outputs(
        {
            str(target / "config.json"): as_text(config),
            str(target / "vocab.json"): as_text(vocab),
            str(target / "model.00.safetensors"): lambda path: save_file(weights, str(path)),
        }
    )


def _tokens(vocabulary: Any) -> list[str]:
    return list(getattr(vocabulary, "ids_to_tokens", vocabulary))


def make_parser() -> argparse.ArgumentParser:
    """Every option of the command."""
    parser = command_line(DESCRIPTION, EPILOG)
    parser.add_argument("model", metavar="MODEL", help="checkpoint of OpenNMT-py, .pt")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="new folder")
    parser.add_argument(
        "--search",
        choices=("opennmt", "eole"),
        default="opennmt",
        help="whose rule ends a beam search; with eole's, a softmax model without distances runs "
        "where this package is not installed, but translations may differ (default: %(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Convert one model."""
    options = make_parser().parse_args(argv)
    convert(options.model, options.output, options.search)
    return 0
