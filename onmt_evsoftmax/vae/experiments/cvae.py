"""Conditional VAE with one categorical latent variable: "draw an even digit", "draw an odd one".

q(z | x, y), p(z | y) and p(x | z) are two-layer perceptrons; z has ten classes. The question is
whether a normalizer finds the five digits that belong to each query and gives the others nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import get_record
from onmt_evsoftmax.vae import distances, experiment, figures, latent
from onmt_evsoftmax.vae.classifier import DigitClassifier, train_classifier
from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.experiment import Experiment, Outcome
from onmt_evsoftmax.vae.training import Run, Schedule, train

QUERIES = figures.QUERIES


@dataclass
class Configuration(experiment.Configuration):
    """``recipes/vae/cvae.yaml`` explains each key."""

    may_be_zero: ClassVar[tuple[str, ...]] = ("kl_weight",)
    needs_loss: ClassVar[bool] = False

    epochs: int = 40
    batch_size: int = 16
    classifier_epochs: int = 10
    learning_rate: float = 1e-2
    temperature: float = 0.67
    kl_weight: float = 1 / 16
    eps: float = 1e-6
    double_eps: bool = False
    latent_classes: int = 10
    posterior_hidden: int = 256
    prior_hidden: int = 30
    decoder_hidden: int = 256
    evaluations: int = 30


class CVAE(nn.Module):
    """x (N, pixels) in [0, 1], y (N, 2) one-hot, z (N, K) one-hot or relaxed."""

    def __init__(self, pixels: int, c: Configuration) -> None:
        super().__init__()
        queries = len(QUERIES)
        self.classes = c.latent_classes
        self.posterior = _perceptron(pixels + queries, c.posterior_hidden, c.latent_classes)
        self.prior = _perceptron(queries, c.prior_hidden, c.latent_classes)
        self.decoder = _perceptron(c.latent_classes, c.decoder_hidden, pixels)

    def images(self) -> Tensor:
        """The mean image of each latent class (K, pixels)."""
        codes = torch.eye(self.classes).to(next(self.parameters()))
        return torch.sigmoid(self.decoder(codes))

    def prior_of(self, method: str) -> tuple[Tensor, Tensor]:
        """p(z | y) (2, K) of each query, and its support."""
        queries = torch.eye(len(QUERIES)).to(next(self.parameters()))
        return latent.exact(method, self.prior(queries))


def _perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def elbo_loss(
    model: CVAE, normalizer: str, c: Configuration, x: Tensor, y: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Reconstruction + kl_weight · KL(q ‖ p), summed over the batch as in the published code."""
    log_q = latent.log_probabilities(normalizer, model.posterior(torch.cat([x, y], -1)), c.eps)
    log_p = latent.log_probabilities(normalizer, model.prior(y), c.eps)
    z = latent.gumbel_softmax(log_q, c.temperature)
    rebuilt = F.binary_cross_entropy_with_logits(model.decoder(z), x, reduction="sum")
    if c.double_eps and get_record(normalizer).parameter("eps"):
        # The published code adds eps once more, here: a class that the prior masks then has next to
        # no gradient, and the support stays near what it was at the start.
        log_q, log_p = latent.mixed(log_q, c.eps), latent.mixed(log_p, c.eps)
    kl = latent.categorical_kl(log_q, log_p).sum()
    numbers = {"reconstruction": rebuilt.detach() / len(x), "kl": kl.detach() / len(x)}
    return rebuilt + c.kl_weight * kl, numbers


