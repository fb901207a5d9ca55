"""Fused attention in OpenNMT-py's models: what the explicit one computes, where nobody reads it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from models import (
    LANGUAGE_MODEL,
    RNN,
    TRANSFORMER,
    batch,
    build,
    flags,
    parse,
    pretend_gpu,
    translator_of,
)
from workbench import IS_35

from onmt_evsoftmax import kernels
from onmt_evsoftmax.opennmt import modules, record_attention
from onmt_evsoftmax.opennmt.sites import put_normalizers
from onmt_evsoftmax.report.console import UserError

needs_kernels = pytest.mark.skipif(
    not kernels.available(),
    reason="the kernels are not compiled or not in use: install with a C compiler and leave "
    "ONMT_EVSOFTMAX_BACKEND unset",
)
EVSOFTMAX = [*TRANSFORMER, *flags(position_encoding=True, attention_normalizer="evsoftmax")]
MATRIX = [*LANGUAGE_MODEL, *flags(attention_normalizer="evsoftmax")]


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the fused function was causal."""
    calls: list[bool] = []
    original = modules.sparse_attention

    def count(*tensors: Any, **options: Any) -> Any:
        calls.append(tensors[-1])
        return original(*tensors, **options, backend="fused")

    monkeypatch.setattr(modules, "sparse_attention", count)
    return calls


def loss_and_gradients(*arguments: str, training: bool = True) -> dict[str, torch.Tensor]:
    """Of one batch with padding on both sides."""
    model = build(*arguments).train(training)
    source, lengths = batch([9, 4, 1, 6])
    target, _ = batch([7, 3, 5, 2], seed=1)
    if getattr(model, "encoder", None) is None:
        out, _ = model(target, None, lengths)
    else:
        out, _ = model(source, target, lengths)
    loss = model.generator(out).square().mean()
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"output": out.detach(), "loss": loss.detach(), **found}


@needs_kernels
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", [EVSOFTMAX, MATRIX], ids=["transformer", "language model"])
def test_both_ways_give_the_same_loss_and_gradients(
    fused_calls: list[bool], model: list[str], training: bool
) -> None:
    explicit = loss_and_gradients(*model, "-attention_backend", "explicit", training=training)
    assert not fused_calls
    quick = loss_and_gradients(*model, training=training)
    assert quick.keys() == explicit.keys()
    for name, value in explicit.items():
        torch.testing.assert_close(quick[name], value, atol=2e-5, rtol=1e-4, msg=name)
    kinds = len(fused_calls) / 2  # two layers
    assert kinds == ((3 if training else 2) if model is EVSOFTMAX else (1 if training else 0))
    if model is EVSOFTMAX:
        assert fused_calls.count(True) == 2  # the decoder's self-attention


#: What places add to the scores, in the options of OpenNMT-py; 3.5.1 has more kinds.
PLACES = {"relative": 3, "rotary": -1, "alibi": -2} if IS_35 else {"relative": 3}


@needs_kernels
@pytest.mark.parametrize("normalizer", ["evsoftmax", "sparsemax", "entmax15", "entmax"])
@pytest.mark.parametrize("places", PLACES)
def test_positions_are_fused_too(fused_calls: list[bool], normalizer: str, places: str) -> None:
    options = flags(attention_normalizer=normalizer, max_relative_positions=PLACES[places])
    if normalizer == "entmax":
        options += flags(attention_alpha="learn")
    model = [*TRANSFORMER, *options]
    explicit = loss_and_gradients(*model, "-attention_backend", "explicit")
    assert not fused_calls
    quick = loss_and_gradients(*model)
    assert len(fused_calls) == 6
    for name, value in explicit.items():
        torch.testing.assert_close(quick[name], value, atol=5e-5, rtol=1e-3, msg=name)
    report = put_normalizers(build(*model), parse(*model))
    assert str(report).endswith("fused attention: encoder, decoder, context in training")


