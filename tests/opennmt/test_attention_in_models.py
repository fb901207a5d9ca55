"""Attention inside real OpenNMT-py models: equal to a float64 reference, alone, padded, cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from models import LANGUAGE_MODEL, RNN, TRANSFORMER, batch, build
from reference import entmax, evsoftmax, softmax
from torch import Tensor, nn
from workbench import IS_35

from onmt_evsoftmax.opennmt import record_attention
from onmt_evsoftmax.opennmt.modules import EXCLUDED
from onmt_evsoftmax.opennmt.sites import attention_sites

# Float64 NumPy, one unmasked row → probabilities. Learned alphas start at 1.5.
BY_NAME = {
    "softmax": lambda v: softmax(v)[0],
    "evsoftmax": lambda v: evsoftmax(v)[0],
    "sparsemax": lambda v: entmax(v, 2.0)[0],
    "entmax15": lambda v: entmax(v, 1.5)[0],
    "entmax": lambda v: entmax(v, 1.5)[0],
}

POSITIONS = {
    "sinusoidal": ["-position_encoding"],
    "relative": ["-max_relative_positions", "4"],
    **({"rotary": ["-max_relative_positions", "-1"]} if IS_35 else {}),
    **({"alibi": ["-max_relative_positions", "-2"]} if IS_35 else {}),
}


class Published(nn.Module):
    """Ev-softmax as it was published: what fills the place of excluded keys enters the mean."""

    def forward(self, scores: Tensor) -> Tensor:
        kept = scores >= scores.mean(-1, keepdim=True)
        weights = torch.softmax(scores, -1) * kept
        return weights / weights.sum(-1, keepdim=True)


def publish(model: nn.Module) -> nn.Module:
    """Put the published formulation where ours is."""
    for site in attention_sites(model):
        site.module.softmax = Published()
    return model


@contextmanager
def inputs_and_outputs(model: nn.Module) -> Iterator[list[tuple[Any, Tensor, Tensor]]]:
    """(site, scores, probabilities) of every call of every attention's normalizer."""
    calls: list[tuple[Any, Tensor, Tensor]] = []
    handles = []
    for site in attention_sites(model):
        watched = site.module.softmax if hasattr(site.module, "softmax") else site.module.normalizer

        def keep(module: Any, inputs: Any, output: Tensor, site: Any = site) -> None:
            calls.append((site, inputs[0].detach().clone(), output.detach()))

        handles.append(watched.register_forward_hook(keep))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def force(model: Any, source: Tensor, target: Tensor, lengths: Tensor) -> Tensor:
    with torch.no_grad():
        return model(source, target, lengths)[0]


def check_reference(model: Any, name: str, *given: Tensor, least: int = 100) -> set[str]:
    """Every row of every attention equals the reference on the keys that are not excluded.

    At ``least`` so many rows have something to exclude. Returns the kinds of attention.
    """
    source, lengths = batch([7, 3, 1, 5])
    target, _ = batch([6, 2, 4, 5], seed=1)
    with inputs_and_outputs(model) as calls:
        force(model, *(given or (source, target, lengths)))
    rows = 0
    for _, scores, probabilities in calls:
        flat = scores.double().reshape(-1, scores.size(-1)).numpy()
        for v, p in zip(flat, probabilities.reshape(flat.shape).numpy(), strict=True):
            valid = v > EXCLUDED
            if valid.any():
                np.testing.assert_allclose(p[valid], BY_NAME[name](v[valid]), atol=2e-6)
                rows += not valid.all()
            assert (p[~valid] == 0).all()
    assert rows >= least
    return {site.kind for site, _, _ in calls}


def check_alone_as_in_a_batch(model: Any) -> None:
    """A sentence's decoder outputs and attention do not depend on its neighbours' padding."""
    source, lengths = batch([7, 3, 1, 5])
    target, target_lengths = batch([6, 2, 4, 5], seed=1)
    with record_attention(model) as together:
        outputs = force(model, source, target, lengths)
    for row, (length, target_length) in enumerate(zip(lengths, target_lengths, strict=True)):
        with record_attention(model) as alone:
            output = force(
                model,
                source[row : row + 1, :length],
                target[row : row + 1, :target_length],
                lengths[row : row + 1],
            )
        queries = int(target_length) - 1
        assert torch.allclose(output[0], outputs[row, :queries], atol=1e-5)
        for one, many in zip(alone, together, strict=True):
            size = one.probabilities.shape[2:]
            part = many.probabilities[row : row + 1, :, : size[0], : size[1]]
            assert torch.allclose(one.probabilities, part, atol=1e-5)


