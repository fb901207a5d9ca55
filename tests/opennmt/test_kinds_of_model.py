"""Sparse attention in every kind of model that has attention, trained and translated."""

from __future__ import annotations

from typing import Any

import pytest
from workbench import IS_35, Workbench, supports

from onmt_evsoftmax.opennmt import load_model, record_attention
from onmt_evsoftmax.opennmt.checkpoint import SparseOptions, load

KINDS_OF_MODEL: dict[str, dict[str, Any]] = {
    "relative": {
        "position_encoding": None,
        "max_relative_positions": 4,
        "num_workers": 2,
        "generator_function": "entmax15",
    },
    **({"rotary": {"position_encoding": None, "max_relative_positions": -1}} if IS_35 else {}),
    "copy": {"copy_attn": True},
}


@pytest.mark.parametrize("name", KINDS_OF_MODEL)
def test_other_transformers(bench: Workbench, name: str) -> None:
    options = {"attention_normalizer": "evsoftmax", **KINDS_OF_MODEL[name]}
    model = bench.train(name, **options)
    kinds = supports(model)
    assert all(share < 0.9 for share in kinds.values()), kinds
    assert len(bench.translate(model, "-beam_size", "3")) == 32


RNN_MODELS: dict[str, dict[str, Any]] = {
    "rnn": {"generator_function": "evsoftmax"},
    "rnn-copy": {"copy_attn": True},
}


@pytest.mark.parametrize("name", RNN_MODELS)
def test_rnn_models(bench: Workbench, name: str) -> None:
    model = bench.train(
        name,
        encoder_type="brnn",
        decoder_type="rnn",
        position_encoding=None,
        global_attention_function="evsoftmax",
        **RNN_MODELS[name],
    )
    assert "global attention evsoftmax" in bench.log(name)
    assert len(bench.translate(model, "-beam_size", "3")) == 32
    assert type(load(model)["opt"]) is SparseOptions


def test_a_language_model(bench: Workbench) -> None:
    data = {"corpus": {"path_src": "train.src"}, "valid": {"path_src": "valid.src"}}
    model = bench.train(
        "lm",
        data=data,
        model_task="lm",
        encoder_type="transformer_lm",
        decoder_type="transformer_lm",
        share_vocab=True,
        tgt_vocab=None,
        position_encoding=None if IS_35 else True,
        max_relative_positions=-1 if IS_35 else 4,
        attention_normalizer="evsoftmax",
    )
    loaded = load_model(model)
    sources = [line.split() for line in (bench.folder / "test.src").open()]
    with record_attention(loaded.model) as records:
        loaded.force(sources)
    assert {record.kind for record in records} == {"decoder"}
    assert all(record.support.sum() < 0.9 * record.mask.sum() for record in records)
    options = ("-beam_size", "2", "-max_length", "8")
    assert len(bench.translate(model, *options, "-batch_size", "1")) == 32
