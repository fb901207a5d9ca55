"""What OpenNMT-py gets wrong by itself and the plugin puts right, at the level of its classes."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import RNN, TRANSFORMER, batch, build, flags, translator_of
from workbench import IS_35

from onmt_evsoftmax.opennmt.workarounds import _set_alignment_layer, patch_train_single
from onmt_evsoftmax.report.console import UserError

SEARCHES = {
    "beam": flags(beam_size=3),
    "one beam": flags(beam_size=1),
    "sampling": flags(beam_size=1, random_sampling_topk=1),
    "sampling in two beams": flags(beam_size=2, random_sampling_topk=1),
}
MODELS = {
    "transformer": [*TRANSFORMER, "-position_encoding"],
    "rnn": [*RNN, *flags(input_feed=0)],
    "rnn with input feeding": [*RNN, *flags(input_feed=1)],
}


def test_heads_that_do_not_divide_the_size_are_told() -> None:
    with pytest.raises(UserError, match="heads: 3 cannot share a hidden_size of"):
        build(*TRANSFORMER, *flags(heads=3))


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", MODELS)
def test_attention_of_a_search_has_a_row_per_token_and_the_sources_width(
    kind: str, search: str
) -> None:
    """Lengths in no order, sentences that end at different steps."""
    model = build(*MODELS[kind])
    source, lengths = batch([2, 6, 3, 5])
    limit = [*flags(max_length=7), *(flags(max_length_ratio=0) if IS_35 else [])]
    translator = translator_of(model, *limit, *SEARCHES[search])
    result = translator.translate_batch({"src": source, "srclen": lengths}, True)
    for length, tokens, attention in zip(
        lengths, result["predictions"], result["attention"], strict=True
    ):
        assert attention[0].shape == (len(tokens[0]), length)
        assert torch.allclose(attention[0].sum(-1), torch.ones(1), atol=1e-5)


@pytest.mark.parametrize(("layer", "fine"), [(-2, True), (1, True), (-3, False), (2, False)])
def test_alignment_layers_are_checked(layer: int, fine: bool) -> None:
    decoder: Any = build(*TRANSFORMER, "-position_encoding").decoder
    if fine:
        _set_alignment_layer(decoder, layer)
        assert decoder.alignment_layer == layer
    else:
        with pytest.raises(UserError, match="from -2 to 1"):
            _set_alignment_layer(decoder, layer)


def test_alignment_needs_a_transformer() -> None:
    with pytest.raises(UserError, match="transformer decoder"):
        _set_alignment_layer(build(*RNN).decoder, -1)


@pytest.mark.parametrize("machines", [[[0, 1]], [[0], [1]], [[0, 1], [2, 3]], [[0, 1, 2], [3]]])
def test_the_gpus_of_all_machines_share_the_corpus(machines: list[list[int]]) -> None:
    """Each reads every n-th sentence: n and the first ones, as OpenNMT-py gives them and we do."""
    module = SimpleNamespace(build_dynamic_dataset_iter=lambda opt, *args, **kwargs: kwargs)
    patch_train_single(module)
    world = sum(map(len, machines))
    dealt = []
    for ranks in machines:
        opt = Namespace(gpu_ranks=ranks, world_size=world)
        assert module.build_dynamic_dataset_iter(opt, task="valid") == {"task": "valid"}
        for device in range(len(ranks)):
            share = {"stride": len(ranks), "offset": device}
            dealt.append(module.build_dynamic_dataset_iter(opt, **share))
    assert dealt == [{"stride": world, "offset": rank} for rank in range(world)]


@pytest.mark.parametrize(
    ("ranks", "world", "more"), [([], 1, {}), ([1], 2, {"parallel_mode": "tensor_parallel"})]
)
def test_a_cpu_and_tensor_parallel_processes_read_everything(ranks, world, more) -> None:
    module = SimpleNamespace(build_dynamic_dataset_iter=lambda opt, *args, **kwargs: kwargs)
    patch_train_single(module)
    opt = Namespace(gpu_ranks=ranks, world_size=world, **more)
    everything = {"stride": 1, "offset": 0}
    assert module.build_dynamic_dataset_iter(opt, **everything) == everything


def test_training_builds_its_data_with_that() -> None:
    import onmt.inputters.dynamic_iterator
    import onmt.train_single

    stock = onmt.inputters.dynamic_iterator.build_dynamic_dataset_iter
    assert onmt.train_single.build_dynamic_dataset_iter.__wrapped__ is stock
