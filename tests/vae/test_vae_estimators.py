"""Gradients of every estimator against the exact gradient of a model small enough to have one."""

from __future__ import annotations

import pytest
import torch

from onmt_evsoftmax.normalizers.registry import get_normalizer
from onmt_evsoftmax.vae import estimators, latent
from onmt_evsoftmax.vae.estimators import ESTIMATORS, Temperature, marginalize

CLASSES = 4
COPIES = 200_000  # draws, as the rows of one batch
UNBIASED = ("sfe", "sfe+", "nvil", "sum-and-sample")
BIASED = ("gumbel", "st-gumbel")


class Quadratic:
    """cost(z) = (table · z)² with a parameter table; evaluations are counted."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table, self.evaluated = table, 0

    def pairs(self, rows, classes):
        self.evaluated += len(rows)
        return self.table[classes] ** 2

    def relaxed(self, z):
        return (z @ self.table) ** 2


def model():
    scores = torch.tensor([0.4, 1.4, -0.8, 0.1], dtype=torch.float64, requires_grad=True)
    table = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64, requires_grad=True)
    return scores, table


def exact():
    scores, table = model()
    value = (torch.softmax(scores, -1) * table**2).sum()
    return value.detach(), *torch.autograd.grad(value, (scores, table))


def draws(name, **options):
    """Value and gradients of many independent draws: (COPIES,), (COPIES, K), (COPIES, K)."""
    torch.manual_seed(5)
    scores, table = model()
    many = scores.detach().expand(COPIES, -1).clone().requires_grad_()
    tables = table.detach().expand(COPIES, -1).clone().requires_grad_()

    class EachItsOwn(Quadratic):
        def pairs(self, rows, classes):
            self.evaluated += len(rows)
            return self.table[rows, classes] ** 2

        def relaxed(self, z):
            return (z * self.table).sum(-1) ** 2

    estimator = ESTIMATORS[name](3, **options).double()
    if hasattr(estimator, "average"):
        estimator.average.fill_(0.7)
    context = torch.ones(COPIES, 3, dtype=torch.float64)
    cost = EachItsOwn(tables)
    values = estimator(many, cost, context)
    gradients = torch.autograd.grad(values.sum(), (many, tables))
    return values.detach(), *gradients, cost.evaluated / COPIES


def z_scores(samples, truth):
    error = samples.std(0) / COPIES**0.5
    return ((samples.mean(0) - truth).abs() / error.clamp(min=1e-12)).max()


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_estimators_are_within_sampling_error(name):
    for sampled, truth in zip(draws(name)[:3], exact(), strict=True):
        assert z_scores(sampled, truth) < 4.5


@pytest.mark.parametrize("name", BIASED)
def test_biased_estimators_are_known_to_differ(name):
    _, scores_gradient, _, _ = draws(name)
    assert z_scores(scores_gradient, exact()[1]) > 20


def test_the_bias_of_gumbel_vanishes_with_its_temperature():
    truth = exact()[1]
    bias = [
        (draws("gumbel", temperature=Temperature(t))[1].mean(0) - truth).abs().max()
        for t in (2.0, 0.67, 0.1)
    ]
    assert bias[0] > bias[1] > 3 * bias[2]


def test_the_temperature_falls_in_steps_to_its_minimum_and_is_resumed():
    schedule = Temperature(1.0, 1e-4, 0.5, every=1000)
    steps = (0, 999, 1000, 2500, 6000, 10**6)
    expected = [1, 1, 0.904837418, 0.818730753, 0.548811636, 0.5]
    assert [schedule.at(step) for step in steps] == pytest.approx(expected)
    assert Temperature(0.67).at(10**6) == 0.67
    estimator = estimators.Gumbel(0, schedule)
    estimator.steps.fill_(2500)
    estimator.sample(torch.zeros(1, 4))
    again = estimators.Gumbel(0, schedule)
    again.load_state_dict(estimator.state_dict())
    assert int(again.steps) == 2501
    again.eval().sample(torch.zeros(1, 4))
    assert int(again.steps) == 2501


@pytest.mark.parametrize("name", BIASED)
def test_biased_estimators_have_the_gradient_of_their_relaxation(name):
    """By finite differences with the same noise, of a cost that is linear in z.

    There the straight-through gradient, whose own value is a step function, is Gumbel's.
    """
    direction = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)

    class Linear:
        def relaxed(self, z):
            return z @ direction

    def value(scores, which):
        torch.manual_seed(4)
        return ESTIMATORS[which](0)(scores, Linear(), scores)

    scores = torch.randn(20, CLASSES, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(scores, name).sum(), scores)
    step = 1e-6 * torch.randn(20, CLASSES, dtype=torch.float64)
    change = value(scores + step, "gumbel") - value(scores - step, "gumbel")
    torch.testing.assert_close((gradient * step).sum(-1), change / 2, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "calls"), [("sfe", 1), ("sfe+", 2), ("nvil", 1), ("sum-and-sample", 2)]
)
def test_cost_evaluations_per_sample(name, calls):
    assert draws(name)[3] == calls


def test_baselines_reduce_the_variance():
    spread = {name: draws(name)[1].var(0).sum() for name in ("sfe", "sum-and-sample")}
    assert spread["sum-and-sample"] < spread["sfe"]


def test_the_moving_average_and_the_learned_baseline_learn():
    torch.manual_seed(0)
    scores, table = model()
    estimator = estimators.NVIL(2).double()
    optimizer = torch.optim.Adam(estimator.parameters(), lr=1e-2)
    rows = scores.detach().expand(256, -1)
    context = torch.randn(256, 2, dtype=torch.float64)
    for _ in range(300):
        optimizer.zero_grad()
        estimator(rows, Quadratic(table.detach()), context).mean().backward()
        optimizer.step()
    guess = estimator.baseline(rows, Quadratic(table), context)
    assert guess.mean().item() == pytest.approx(exact()[0].item(), rel=0.2)
    before = estimator.average.clone()
    estimator.eval()(rows, Quadratic(table.detach()), context)
    assert torch.equal(before, estimator.average)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "evsoftmax"])
def test_the_support_is_enough(name):
    torch.manual_seed(1)
    scores = (2 * torch.randn(50, 6, dtype=torch.float64)).requires_grad_()
    table = torch.randn(6, dtype=torch.float64, requires_grad=True)
    p, support = get_normalizer(name).eval()(scores, return_support=True)
    sparse, full = Quadratic(table), Quadratic(table)
    over_support = marginalize(p, support, sparse)
    over_all = marginalize(p, torch.ones_like(support), full)
    torch.testing.assert_close(over_support, over_all, rtol=0, atol=1e-12)
    inputs = (scores, table)
    for a, b in zip(
        torch.autograd.grad(over_support.sum(), inputs, retain_graph=True),
        torch.autograd.grad(over_all.sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert sparse.evaluated == int(support.sum())


def test_gumbel_samples_follow_their_distribution():
    torch.manual_seed(2)
    log_p = torch.log_softmax(torch.tensor([0.4, 1.4, -0.8]), -1)
    z = latent.gumbel_softmax(log_p.expand(100_000, -1), 0.67)
    torch.testing.assert_close(z.sum(-1), torch.ones(100_000))
    shares = torch.bincount(z.argmax(-1), minlength=3) / 100_000
    torch.testing.assert_close(shares, log_p.exp(), rtol=0, atol=6e-3)