def check_cached_as_forced(model: Any) -> None:
    """Decoding step by step with a cache gives what teacher forcing gives, padding in the batch."""
    source, lengths = batch([7, 3, 1, 5])
    target, _ = batch([6, 6, 6, 6], seed=1)
    with record_attention(model) as forced:
        outputs = force(model, source, target, lengths)
    expected = {(r.kind, r.layer): r.probabilities for r in forced}
    with torch.no_grad():
        # Recorded as well: unwatched, the encoder would fuse its attention and round differently.
        with record_attention(model):
            encoded, state, _ = model.encoder(source, lengths)
        model.decoder.init_state(source, encoded, state)
        for step in range(5):
            with record_attention(model) as records:
                output, _ = model.decoder(
                    target[:, step : step + 1], encoded, src_len=lengths, step=step
                )
            assert torch.allclose(output[:, 0], outputs[:, step], atol=1e-5)
            for record in records:
                row = expected[record.kind, record.layer][:, :, step, :]
                keys = record.probabilities.size(-1)
                assert torch.allclose(record.probabilities[:, :, 0], row[..., :keys], atol=1e-5)


CHECKS: list[Callable[..., None]] = [check_alone_as_in_a_batch, check_cached_as_forced]


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("positions", POSITIONS)
def test_attention_equals_the_reference(name: str, positions: str) -> None:
    model = build(*TRANSFORMER, *POSITIONS[positions], "-attention_normalizer", name)
    check_reference(model, name)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("check", CHECKS)
def test_batch_and_cache_change_nothing(
    check: Callable[..., None], positions: str, name: str
) -> None:
    check(build(*TRANSFORMER, *POSITIONS[positions], "-attention_normalizer", name))


@pytest.mark.parametrize("check", [lambda model: check_reference(model, "evsoftmax"), *CHECKS])
def test_the_published_formulation_fails_these_tests(check: Callable[..., None]) -> None:
    model = build(*TRANSFORMER, "-position_encoding", "-attention_normalizer", "evsoftmax")
    with pytest.raises(AssertionError):
        check(publish(model))


def test_the_published_formulation_is_softmax_on_masked_rows() -> None:
    scores = torch.randn(50, 9)
    scores[:, 6:] = -1e18
    assert torch.allclose(Published()(scores), torch.softmax(scores, -1))


def test_language_model_attention_equals_the_reference() -> None:
    model = build(*LANGUAGE_MODEL, "-attention_normalizer", "evsoftmax")
    source, lengths = batch([7, 3, 1, 5])
    assert check_reference(model, "evsoftmax", source, source, lengths) == {"decoder"}


def test_a_nan_score_shows_and_does_not_pass_for_masked() -> None:
    model = build(*TRANSFORMER, "-position_encoding", "-attention_normalizer", "evsoftmax")
    site = next(attention_sites(model))
    scores = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 1.0, -1e18]])
    p = site.module.softmax(scores)
    assert p[0].isnan().all()
    assert p[1].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("name", ["softmax", "evsoftmax", "sparsemax", "entmax15"])
@pytest.mark.parametrize("feed", ["0", "1"])
def test_rnn_attention_equals_the_reference_and_sees_no_padding(name: str, feed: str) -> None:
    model = build(*RNN, "-input_feed", feed, "-global_attention_function", name)
    source, lengths = batch([7, 3, 1, 5])
    target, _ = batch([6, 6, 6, 6], seed=1)
    with record_attention(model) as records:
        outputs = force(model, source, target, lengths)
    for record in records:
        assert record.kind == "global"
        assert torch.equal(record.mask[..., 0, :].sum(-1).flatten(), lengths)
        assert (record.probabilities[~record.mask] == 0).all()
        assert torch.allclose(record.probabilities.sum(-1), torch.ones(1), atol=1e-5)
    if name != "softmax":
        assert check_reference(model, name, source, target, lengths, least=15) == {"global"}
    for row, length in enumerate(lengths):
        alone = force(
            model, source[row : row + 1, :length], target[row : row + 1], lengths[row : row + 1]
        )
        assert torch.allclose(alone[0], outputs[row], atol=1e-5)


def test_copy_attention_of_an_rnn_sees_no_padding() -> None:
    model = build(*RNN, "-copy_attn", "-global_attention_function", "evsoftmax")
    source, lengths = batch([7, 3])
    target, _ = batch([4, 4], seed=1)
    with record_attention(model) as records:
        force(model, source, target, lengths)
    copies = [record for record in records if record.kind == "copy"]
    assert copies
    for record in copies:
        assert torch.equal(record.mask.sum(-1).flatten(), lengths)
        assert (record.probabilities[1, ..., 3:] == 0).all()


