"""What OpenNMT-py gets wrong by itself and the plugin puts right, at the level of its classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bench import IS_35
from models import RNN, TRANSFORMER, batch, build, flags, translator_of

from onmt_evsoftmax.console import UserError
from onmt_evsoftmax.opennmt.compat import _set_alignment_layer

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
