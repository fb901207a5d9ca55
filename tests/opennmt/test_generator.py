"""Output layers with exact zeros: their loss, and searches that stay inside the support."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from typing import Any

import functional
import onmt.decoders.ensemble
import onmt.opts
import pytest
import torch
from functional import (
    entmax15_loss,
    evsoftmax_loss,
    softmax_loss,
    sparsemax_loss,
)
from models import RNN, TRANSFORMER, build, flags, parse, translator_of
from onmt.utils.loss import LossCompute
from torch import Tensor
from workbench import IS_35

from onmt_evsoftmax.opennmt.generator import IMPOSSIBLE, outputs_of
from onmt_evsoftmax.report.console import UserError

FUNCTIONS = ["sparsemax", "entmax15", "evsoftmax"]
WORDS = ["a", "b", "c"]  # with four specials: seven tokens
UNK, BLANK, BOS, EOS = range(4)


def tiny(function: str, seed: int = 0, scale: float = 0.4) -> Any:
    model = build(
        *TRANSFORMER,
        *flags(position_encoding=True, generator_function=function),
        words=WORDS,
        seed=seed,
        scale=scale,
    )
    with torch.no_grad():
        model.generator.bias[[BLANK, BOS]] = -9.0  # as training teaches every model
    return model


#: Scores are sums of log-probabilities.
PLAIN_SCORES = ["-length_penalty", "none", "-alpha", "1"]


def search(model: Any, source: Tensor, *arguments: str, prefix: Tensor | None = None) -> Any:
    """Translate ``source`` (batch, length, 1): predictions and scores, best first."""
    translator = translator_of(model, *PLAIN_SCORES, "-n_best", "1", *arguments)
    lengths = torch.full((source.size(0),), source.size(1))
    batch: dict[str, Any] = {"src": source, "srclen": lengths}
    if prefix is not None:
        batch["tgt"] = prefix
    result = translator.translate_batch(batch, False)
    best = [predictions[0].tolist() for predictions in result["predictions"]]
    return best, [float(scores[0]) for scores in result["scores"]]


def log_probabilities(model: Any, source: Tensor, sequences: Tensor) -> Tensor:
    """Exact log-probability of whole sequences (many, length), from teacher forcing."""
    function = model.options.generator_function
    many = sequences.size(0)
    start = torch.full((many, 1), BOS)
    target = torch.cat([start, sequences], 1).unsqueeze(-1)
    sources = source.expand(many, -1, -1)
    lengths = torch.full((many,), source.size(1))
    with torch.no_grad():
        output, _ = model(sources, target, lengths)
        scores = model.generator(output)
    p = getattr(functional, function)(scores)
    return p.gather(2, sequences.unsqueeze(-1)).squeeze(-1).log().sum(-1)


def best_by_enumeration(model: Any, source: Tensor, longest: int) -> tuple[list[int], float]:
    """The most probable of all sequences that end, or reach ``longest`` tokens."""
    best: tuple[list[int], float] = ([], -math.inf)
    for length in range(1, longest + 1):
        tokens = range(7)
        bodies = [
            [*body, *end]
            for body in itertools.product([t for t in tokens if t != EOS], repeat=length - 1)
            for end in ([[t] for t in tokens] if length == longest else [[EOS]])
        ]
        scores = log_probabilities(model, source, torch.tensor(bodies))
        top = int(scores.argmax())
        if scores[top] > best[1]:
            best = (bodies[top], float(scores[top]))
    return best


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_finds_the_best_of_all_sequences(function: str, seed: int) -> None:
    model = tiny(function, seed)
    source = torch.randint(4, 7, (1, 3, 1), generator=torch.Generator().manual_seed(seed))
    expected, score = best_by_enumeration(model, source, longest=4)
    ratio = ["-max_length_ratio", "0"] if IS_35 else []
    found, scores = search(model, source, *flags(beam_size=40, max_length=4), *ratio)
    assert scores[0] == pytest.approx(score, abs=1e-4)
    assert found[0] == expected


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_translations_have_positive_probability(function: str, beam: int) -> None:
    for seed in range(4):
        model = tiny(function, seed, scale=0.8)
        source = torch.randint(4, 7, (3, 4, 1), generator=torch.Generator().manual_seed(seed))
        found, scores = search(model, source, *flags(beam_size=beam, max_length=6))
        for row, (tokens, score) in enumerate(zip(found, scores, strict=True)):
            exact = log_probabilities(model, source[row : row + 1], torch.tensor([tokens]))
            assert exact > -math.inf
            assert score == pytest.approx(float(exact), abs=1e-3)


def always(model: Any, *tokens: int) -> Any:
    """Make the output layer give all its mass to ``tokens``, whatever the decoder says."""
    with torch.no_grad():
        model.generator.weight.zero_()
        model.generator.bias.copy_(torch.linspace(-30.0, -20.0, 7))
        model.generator.bias[list(tokens)] = torch.linspace(20.0, 20.2, len(tokens))
    return model


SOURCE = torch.tensor([[[4], [5]]])


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("beam", [1, 4])
class TestConstraints:
    """A search may be forced out of the support; then it leaves it by the next best token."""

    def test_min_length_holds_when_only_the_end_is_possible(self, function: str, beam: int) -> None:
        model = always(tiny(function), EOS)
        options = flags(beam_size=beam, min_length=3, max_length=6)
        found, _ = search(model, SOURCE, *options)
        assert found[0] == [6, 6, 6, EOS]  # 6 has the highest score after the end

    def test_a_banned_token_is_not_chosen_even_if_all_else_is_0(
        self, function: str, beam: int
    ) -> None:
        model = always(tiny(function), UNK)
        options = flags(beam_size=beam, max_length=3, ban_unk_token=True)
        found, _ = search(model, SOURCE, *options)
        assert UNK not in found[0]

    def test_a_repeated_ngram_is_not_chosen_even_if_all_else_is_0(
        self, function: str, beam: int
    ) -> None:
        model = always(tiny(function), 4)
        options = flags(beam_size=beam, max_length=5, block_ngram_repeat=2)
        found, _ = search(model, SOURCE, *options)
        assert beam > 1 or found[0][:2] == [4, 4]
        pairs = list(itertools.pairwise(found[0]))
        assert len(pairs) == len(set(pairs))

    def test_a_forced_prefix_of_probability_0_is_kept(self, function: str, beam: int) -> None:
        model = always(tiny(function), 4, EOS)
        prefix = torch.tensor([[[BOS], [6], [5], [EOS]]])
        options = flags(beam_size=beam, max_length=5, tgt_file_prefix=True)
        found, _ = search(model, SOURCE, *options, prefix=prefix)
        assert found[0][:2] == [6, 5]

    def test_a_search_with_one_possible_sequence_ends(self, function: str, beam: int) -> None:
        model = always(tiny(function), EOS)
        found, scores = search(model, SOURCE, *flags(beam_size=beam, max_length=50))
        assert found[0] == [EOS]
        assert scores[0] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_sampling_stays_inside_the_support(function: str) -> None:
    model = always(tiny(function), 4, 5)
    options = flags(beam_size=1, max_length=30, random_sampling_topk=-1, seed=3)
    found, _ = search(model, SOURCE, *options)
    assert set(found[0]) <= {4, 5}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gold_scores_of_impossible_targets_are_minus_infinity(function: str) -> None:
    model = always(tiny(function), EOS)
    translator = translator_of(model, *PLAIN_SCORES)
    target = torch.tensor([[[BOS], [4], [EOS]]])
    batch = {"src": SOURCE, "srclen": torch.tensor([2]), "tgt": target}
    gold = translator.translate_batch(batch, False)["gold_score"]
    assert gold.tolist() == [-math.inf]


def test_softmax_models_have_no_hook_and_give_scores() -> None:
    model = tiny("softmax")
    assert outputs_of(model) == []
    assert not model.generator._forward_hooks


def test_training_and_validation_see_scores_not_probabilities() -> None:
    model = tiny("sparsemax")
    hidden = torch.randn(5, 16)
    plain = torch.nn.functional.linear(hidden, model.generator.weight, model.generator.bias)
    for mode in (True, False):
        assert torch.equal(model.train(mode).generator(hidden), plain)


def test_impossible_is_below_every_sequence_and_above_everything_banned() -> None:
    assert -10_000 < IMPOSSIBLE - 1000 < IMPOSSIBLE < -250 * math.log(50_000)


LOSSES = {
    "softmax": softmax_loss,
    "sparsemax": sparsemax_loss,
    "entmax15": entmax15_loss,
    "evsoftmax": evsoftmax_loss,
}


@pytest.mark.parametrize("function", LOSSES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_each_generator_is_trained_with_its_own_loss(function: str, smoothing: float) -> None:
    model = tiny(function).train()
    options = parse(*TRANSFORMER, *flags(generator_function=function, label_smoothing=smoothing))
    compute = LossCompute.from_opts(options, model, model.vocabs["tgt"])
    output = torch.randn(2, 4, 16, requires_grad=True)
    target = torch.tensor([[BOS, 4, 5, 6, EOS], [BOS, 4, EOS, BLANK, BLANK]]).unsqueeze(-1)
    batch = {"tgt": target, "src": target, "srclen": torch.tensor([5, 5])}
    loss, stats = compute(batch, output, {})
    scores = model.generator(output.reshape(-1, 16))
    expected = LOSSES[function](
        scores,
        target[:, 1:, 0].reshape(-1),
        ignore_index=BLANK,
        reduction="sum",
        label_smoothing=smoothing,
    )
    assert torch.allclose(loss, expected, rtol=1e-5)
    loss.backward()
    assert output.grad is not None
    assert output.grad[1, 2:].abs().sum() == 0  # padding trains nothing
    assert stats.n_words == 6


class TestEnsembles:
    def ensemble(self, monkeypatch: pytest.MonkeyPatch, raw: bool, *functions: str) -> Any:
        models = {f"{n}.pt": tiny(f, seed=n, scale=0.8) for n, f in enumerate(functions)}

        def load(opt: Any, *args: Any, model_path: str | None = None, **kwargs: Any) -> Any:
            model = models[str(model_path)]
            return model.vocabs, model, model.options

        monkeypatch.setattr(onmt.model_builder, "load_test_model", load)
        options = Namespace(models=list(models), avg_raw_probs=raw)
        _, ensemble, _ = onmt.decoders.ensemble.load_test_model(options)
        return ensemble, list(models.values())

    def test_zeros_need_raw_probabilities(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UserError, match="add -avg_raw_probs"):
            self.ensemble(monkeypatch, False, "softmax", "sparsemax")

    @pytest.mark.parametrize("functions", [("sparsemax", "evsoftmax"), ("softmax", "entmax15")])
    def test_the_mean_of_the_members_probabilities(
        self, monkeypatch: pytest.MonkeyPatch, functions: tuple[str, ...]
    ) -> None:
        ensemble, models = self.ensemble(monkeypatch, True, *functions)
        ensemble.vocabs, ensemble.options = models[0].vocabs, models[0].options
        found, scores = search(ensemble, SOURCE, *flags(beam_size=1, max_length=3))
        tokens = torch.tensor([[BOS, *found[0]]]).unsqueeze(-1)
        total = 0.0
        with torch.no_grad():
            logits = [m.generator(m(SOURCE, tokens, torch.tensor([2]))[0]) for m in models]
        p = sum(
            getattr(functional, name)(row) for name, row in zip(functions, logits, strict=True)
        ) / len(models)
        total = p.gather(2, tokens[:, 1:]).log().sum()
        assert scores[0] == pytest.approx(float(total), abs=1e-4)


def test_rnn_models_take_a_generator_function_too() -> None:
    model = build(*RNN, *flags(generator_function="sparsemax"), words=WORDS)
    found, scores = search(model, SOURCE, *flags(beam_size=3, max_length=4))
    assert len(found[0]) <= 5
    assert scores[0] > IMPOSSIBLE
