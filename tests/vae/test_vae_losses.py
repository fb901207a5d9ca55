"""The losses and blocks of the VAE models against formulas written out with torch.distributions."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from functional import evsoftmax
from torch import nn
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from onmt_evsoftmax.normalizers.registry import get_loss
from onmt_evsoftmax.vae import latent, training
from onmt_evsoftmax.vae.experiments import cvae
from onmt_evsoftmax.vae.semisupervised import SSVAE, NegativeElbo, _bernoulli_cost, losses
from onmt_evsoftmax.vae.wideresnet import _Block

NAMES = ["softmax", "sparsemax", "entmax15", "evsoftmax"]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(3)


def test_the_cost_of_a_class_is_its_negative_elbo():
    model = SSVAE(16, 10, width=12, hidden=10, gaussian=3, layers=2).double()
    inference, generative = model.inference, model.generative
    with torch.no_grad():  # far from 1, so that a deviation is not mistaken for a variance
        inference.rest[-1].bias.normal_(std=2)
    x = torch.bernoulli(torch.full((6, 16), 0.5, dtype=torch.float64))
    noise = torch.randn(6, 10, 3, dtype=torch.float64)
    rows, classes = torch.arange(6), torch.tensor([0, 1, 2, 3, 4, 9])

    z = F.one_hot(classes, 10).double()
    mean, log_variance = inference.rest(inference.first(torch.cat([x, z], -1))).chunk(2, -1)
    posterior = Normal(mean, log_variance.exp().sqrt())
    h = posterior.mean + posterior.stddev * noise[rows, classes]
    image = Bernoulli(logits=generative.rest(generative.first(torch.cat([h, z], -1))))
    divergence = kl_divergence(posterior, Normal(torch.zeros_like(mean), 1.0)).sum(-1)
    expected = divergence - image.log_prob(x).sum(-1)
    cost = NegativeElbo(model, x, noise).pairs(rows, classes)
    torch.testing.assert_close(cost, expected)
    parameters = [*inference.parameters(), *generative.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(cost.sum(), parameters),
        torch.autograd.grad(expected.sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_pixel_that_the_model_excludes_has_a_finite_cost_and_its_gradient():
    scores = torch.tensor([[300.0, -300.0, 0.0]], requires_grad=True)
    cost = _bernoulli_cost(scores, torch.tensor([[0.0, 1.0, 1.0]]))
    cost.sum().backward()
    assert cost.isfinite()
    torch.testing.assert_close(scores.grad, torch.tensor([[1.0, -1.0, -0.5]]))


@pytest.mark.parametrize("name", NAMES)
def test_the_labelled_loss_is_the_elbo_and_the_normalizers_own_loss(name):
    model = SSVAE(16, 10, width=12, hidden=10, gaussian=3).double()
    with torch.no_grad():
        model.scores.weight.mul_(20)  # so that sparse normalizers are sparse
    x = torch.bernoulli(torch.full((30, 16), 0.5, dtype=torch.float64))
    labels = torch.arange(30) % 10
    torch.manual_seed(5)
    whole = losses(model, name, x, labels).known
    torch.manual_seed(5)  # the same noise
    elbo = NegativeElbo(model, x).pairs(torch.arange(30), labels).mean()
    own = get_loss(name)(model.classify(x), labels)
    torch.testing.assert_close(whole - elbo, own)
    others = [get_loss(other)(model.classify(x), labels) for other in NAMES if other != name]
    assert all(abs(own - other) > 1e-3 for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_the_cvae_loss_is_reconstruction_and_kl_of_posterior_from_prior(name):
    c = cvae.Configuration(kl_weight=0.3)
    model = cvae.CVAE(20, c).double()
    with torch.no_grad():
        model.prior[-1].bias.normal_()  # so that KL(q ‖ p) and KL(p ‖ q) differ
        model.posterior[-1].bias.normal_()
    x = torch.rand(8, 20, dtype=torch.float64)
    y = F.one_hot(torch.arange(8) % 2, 2).double()
    torch.manual_seed(1)
    loss, numbers = cvae.elbo_loss(model, name, c, x, y)

    log_q = latent.log_probabilities(name, model.posterior(torch.cat([x, y], -1)), c.eps)
    log_p = latent.log_probabilities(name, model.prior(y), c.eps)
    q, p = Categorical(logits=log_q), Categorical(logits=log_p)
    torch.manual_seed(1)  # the same Gumbel noise
    image = torch.sigmoid(model.decoder(latent.gumbel_softmax(log_q, c.temperature)))
    rebuilt = F.binary_cross_entropy(image, x, reduction="sum")
    kl = kl_divergence(q, p).sum()
    torch.testing.assert_close(loss, rebuilt + 0.3 * kl)
    torch.testing.assert_close(numbers["kl"], (kl / 8).detach())
    assert abs(kl - kl_divergence(p, q).sum()) > 1e-2


def test_the_published_double_epsilon_is_that_of_the_public_code_and_freezes_masked_classes():
    """It takes the KL of Categorical(evsoftmax(scores, eps) + eps); it samples without that sum."""
    one, two = (cvae.Configuration(kl_weight=1.0, double_eps=double) for double in (False, True))
    model = cvae.CVAE(20, one).double()
    with torch.no_grad():
        model.prior[-1].bias.copy_(torch.linspace(-2, 2, 10))
    x, y = torch.rand(8, 20, dtype=torch.float64), F.one_hot(torch.arange(8) % 2, 2).double()

    def prior_gradient(c: cvae.Configuration, name: str = "evsoftmax") -> torch.Tensor:
        model.zero_grad()
        torch.manual_seed(1)
        loss, numbers = cvae.elbo_loss(model, name, c, x, y)
        loss.backward()
        return model.prior[-1].bias.grad.clone(), numbers

    single, _ = prior_gradient(one)
    double, numbers = prior_gradient(two)
    scores = model.posterior(torch.cat([x, y], -1)), model.prior(y)
    q, p = (Categorical(probs=evsoftmax(s, eps=one.eps) + one.eps) for s in scores)
    torch.testing.assert_close(numbers["kl"], kl_divergence(q, p).mean())
    masked = ~evsoftmax(scores[1], return_support=True)[1].any(0)
    assert masked.any()
    assert double[masked].abs().max() < 0.2 * single[masked].abs().max()
    for name in ("softmax", "sparsemax"):  # without an eps of their own, nothing changes
        assert torch.equal(prior_gradient(one, name)[0], prior_gradient(two, name)[0])


@pytest.mark.parametrize(("outputs", "stride"), [(4, 1), (4, 2), (6, 1), (6, 2)])
def test_a_wide_resnet_block_is_its_formula(outputs, stride):
    block = _Block(4, outputs, stride).double().eval()
    for norm in (block.norm1, block.norm2):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)

    def active(norm: nn.BatchNorm2d, v: torch.Tensor) -> torch.Tensor:
        mean, variance = norm.running_mean.view(1, -1, 1, 1), norm.running_var.view(1, -1, 1, 1)
        return ((v - mean) / (variance + norm.eps).sqrt()).clamp(min=0)

    first = F.conv2d(active(block.norm1, x), block.conv1.weight, stride=stride, padding=1)
    residual = F.conv2d(active(block.norm2, first), block.conv2.weight, padding=1)
    # Where the shape changes, the shortcut starts at the activated x: both paths are pre-activated.
    changes = (outputs, stride) != (4, 1)
    shortcut = F.conv2d(active(block.norm1, x), block.skip.weight, stride=stride) if changes else x
    torch.testing.assert_close(block(x), shortcut + residual)


@pytest.mark.parametrize("every", [0, 1])
def test_evaluation_is_in_evaluation_mode_without_gradients_and_training_is_not(every, tmp_path):
    module = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
    training_mode: list[bool] = []
    evaluations: list[tuple[bool, bool]] = []

    def loss(batch: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        training_mode.append(all(m.training for m in module.modules()))
        return module(torch.ones(len(batch), 1)).sum(), {}

    def evaluate() -> dict[str, float]:
        any_training = any(m.training for m in module.modules())
        evaluations.append((any_training, torch.is_grad_enabled()))
        return {}

    run = training.Run(tmp_path, 0, torch.device("cpu"), tensorboard=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = training.Schedule(4, 2, 2, every)
    training.train(run, "x", module, optimizer, schedule, loss, evaluate)
    assert training_mode == [True] * 4
    assert evaluations == [(False, False)] * (5 if every else 3)
    assert not module.training


def test_averages_of_a_gradient_that_stopped_sink_to_zero_and_not_to_denormal_numbers(tmp_path):
    """Those make Adam's step five times as long; the forward pass keeps them."""
    module = nn.Linear(2, 1, bias=False)
    lowest = torch.finfo(torch.float32).tiny
    steps = itertools.count()

    def loss(batch: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert torch.tensor(lowest) / 2 > 0
        once = 1.0 if next(steps) == 0 else 0.0
        return (module.weight * torch.tensor([once, 1.0])).sum(), {}

    run = training.Run(tmp_path, 0, torch.device("cpu"), tensorboard=False)
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    training.train(run, "x", module, optimizer, training.Schedule(1000, 1, 1), loss, dict)
    average = optimizer.state[module.weight]["exp_avg"][0]
    assert average[0] == 0
    assert average[1] > 0.9
