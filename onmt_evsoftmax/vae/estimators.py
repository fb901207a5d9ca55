"""The gradient of E_q[cost(z)] with respect to q's scores and to the cost's own parameters.

Every estimator returns one number per sample whose *value* estimates the expectation and whose
*gradient*, by autograd, estimates its gradient. ``marginalize`` is exact; the score-function family
is unbiased; the Gumbel family is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import normalizer_names, title_of
from onmt_evsoftmax.vae.latent import gumbel_noise, gumbel_softmax


class Cost(Protocol):
    """A cost of latent classes for a batch of N samples."""

    def pairs(self, rows: Tensor, classes: Tensor) -> Tensor:
        """Costs (P,) of P pairs of a sample (P,) and a class (P,)."""

    def relaxed(self, z: Tensor) -> Tensor:
        """Costs (N,) of relaxed one-hot vectors (N, K)."""


def marginalize(p: Tensor, support: Tensor, cost: Cost, negligible: float = 0.0) -> Tensor:
    """Σ_z p(z) cost(z) (N,) over the support (N, K) only (True = has mass): the rest is not run.

    Nor are pairs with p below ``negligible``. At 1e-7, the rounding of float32, they change neither
    the value nor the gradient, and a trained classifier has many.
    """
    rows, classes = (support & (p >= negligible)).nonzero(as_tuple=True)
    weighted = p[rows, classes] * cost.pairs(rows, classes)
    return torch.zeros_like(p[:, 0]).index_add(0, rows, weighted)


class Estimator(nn.Module):
    """``forward(scores, cost, context)``: scores (N, K) of a softmax, context (N, D) of samples."""

    title: ClassVar[str]

    def __init__(self, context: int = 0) -> None:
        super().__init__()

    def forward(self, scores: Tensor, cost: Cost, context: Tensor) -> Tensor:
        raise NotImplementedError


class ScoreFunction(Estimator):
    """SFE with a moving average of the cost as baseline."""

    title = "SFE"
    decay: ClassVar[float] = 0.99
    average: Tensor
    started: Tensor

    def __init__(self, context: int = 0) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    def baseline(self, scores: Tensor, cost: Cost, context: Tensor) -> Tensor:
        """What is subtracted from the cost; it must not depend on the sample drawn."""
        return self.average

    def forward(self, scores: Tensor, cost: Cost, context: Tensor) -> Tensor:
        log_q = torch.log_softmax(scores, -1)
        classes = _draw(log_q)
        values = cost.pairs(_rows(scores), classes)
        baseline = self.baseline(scores, cost, context)
        result = values + _score((values - baseline).detach(), log_q, classes)
        self.learn(values.detach())
        return result + self.baseline_loss(values.detach(), baseline)

    def learn(self, values: Tensor) -> None:
        """Update the moving average, after it was used."""
        if self.training:
            mean = values.mean()
            decayed = self.decay * self.average + (1 - self.decay) * mean
            self.average.copy_(torch.where(self.started, decayed, mean))
            self.started.fill_(True)

    def baseline_loss(self, values: Tensor, baseline: Tensor) -> Tensor:
        """0 in value, with the gradient that trains the baseline."""
        return torch.zeros_like(values)


class SelfCritic(ScoreFunction):
    """SFE+: the cost of the most probable class is the baseline (Rennie et al., 2017)."""

    title = "SFE+"

    def baseline(self, scores: Tensor, cost: Cost, context: Tensor) -> Tensor:
        with torch.no_grad():
            return cost.pairs(_rows(scores), scores.argmax(-1))


class NVIL(ScoreFunction):
    """A baseline learned from the sample, on top of the average (Mnih & Gregor, 2014)."""

    title = "NVIL"
    hidden: ClassVar[int] = 128

    def __init__(self, context: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(context, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1)
        )

    def baseline(self, scores: Tensor, cost: Cost, context: Tensor) -> Tensor:
        learned: Tensor = self.network(context)
        return self.average + learned.squeeze(-1)

    def baseline_loss(self, values: Tensor, baseline: Tensor) -> Tensor:
        squared = (values - baseline) ** 2
        return squared - squared.detach()


class SumAndSample(Estimator):
    """The most probable class summed, one of the others sampled (Liu et al., 2019; k = 1).

    The summed class's cost, which is there anyway, is the sampled one's baseline.
    """

    title = "Sum&Sample"

    def forward(self, scores: Tensor, cost: Cost, context: Tensor) -> Tensor:
        log_q = torch.log_softmax(scores, -1)
        rows = _rows(scores)
        top = scores.argmax(-1)
        rest = log_q.detach().scatter(-1, top.unsqueeze(-1), -torch.inf)
        other = _draw(rest)
        both = cost.pairs(torch.cat([rows, rows]), torch.cat([top, other]))
        top_cost, other_cost = both.chunk(2)
        top_q = log_q[rows, top].exp()
        # Σ_{z≠top} q(z) f(z) = (1 − q_top) E[f(z) | z ≠ top]; its gradient is
        # (1 − q_top) E[f ∇log q + ∇f | z ≠ top], and f may be shifted by any constant b
        # if q_top ∇log q_top (f_top − b) is shifted too: with b = f_top that term is 0.
        remaining = (1 - top_q).detach()
        score = _score((other_cost - top_cost).detach(), log_q, other)
        return top_q.detach() * top_cost + remaining * (other_cost + score)


@dataclass(frozen=True)
class Temperature:
    """max(minimum, start · exp(−decay · t)) at training step t, renewed every so many steps."""

    start: float = 0.67
    decay: float = 0.0
    minimum: float = 0.0
    every: int = 1

    def at(self, step: int) -> float:
        return max(self.minimum, self.start * math.exp(-self.decay * (step - step % self.every)))


class Gumbel(Estimator):
    """Gumbel-Softmax: biased, with little variance. ``steps`` counts training steps."""

    title = "Gumbel"
    steps: Tensor

    def __init__(self, context: int = 0, temperature: Temperature | None = None) -> None:
        super().__init__()
        self.temperature = temperature or Temperature()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def sample(self, scores: Tensor) -> Tensor:
        """A relaxed one-hot sample (N, K) at this step's temperature."""
        temperature = self.temperature.at(int(self.steps))
        if self.training:
            self.steps += 1
        return gumbel_softmax(torch.log_softmax(scores, -1), temperature)

    def forward(self, scores: Tensor, cost: Cost, context: Tensor) -> Tensor:
        return cost.relaxed(self.sample(scores))


