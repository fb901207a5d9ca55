"""The output layer: trained with its own loss, and used by translation with its own zeros.

OpenNMT-py's translation applies log-softmax to whatever the generator returns. That leaves
log-probabilities as they are, so while translating the generator returns those of its normalizer.

Probabilities that are exactly 0 would be −inf in a search that knows only large negative numbers:
a banned token (−1e20) would then win over an impossible one, a forced token could not be chosen,
and dead hypotheses would tie. So a search sees −5000 and below instead: under every possible
sequence, over everything banned, and in the order of the scores, so that a search which is forced
out of the support leaves it by the best way.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import get_loss, get_normalizer
from onmt_evsoftmax.opennmt.patching import around
from onmt_evsoftmax.opennmt.settings import STOCK, Settings, record_of
from onmt_evsoftmax.report.console import UserError

# log-probability that a search sees for probability 0 (see above).
IMPOSSIBLE = -5000.0


class Output:
    """A forward hook on a generator: while ``active``, scores become log-probabilities."""

    def __init__(self, name: str) -> None:
        self.record = record_of(name)
        self.normalizer = get_normalizer(self.record).eval()
        self.active = False
        self.order: Tensor | None = None

    def __call__(self, generator: nn.Module, inputs: Any, scores: Tensor) -> Tensor:
        """``scores`` (…, vocabulary); the same shape out."""
        if not self.active:
            return scores
        scores = scores.float()
        self.order = torch.log_softmax(scores, -1)
        return self.log_probabilities(scores)

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """log p, −inf where p is 0; in log space where the normalizer has one."""
        if self.record.log_function is not None:
            exact = {p.name: p.default for p in self.record.parameters}
            return self.record.log_function(scores, **exact)
        p: Tensor = self.normalizer(scores)
        return p.log()


def put_output(model: Any, options: Namespace) -> None:
    """Give ``model`` its output normalizer if it is not softmax."""
    name = Settings.of(options).generator
    if name != STOCK:
        attach_output(model, name)


def attach_output(model: Any, name: str) -> None:
    """Hook an :class:`Output` onto the model's generator, asleep."""
    # A plain attribute: quantisation replaces the generator but keeps its hooks.
    model.output_normalizer = Output(name)
    model.generator.register_forward_hook(model.output_normalizer)


def outputs_of(model: Any) -> list[Output]:
    """The output normalizers of a model, or of an ensemble's members."""
    members = getattr(model, "models", [model])
    return [m.output_normalizer for m in members if hasattr(m, "output_normalizer")]


def patch_translator(module: Any) -> None:
    """``onmt.translate.translator``: the search works on the model's own probabilities."""

    @around(module.Inference)
    def _decode_and_generate(
        original: Any, self: Any, *args: Any, step: Any = None, **kwargs: Any
    ) -> Any:
        outputs = outputs_of(self.model)
        if not outputs:
            return original(self, *args, step=step, **kwargs)
        for output in outputs:
            output.active = True
        try:
            log_probs, attention = original(self, *args, step=step, **kwargs)
        finally:
            for output in outputs:
                output.active = False
        if step is not None:  # a search; without a step it is scoring, where 0 is 0
            log_probs = searchable(log_probs, outputs)
        return log_probs, attention


def searchable(log_probs: Tensor, outputs: list[Output]) -> Tensor:
    """Replace −inf by :data:`IMPOSSIBLE` and below, ordered as the scores are."""
    orders = [output.order for output in outputs if output.order is not None]
    order = torch.stack(orders).mean(0).view_as(log_probs)
    return torch.where(log_probs == -torch.inf, IMPOSSIBLE + order.clamp(min=-1000.0), log_probs)


def patch_ensemble(module: Any) -> None:
    """``onmt.decoders.ensemble``: members with zeros are averaged as probabilities or not."""

    @around(module)
    def load_test_model(original: Any, opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        vocabs, model, options = original(opt, *args, **kwargs)
        if outputs_of(model):
            if not opt.avg_raw_probs:
                raise UserError(
                    "the output layer of a model in this ensemble gives probabilities of 0, "
                    "whose logarithms cannot be averaged: add -avg_raw_probs"
                )
            for member in model.models:
                if not hasattr(member, "output_normalizer"):
                    attach_output(member, STOCK)
        return vocabs, model, options


class Loss(nn.Module):
    """The loss of a normalizer, summed, as OpenNMT-py's trainer calls it."""

    def __init__(self, name: str, ignore_index: int, label_smoothing: float) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        try:
            self.function = get_loss(
                name, ignore_index=ignore_index, reduction="sum", label_smoothing=label_smoothing
            )
        except ValueError as error:
            raise UserError(f"generator_function: {error}") from error

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """``scores`` (tokens, vocabulary), ``target`` (tokens): the sum over real tokens."""
        return self.function(scores, target)


def patch_loss(module: Any) -> None:
    """``onmt.utils.loss``: each generator function is trained with the loss that belongs to it."""

    @around(module.LossCompute)
    def from_opts(original: Any, cls: Any, opt: Namespace, *args: Any, **kwargs: Any) -> Any:
        built = original(cls, opt, *args, **kwargs)
        name = Settings.of(opt).generator
        if name != STOCK:
            built.criterion = Loss(name, built.padding_idx, opt.label_smoothing)
        return built