@pytest.mark.parametrize("name", ["softmax", "evsoftmax"])
def test_records_name_every_layer_and_kind(name: str) -> None:
    model = build(*TRANSFORMER, "-position_encoding", "-attention_normalizer", name)
    source, lengths = batch([5, 2])
    target, _ = batch([4, 3], seed=1)
    with record_attention(model) as records:
        force(model, source, target, lengths)
    found = [(record.kind, record.layer) for record in records]
    assert found == [
        ("encoder", 0),
        ("encoder", 1),
        ("decoder", 0),
        ("context", 0),
        ("decoder", 1),
        ("context", 1),
    ]
    for record in records:
        assert torch.equal(record.support & record.mask, record.support)
        if name == "softmax":
            assert torch.equal(record.support, record.mask)
        else:
            assert record.support.sum() < record.mask.sum()
    force(model, source, target, lengths)
    assert len(records) == 6  # nothing is recorded outside the block


def test_support_is_told_where_probabilities_are_too_small_to_show() -> None:
    model = build(*TRANSFORMER, "-position_encoding", "-attention_normalizer", "evsoftmax")
    site = next(attention_sites(model))
    scores = torch.tensor([[[[300.0, 150.0, -400.0]]]])
    with record_attention(model) as records:
        site.module.softmax(scores)
    assert records[0].probabilities.flatten().tolist() == [1.0, 0.0, 0.0]
    assert records[0].support.flatten().tolist() == [True, True, False]


@pytest.mark.skipif(not IS_35, reason="only OpenNMT-py 3.5.1 has flash and SDPA shortcuts")
class TestShortcuts:
    """On a GPU 3.5.1 has three ways round the normalizer; device ``meta`` takes them, too."""

    def attention(self, name: str) -> Any:
        options = ["-self_attn_type", "scaled-dot-flash", "-attention_normalizer", name]
        model = build(*TRANSFORMER, "-position_encoding", *options)
        return model.decoder.transformer_layers[0].self_attn.to("meta")

    @pytest.mark.parametrize("name", ["softmax", "evsoftmax"])
    def test_sdpa(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        import onmt.modules.multi_headed_attn as upstream

        def sdpa(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("SDPA was called")

        monkeypatch.setattr(upstream, "scaled_dot_product_attention", sdpa)
        attention = self.attention(name)
        x = torch.zeros(2, 3, 16, device="meta")
        if name == "softmax":
            with pytest.raises(RuntimeError, match="SDPA was called"):
                attention(x, x, x)
        else:
            assert attention(x, x, x)[1].shape == (2, 2, 3, 3)

    @pytest.mark.parametrize("name", ["softmax", "evsoftmax"])
    def test_flash_with_a_cache(self, name: str) -> None:
        def flash(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("flash attention was called")

        attention = self.attention(name).half()
        if name == "softmax":  # as its constructor does where the flash_attn package is installed
            attention.flash2 = True
        attention.flash_attn_with_kvcache = flash
        keys = torch.zeros(2, 2, 4, 8, device="meta", dtype=torch.half)
        attention.layer_cache = (True, {"keys": keys, "values": keys})
        x = torch.zeros(2, 1, 16, device="meta", dtype=torch.half)
        if name == "softmax":
            with pytest.raises(RuntimeError, match="flash attention was called"):
                attention(x, x, x, step=1)
        else:
            assert attention(x, x, x, step=4)[1].shape == (2, 2, 1, 5)

    def test_recording_a_stock_model_shuts_them_for_a_while(self) -> None:
        model = build(*TRANSFORMER, "-position_encoding", "-self_attn_type", "scaled-dot-flash")
        with record_attention(model):
            assert {site.module.self_attn_type for site in attention_sites(model)} == {"scaled-dot"}
        kinds = {site.module.self_attn_type for site in attention_sites(model)}
        assert "scaled-dot-flash" in kinds


@pytest.mark.parametrize("name", ["softmax", "evsoftmax", "entmax15"])
def test_a_language_model_decodes_with_a_cache_as_it_is_forced(name: str) -> None:
    model = build(*LANGUAGE_MODEL, "-attention_normalizer", name)
    text, lengths = batch([6, 6, 6])
    forced = force(model, text, text, lengths)
    model.decoder.init_state()
    with torch.no_grad():
        for step in range(6):
            output, _ = model.decoder(text[:, step : step + 1], src_len=lengths, step=step)
            assert torch.allclose(output[:, 0], forced[:, step], atol=1e-5)