class StraightThroughGumbel(Gumbel):
    """One-hot forwards, Gumbel-Softmax backwards."""

    title = "ST Gumbel"

    def forward(self, scores: Tensor, cost: Cost, context: Tensor) -> Tensor:
        soft = self.sample(scores)
        hard = F.one_hot(soft.argmax(-1), soft.size(-1)).to(soft)
        return cost.relaxed(hard + soft - soft.detach())


#: The normalizer of the q(z) that estimators sample from.
SAMPLED_FROM = "softmax"

#: Name in configurations → class; an estimator that is listed here works everywhere.
ESTIMATORS: dict[str, type[Estimator]] = {
    "sfe": ScoreFunction,
    "sfe+": SelfCritic,
    "nvil": NVIL,
    "sum-and-sample": SumAndSample,
    "gumbel": Gumbel,
    "st-gumbel": StraightThroughGumbel,
}


def title(method: str) -> str:
    """What a reader sees for an estimator or a normalizer."""
    return ESTIMATORS[method].title if method in ESTIMATORS else title_of(method)


def in_order(methods: Iterable[str]) -> list[str]:
    """Normalizers in the registry's order, then estimators, then what is neither."""
    order = [*normalizer_names(), *ESTIMATORS]
    return sorted(methods, key=lambda name: order.index(name) if name in order else len(order))


def _rows(scores: Tensor) -> Tensor:
    return torch.arange(len(scores), device=scores.device)


def _draw(log_q: Tensor) -> Tensor:
    """A class (N,) of each row of log probabilities (N, K), which need not be normalised."""
    return (log_q.detach() + gumbel_noise(log_q)).argmax(-1)


def _score(advantage: Tensor, log_q: Tensor, classes: Tensor) -> Tensor:
    """0 in value; in gradient advantage · ∇log q(class)."""
    chosen = log_q.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    return advantage * (chosen - chosen.detach())