def losses_of_training(*arguments: str, nudge: float = 0.0, steps: int = 200) -> torch.Tensor:
    """Of a small model that learns one batch; ``nudge`` changes every weight by so much first."""
    model = build(*arguments, scale=0.2).train()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1 + nudge * torch.randn(weights.shape, generator=generator))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    source, lengths = batch([9, 4, 1, 6])
    target, _ = batch([7, 3, 5, 2], seed=1)
    losses = []
    for _ in range(steps):
        out, _ = model(source, target, lengths)
        scores = model.generator(out).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(scores, target[:, 1:].flatten(), ignore_index=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


@needs_kernels
@pytest.mark.parametrize("normalizer", ["evsoftmax", "sparsemax", "entmax15"])
def test_training_parts_by_rounding_alone(normalizer: str) -> None:
    """Fused and explicit, 200 steps: as far apart as two trainings that begin 1e-7 apart."""
    model = [*TRANSFORMER, *flags(attention_normalizer=normalizer, max_relative_positions=3)]
    explicit = losses_of_training(*model, "-attention_backend", "explicit")
    assert explicit[-1] < 0.5 * explicit[0]
    nudged = losses_of_training(*model, "-attention_backend", "explicit", nudge=1e-7)
    fused = losses_of_training(*model, "-attention_backend", "fused")
    by_rounding = ((nudged - explicit).abs() / explicit).cummax(0).values
    apart = (fused - explicit).abs() / explicit
    assert apart[:10].max() < 1e-5
    assert (apart <= 30 * by_rounding + 1e-5).all()


def decoded(model: Any, steps: int = 6) -> list[torch.Tensor]:
    """Outputs and attention to the source, step by step with a cache, padding in the batch."""
    source, lengths = batch([7, 3, 1, 5])
    target, _ = batch([steps] * 4, seed=1)
    found = []
    with torch.no_grad():
        encoded, state, _ = model.encoder(source, lengths)
        model.decoder.init_state(source, encoded, state)
        for step in range(steps):
            word = target[:, step : step + 1]
            out, attention = model.decoder(word, encoded, src_len=lengths, step=step)
            found += [out, attention["std"]]
            if step == 2:  # as a beam search does between steps
                model.decoder.map_state(lambda state, dim: state.index_select(dim, ORDER))
    return found


ORDER = torch.tensor([0, 0, 2, 3])


@needs_kernels
@pytest.mark.parametrize("normalizer", ["evsoftmax", "sparsemax", "entmax15", "entmax"])
@pytest.mark.parametrize("places", ["none", *PLACES])
def test_a_step_of_decoding_is_fused_and_shows_its_row(
    monkeypatch: pytest.MonkeyPatch, normalizer: str, places: str
) -> None:
    options = flags(attention_normalizer=normalizer, max_relative_positions=PLACES.get(places, 0))
    if normalizer == "entmax":
        options += flags(attention_alpha="learn")
    steps: list[bool] = []
    original = modules.single_query

    def count(*arguments: Any) -> Any:
        found = original(*arguments)
        steps.append(found is not None)
        return found

    monkeypatch.setattr(modules, "single_query", count)
    model = [*TRANSFORMER, *options]
    explicit = decoded(build(*model, "-attention_backend", "explicit"))
    assert not steps
    quick = decoded(build(*model))
    assert steps == [True] * 24  # two attentions in each of two layers, six times
    for one, other in zip(quick, explicit, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@needs_kernels
@pytest.mark.parametrize("normalizer", ["evsoftmax", "sparsemax", "entmax15"])
def test_both_ways_give_the_same_translations(normalizer: str) -> None:
    found = []
    for backend in ("auto", "explicit"):
        options = flags(attention_normalizer=normalizer, attention_backend=backend)
        model = build(*TRANSFORMER, *options, *flags(max_relative_positions=3))
        limit = [*flags(max_length=9), *(flags(max_length_ratio=0) if IS_35 else [])]
        translator = translator_of(model, *limit, *flags(beam_size=3, min_length=4))
        source, lengths = batch([9, 4, 1, 6])
        found.append(translator.translate_batch({"src": source, "srclen": lengths}, True))
    for one, other in zip(found[0]["predictions"], found[1]["predictions"], strict=True):
        assert [words.tolist() for words in one] == [words.tolist() for words in other]
    torch.testing.assert_close(found[0]["attention"], found[1]["attention"], atol=2e-5, rtol=1e-4)


@needs_kernels
def test_training_drops_probabilities(fused_calls: list[bool]) -> None:
    model = build(*EVSOFTMAX, "-attention_dropout", "0.5").train()
    source, lengths = batch([9, 4])
    torch.manual_seed(1)
    first, _ = model(source, source, lengths)
    again, _ = model(source, source, lengths)
    torch.manual_seed(1)
    repeated, _ = model(source, source, lengths)
    assert fused_calls
    assert torch.equal(first, repeated)
    assert not torch.allclose(first, again)
    model.update_dropout(0.0, 0.0)
    assert torch.equal(model(source, source, lengths)[0], model(source, source, lengths)[0])


READERS = {
    "copy attention": flags(copy_attn=True),
    "guided alignment": flags(lambda_align="0.5", alignment_layer="0"),
}


@needs_kernels
@pytest.mark.parametrize("reader", READERS)
def test_what_reads_the_matrix_keeps_it(reader: str, fused_calls: list[bool]) -> None:
    """The attention to the source, that is; the others are fused all the same."""
    options = [*EVSOFTMAX, *READERS[reader]]
    model = build(*options).train()
    source, lengths = batch([9, 4])
    _, attention = model(source, source, lengths)
    assert attention["std"].shape == (2, 8, 9)
    assert len(fused_calls) == 4
    plain = build(*EVSOFTMAX).train()
    assert plain(source, source, lengths)[1]["std"].numel() == 0
    assert plain.eval()(source, source, lengths)[1]["std"].shape == (2, 8, 9)


@needs_kernels
def test_a_fused_model_can_be_pickled_and_copied(fused_calls: list[bool]) -> None:
    model = build(*EVSOFTMAX)
    source, lengths = batch([9, 4])
    expected, _ = model(source, source, lengths)
    others = [copy.deepcopy(model)]
    if not IS_35:  # whose own attention holds a function that cannot be pickled
        others.append(pickle.loads(pickle.dumps(model)))
    for other in others:
        fused_calls.clear()
        assert torch.equal(other(source, source, lengths)[0], expected)
        assert len(fused_calls) == 4


@needs_kernels
def test_recorders_see_every_attention(fused_calls: list[bool]) -> None:
    model = build(*EVSOFTMAX)
    source, lengths = batch([9, 4])
    with record_attention(model) as records:
        model(source, source, lengths)
    assert not fused_calls
    assert len(records) == 6
    assert all(record.probabilities.numel() for record in records)
    model(source, source, lengths)
    assert len(fused_calls) == 4


@needs_kernels
@pytest.mark.parametrize(
    ("options", "fused_line"),
    [
        ([], "encoder, decoder, context in training"),
        (["-attention_backend", "fused"], "encoder, decoder, context in training"),
        (["-attention_backend", "explicit"], "none"),
        (["-attention_eps", "0.1"], "none"),
        (["-copy_attn"], "encoder, decoder"),
        (["-context_attention_normalizer", "sparsemax"], "encoder, decoder, context in training"),
    ],
)
def test_the_start_up_line_says_which(options: list[str], fused_line: str) -> None:
    arguments = [*EVSOFTMAX, *options]
    report = put_normalizers(build(*EVSOFTMAX), parse(*arguments))
    assert str(report).endswith(f"kernels on CPU; fused attention: {fused_line}")


@needs_kernels
@pytest.mark.parametrize(
    ("options", "capability", "on_gpu"),
    [
        ({}, (8, 0), None),
        ({}, (7, 5), "none"),
        ({"attention_normalizer": "entmax"}, (8, 0), "none"),
        ({"hidden_size": 320}, (8, 0), "none"),  # heads of 160 in float32
        ({"hidden_size": 320, "model_dtype": "fp16"}, (8, 0), None),
        ({"hidden_size": 160, "max_relative_positions": 8}, (9, 0), "context in training"),
    ],
)
def test_the_start_up_line_tells_the_gpu_from_the_cpu(
    options: dict[str, object],
    capability: tuple[int, int],
    on_gpu: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton has no attention for learned alphas, for old GPUs, and for large float32 heads."""
    width = options.get("hidden_size", 16)
    arguments = [*EVSOFTMAX, *flags(**options, word_vec_size=width)]
    model = build(*arguments)
    pretend_gpu(monkeypatch, capability)
    everywhere = "encoder, decoder, context in training"
    found = everywhere if on_gpu is None else f"{everywhere} on CPU, {on_gpu} on GPU"
    assert str(put_normalizers(model, parse(*arguments))).endswith(f"fused attention: {found}")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (flags(attention_normalizer="sparsehourglass"), "sparsehourglass has no fused attention"),
        ([], "all attention is softmax"),
        (
            flags(attention_normalizer="evsoftmax", attention_eps=0.1),
            "is made for eps = 0, not 0.1",
        ),
        (
            flags(attention_normalizer="evsoftmax", hidden_size=1200, heads=4),
            "heads of 300 dimensions",
        ),
    ],
)
def test_forcing_what_is_impossible_is_refused(options: list[str], says: str) -> None:
    with pytest.raises(UserError, match=f"attention_backend: fused is not possible here: .*{says}"):
        build(*TRANSFORMER, *options, "-attention_backend", "fused")
    with pytest.raises(UserError, match=r"attention_backend: .*fused"):
        parse("-attention_backend", "fusde")


def test_what_is_not_fused_is_computed_all_the_same() -> None:
    """Positions in the scores, eps, an RNN: built and run as ever."""
    source, lengths = batch([9, 4])
    for options in (
        flags(attention_normalizer="evsoftmax", max_relative_positions=4),
        flags(attention_normalizer="evsoftmax", attention_eps=0.1),
        *([flags(attention_normalizer="evsoftmax", max_relative_positions=-1)] if IS_35 else []),
    ):
        both = [
            build(*TRANSFORMER, *options, "-attention_backend", how).train()
            for how in ("auto", "explicit")
        ]
        auto, explicit = (model(source, source, lengths)[0] for model in both)
        torch.testing.assert_close(auto, explicit, atol=1e-5, rtol=1e-4)
    build(*RNN, "-global_attention_function", "evsoftmax")


def test_masks_are_read_as_padding_and_future() -> None:
    padding = torch.tensor([[False, False, False], [False, True, True]])[:, None, None, :]
    future = torch.ones(3, 3, dtype=torch.bool).triu(1)
    assert modules.read_mask(None) == (None, False)
    included, is_causal = modules.read_mask(padding)
    assert torch.equal(included, ~padding)
    assert not is_causal
    included, is_causal = modules.read_mask(padding | future)
    assert torch.equal(included, ~padding)
    assert is_causal
    window = padding | future | ~torch.ones(3, 3, dtype=torch.bool).triu(-1)
    assert modules.read_mask(window) is None
    for whole in (padding.expand(2, 1, 4, 3), padding.expand(2, 1, 4, 3).contiguous()):
        included, is_causal = modules.read_mask(whole)
        assert torch.equal(included, ~padding)
        assert not is_causal
    assert modules.read_mask((padding | future)[..., 1:, :]) is None


@needs_kernels
def test_translations_are_the_same_both_ways(bench: Any) -> None:
    model = bench.train("fused", attention_normalizer="evsoftmax", attention_dropout=[0.0])
    assert "fused attention: encoder, decoder, context in training" in bench.log("fused")
    name = "explicit"
    other = bench.train(
        name,
        attention_normalizer="evsoftmax",
        attention_dropout=[0.0],
        attention_backend="explicit",
    )
    assert "fused attention: none" in bench.log(name)
    # Two trainings may part by rounding; one model translates the same, also with its matrix read.
    both = [bench.translate(model, "-attention_backend", how) for how in ("auto", "explicit")]
    assert both[0] == both[1]
    both = [bench.translate(other, "-attention_backend", how) for how in ("fused", "explicit")]
    assert both[0] == both[1]
    assert bench.translate(model, "-replace_unk") == bench.translate(
        model, "-replace_unk", "-attention_backend", "explicit"
    )
