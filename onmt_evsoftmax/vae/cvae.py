"""Conditional VAE with one categorical latent variable: "draw an even digit", "draw an odd one".

q(z | x, y), p(z | y) and p(x | z) are two-layer perceptrons; z has ten classes. The question is
whether a normalizer finds the five digits that belong to each query and gives the others nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_evsoftmax.vae import distances, latent
from onmt_evsoftmax.vae.classifier import DigitClassifier, train_classifier
from onmt_evsoftmax.vae.configuration import check_data, check_names, check_numbers
from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.training import SECONDS, Run, Schedule, seconds_per_epoch, train

QUERIES = ("even", "odd")

#: Threads that pay on a CPU.
THREADS = 1

#: Metric → (title, decimals), in the order of the table.
METRICS = {
    "w1": ("W1 on labels", 3),
    "total_variation": ("total variation", 3),
    "legacy": ("legacy distance", 4),
    "modes": ("modes per query", 1),
    "modes_start": ("modes at start", 1),
    "prior_moved": ("prior moved", 3),
    "digits": ("digits of 10", 1),
    **SECONDS,
}


@dataclass
class Configuration:
    """``recipes/vae/cvae.yaml`` explains each key."""

    data: str = "digits"
    normalizers: list[str] = field(
        default_factory=lambda: ["softmax", "sparsemax", "entmax15", "evsoftmax"]
    )
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    shared_seed: int = 0
    classifier_epochs: int = 10
    epochs: int = 40
    batch_size: int = 16
    learning_rate: float = 1e-2
    temperature: float = 0.67
    kl_weight: float = 1 / 16
    eps: float = 1e-6
    latent_classes: int = 10
    posterior_hidden: int = 256
    prior_hidden: int = 30
    decoder_hidden: int = 256
    evaluations: int = 30

    def __post_init__(self) -> None:
        check_names(self.normalizers)
        check_data(self.data, "digits", "mnist")
        check_numbers(self, "kl_weight")


class CVAE(nn.Module):
    """x (N, pixels) in [0, 1], y (N, 2) one-hot, z (N, K) one-hot or relaxed."""

    def __init__(self, pixels: int, configuration: Configuration) -> None:
        super().__init__()
        c = configuration
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
        """p(z | y) (2, K) of each query, and its support; ``posthoc`` sparsifies softmax's."""
        queries = torch.eye(len(QUERIES)).to(next(self.parameters()))
        last = self.prior[-1]
        assert isinstance(last, nn.Linear)
        return latent.of_layer(method, self.prior[:-1](queries), last.weight, last.bias)


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
    kl = latent.categorical_kl(log_q, log_p).sum()
    numbers = {"reconstruction": rebuilt.detach() / len(x), "kl": kl.detach() / len(x)}
    return rebuilt + c.kl_weight * kl, numbers


def judge(model: CVAE, method: str, classifier: DigitClassifier, shape: torch.Size) -> dict:
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


def prepare(run: Run, c: Configuration, data: DataSet) -> DigitClassifier:
    """What all jobs share: the label classifier."""
    return train_classifier(run, data, c.classifier_epochs)[0]


def job(
    run: Run, shared: Run, c: Configuration, data: DataSet, normalizer: str
) -> dict[str, dict[str, Any]]:
    """Train one model; method → metrics, history and what Figure 2 shows."""
    classifier, accuracy = train_classifier(shared, data, c.classifier_epochs)
    run.seed_stage("cvae")
    shape = data.train.pixels.shape[1:]
    images = data.train.unit().flatten(1)
    queries = F.one_hot(data.train.labels % 2, len(QUERIES)).float()
    model = CVAE(images.size(1), c).to(run.device)
    methods = latent.methods_of(normalizer)
    with torch.no_grad():  # a checkpoint is read by `train`, so these are the untrained ones
        initial = {method: model.prior_of(method) for method in methods}

    def loss(batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return elbo_loss(model, normalizer, c, images[batch], queries[batch])

    def evaluate() -> dict[str, Any]:
        return {
            f"{method} {key}": value
            for method in methods
            for key, value in judge(model, method, classifier, shape).items()
        }

    steps = -(-len(images) // c.batch_size) * c.epochs
    schedule = Schedule(len(images), c.batch_size, c.epochs, max(steps // c.evaluations, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=c.learning_rate)
    history = train(run, "cvae", model, optimizer, schedule, loss, evaluate, summed=True)
    results: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        for method in methods:
            prior, support = model.prior_of(method)
            prior_start, support_start = initial[method]
            metrics = judge(model, method, classifier, shape)
            # What training did to the prior: a support that never moved is no finding.
            metrics["modes_start"] = float(support_start.double().sum(-1).mean())
            metrics["prior_moved"] = float(distances.total_variation(prior, prior_start).mean())
            metrics.update(seconds_per_epoch(run, "cvae"))
            results[method] = {
                "metrics": metrics,
                "classifier_accuracy": accuracy,
                "prior": prior.tolist(),
                "support": support.tolist(),
                "prior_start": prior_start.tolist(),
                "support_start": support_start.tolist(),
                "images": model.images().reshape(-1, *shape).mul(255).round().int().tolist(),
                "history": [
                    {"step": entry["step"], **_of(entry, f"{method} ")} for entry in history
                ],
            }
    return results


def _of(entry: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in entry.items() if k.startswith(prefix)}