def judge(
    model: CVAE, method: str, classifier: DigitClassifier, shape: torch.Size
) -> dict[str, float]:
    """Distances between p(label | y) and the right distribution, and what the prior looks like.

    p(label | y) = Σ_k Q(label | image of z_k) p(z_k | y), Q the classifier's softmax.
    """
    prior, support = model.prior_of(method)
    labels = torch.softmax(classifier(model.images().reshape(-1, *shape)), -1).double()
    predicted = prior.double() @ labels
    target = distances.parity_targets(labels.size(-1)).to(predicted)
    drawn = [set(labels.argmax(-1)[kept].tolist()) for kept in support]
    right = [sum(digit % 2 == parity for digit in drawn[parity]) for parity in range(len(QUERIES))]
    return {
        "w1": float(distances.label_wasserstein(predicted, target).mean()),
        "total_variation": float(distances.total_variation(predicted, target).mean()),
        "legacy": float(distances.legacy_wasserstein(predicted, target).mean()),
        "modes": float(support.double().sum(-1).mean()),
        "modes_even": int(support[0].sum()),
        "modes_odd": int(support[1].sum()),
        "digits": float(len(set().union(*drawn))),
        "right_digits": float(sum(right)),
    }


class ConditionalVAE(Experiment[Configuration]):
    """The experiment: one CVAE per normalizer and seed, judged by one shared label classifier."""

    help = "even and odd digits from a conditional VAE (paper: Figures 2 and 3)"
    configuration = Configuration
    metrics: ClassVar = {
        "w1": ("W1 on labels", 3),
        "total_variation": ("total variation", 3),
        "legacy": ("distance as published", 4),
        "modes": ("modes per query", 1),
        "modes_start": ("modes at start", 1),
        "prior_moved": ("prior moved", 3),
        "digits": ("digits of 10", 1),
    }
    figures: ClassVar = {"figure2": figures.digits_and_priors, "figure3": figures.distance_curves}

    def prepare(self, shared: Run, c: Configuration, images: DataSet) -> None:
        train_classifier(shared, images, c.classifier_epochs)

    def job(
        self, run: Run, shared: Run, c: Configuration, images: DataSet, method: str
    ) -> dict[str, Outcome]:
        classifier, accuracy = train_classifier(shared, images, c.classifier_epochs)
        run.seed_stage("cvae")
        shape = images.train.pixels.shape[1:]
        x = images.train.unit().flatten(1)
        y = F.one_hot(images.train.labels % 2, len(QUERIES)).float()
        model = CVAE(x.size(1), c).to(run.device)
        judged_as = latent.methods_of(method)
        with torch.no_grad():  # a checkpoint is read by `train`, so these are the untrained ones
            initial = {name: model.prior_of(name) for name in judged_as}

        def evaluate() -> dict[str, Any]:
            return {
                f"{name} {key}": value
                for name in judged_as
                for key, value in judge(model, name, classifier, shape).items()
            }

        steps = -(-len(x) // c.batch_size) * c.epochs
        trained = train(
            run,
            "cvae",
            model,
            torch.optim.SGD(model.parameters(), lr=c.learning_rate),
            Schedule(len(x), c.batch_size, c.epochs, max(steps // c.evaluations, 1)),
            lambda batch: elbo_loss(model, method, c, x.index_select(0, batch), y[batch]),
            evaluate,
            summed=True,
        )
        outcomes = {}
        with torch.no_grad():
            decoded = model.images().reshape(-1, *shape).mul(255).round().int().tolist()
            for name, (prior_start, support_start) in initial.items():
                prior, support = model.prior_of(name)
                metrics = {
                    **judge(model, name, classifier, shape),
                    # What training did to the prior: a support that never moved is no finding.
                    "modes_start": float(support_start.double().sum(-1).mean()),
                    "prior_moved": float(distances.total_variation(prior, prior_start).mean()),
                    **trained.seconds,
                }
                shown = {
                    "classifier_accuracy": accuracy,
                    "prior": prior.tolist(),
                    "support": support.tolist(),
                    "prior_start": prior_start.tolist(),
                    "support_start": support_start.tolist(),
                    "images": decoded,
                }
                own = [_own(entry, f"{name} ") for entry in trained.history]
                outcomes[name] = Outcome(metrics, own, shown)
        return outcomes


def _own(entry: dict[str, Any], prefix: str) -> dict[str, Any]:
    """What an evaluation says of one method."""
    found = {k.removeprefix(prefix): v for k, v in entry.items() if k.startswith(prefix)}
    return {"step": entry["step"], **found}


EXPERIMENT = ConditionalVAE()
