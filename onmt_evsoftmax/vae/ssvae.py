"""Semi-supervised VAE: an image has a digit z, known for a tenth of them, and a Gaussian h.

p(x, z, h) = p(x | z, h) p(z) p(h) with uniform p(z); q(z | x) is the classifier that is judged. For
unlabelled images the expectation over z is exact over the support of q — only pairs of an image and
a class that has mass are encoded and decoded — or estimated from samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_evsoftmax.console import unknown_name
from onmt_evsoftmax.functional import posthoc_evidential
from onmt_evsoftmax.normalizers import get_loss
from onmt_evsoftmax.vae import latent
from onmt_evsoftmax.vae.configuration import check_names, check_positive
from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.estimators import ESTIMATORS, Estimator, marginalize
from onmt_evsoftmax.vae.training import Run, Schedule, seconds_per_epoch, train

#: Threads that pay on a CPU.
THREADS = 1

#: Metric → (title, decimals), in the order of the table.
METRICS = {
    "accuracy": ("accuracy %", 2),
    "calls_training": ("decoder calls, training", 2),
    "calls_test": ("decoder calls, test", 2),
    "pretrained_accuracy": ("labels only %", 2),
    "seconds_per_epoch": ("s / epoch", 2),
}


@dataclass
class Configuration:
    """``recipes/vae/ssvae.yaml`` explains each key."""

    data: str = "digits"
    normalizers: list[str] = field(
        default_factory=lambda: ["softmax", "sparsemax", "entmax15", "evsoftmax"]
    )
    estimators: list[str] = field(default_factory=lambda: list(ESTIMATORS))
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    shared_seed: int = 0
    labelled: float = 0.1
    pretraining_epochs: int = 100
    epochs: int = 30
    batch_size: int = 64
    learning_rate: float = 5e-4
    unlabelled_weight: float = 0.0
    temperature: float = 0.67
    classifier_hidden: int = 256
    hidden: int = 128
    gaussian: int = 8

    def __post_init__(self) -> None:
        check_names(self.normalizers)
        for name in self.normalizers:
            get_loss(name)
        for name in self.estimators:
            if name not in ESTIMATORS:
                raise ValueError(unknown_name("estimator", name, ESTIMATORS))
        check_positive(self, "epochs", "batch_size", "learning_rate", "temperature")
        if not 0 < self.labelled < 1:
            raise ValueError(f"labelled must be between 0 and 1, not {self.labelled}")


class Decoder(nn.Module):
    """p(x | z, h): a row of scores (R, pixels) per row of z's contribution and of h (R, G).

    ``calls`` counts the rows that were decoded.
    """

    def __init__(self, classes: int, gaussian: int, hidden: int, pixels: int) -> None:
        super().__init__()
        self.label = nn.Linear(classes, hidden, bias=False)
        self.code = nn.Linear(gaussian, hidden)
        self.out = nn.Linear(hidden, pixels)
        self.calls = 0

    def forward(self, label: Tensor, code: Tensor) -> Tensor:
        self.calls += len(code)
        return self.out(F.relu(label + self.code(code)))


class SSVAE(nn.Module):
    """Classifier q(z | x), inference network q(h | x, z) and generative network p(x | z, h)."""

    def __init__(self, pixels: int, classes: int, c: Configuration) -> None:
        super().__init__()
        width = c.classifier_hidden
        self.features = nn.Sequential(
            nn.Linear(pixels, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.scores = nn.Linear(width, classes)
        self.image = nn.Linear(pixels, c.hidden)
        self.label = nn.Linear(classes, c.hidden, bias=False)
        self.moments = nn.Linear(c.hidden, 2 * c.gaussian)
        self.decoder = Decoder(classes, c.gaussian, c.hidden, pixels)

    def classify(self, x: Tensor) -> Tensor:
        """Scores (N, K) of the digits."""
        return self.scores(self.features(x))


class NegativeElbo:
    """The cost −ELBO(x, z) of each class z for a batch x (N, pixels) of 0 and 1.

    ``noise`` (N, K, G) is drawn for every pair, so that the cost of a pair does not depend on which
    other pairs are computed. The image's part of the inference network is computed once per image.
    """

    def __init__(self, model: SSVAE, x: Tensor, noise: Tensor | None = None) -> None:
        self.model, self.x = model, x
        self.image = model.image(x)
        shape = (len(x), model.label.in_features, model.decoder.code.in_features)
        self.noise = torch.randn(shape, device=x.device, dtype=x.dtype) if noise is None else noise

    def pairs(self, rows: Tensor, classes: Tensor) -> Tensor:
        """Costs (P,) of images ``rows`` (P,) as ``classes`` (P,)."""
        model = self.model
        label, decoder_label = model.label.weight.t(), model.decoder.label.weight.t()
        return self._cost(
            self.image[rows] + label[classes],
            decoder_label[classes],
            self.noise[rows, classes],
            self.x[rows],
        )

    def relaxed(self, z: Tensor) -> Tensor:
        """Costs (N,) of relaxed classes (N, K)."""
        model = self.model
        hidden = self.image + model.label(z)
        return self._cost(hidden, model.decoder.label(z), self.noise[:, 0], self.x)

    def _cost(self, hidden: Tensor, label: Tensor, noise: Tensor, x: Tensor) -> Tensor:
        mean, log_variance = self.model.moments(F.relu(hidden)).chunk(2, -1)
        h = mean + (log_variance / 2).exp() * noise
        scores = self.model.decoder(label, h)
        rebuilt = F.binary_cross_entropy_with_logits(scores, x, reduction="none").sum(-1)
        kl = (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1) / 2
        return rebuilt + kl


def labelled_loss(model: SSVAE, normalizer: str, x: Tensor, labels: Tensor) -> Tensor:
    """−ELBO of the right class, and the normalizer's own classification loss: a number."""
    cost = NegativeElbo(model, x).pairs(torch.arange(len(x), device=x.device), labels)
    return cost.mean() + get_loss(normalizer)(model.classify(x), labels)


def unlabelled_loss(
    model: SSVAE,
    normalizer: str,
    estimator: Estimator | None,
    x: Tensor,
    noise: Tensor | None = None,
) -> Tensor:
    """E_q[−ELBO(x, z)] + KL(q ‖ uniform), a number; without an estimator exact over the support."""
    scores = model.classify(x)
    q, support = latent.exact(normalizer, scores)
    cost = NegativeElbo(model, x, noise)
    expected = marginalize(q, support, cost) if estimator is None else estimator(scores, cost, x)
    return (expected - latent.entropy(q)).mean() + math.log(q.size(-1))


def binarize(images: Tensor, seed: int | None = None) -> Tensor:
    """0 and 1 drawn with the pixels' grey values as probabilities; with a seed always the same."""
    if seed is None:
        return torch.bernoulli(images)
    generator = torch.Generator().manual_seed(seed)
    return torch.bernoulli(images.cpu(), generator=generator).to(images.device)


def split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of labelled and unlabelled images, each class in proportion."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    chosen = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    for digit in labels.unique():
        members = order[labels[order] == digit]
        chosen[members[: max(1, round(fraction * len(members)))]] = True
    return chosen.nonzero().squeeze(-1), (~chosen).nonzero().squeeze(-1)


def judge(model: SSVAE, method: str, x: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and mean support of q(z | x) on images (N, pixels) of 0 and 1."""
    features = model.features(x)
    if method == "posthoc":
        q, support = posthoc_evidential(
            features, model.scores.weight, model.scores.bias, return_support=True
        )
    else:
        q, support = latent.exact(method, model.scores(features))
    right = (q.argmax(-1) == labels).double().mean()
    return {"accuracy": 100 * float(right), "calls_test": float(support.double().sum(-1).mean())}


def prepare(run: Run, c: Configuration, data: DataSet) -> None:
    """Nothing but pretrained models is shared, and each job trains the one it needs."""


def pretrain(shared: Run, seed: int, c: Configuration, data: DataSet, normalizer: str) -> SSVAE:
    """The model trained on labelled images alone; jobs of one normalizer and seed share it."""
    stage = f"pretraining-{normalizer}-seed{seed}"
    run = Run(shared.folder, seed, shared.device, shared.tensorboard)
    run.seed_stage(stage)
    images, labels = data.train.unit().flatten(1), data.train.labels
    labelled, _ = split(labels, c.labelled, c.shared_seed)
    test = binarize(data.test.unit().flatten(1), c.shared_seed)
    model = SSVAE(images.size(1), len(data.classes), c).to(run.device)

    def loss(batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        index = labelled[batch]
        return labelled_loss(model, normalizer, binarize(images[index]), labels[index]), {}

    optimizer = torch.optim.Adam(model.parameters(), lr=c.learning_rate)
    schedule = Schedule(len(labelled), c.batch_size, c.pretraining_epochs)

    def evaluate() -> dict[str, float]:
        return judge(model, normalizer, test, data.test.labels)

    train(run, stage, model, optimizer, schedule, loss, evaluate)
    return model


def job(
    run: Run, shared: Run, c: Configuration, data: DataSet, name: str
) -> dict[str, dict[str, Any]]:
    """Pretrain, then train on all images; ``name`` is a normalizer or an estimator on softmax."""
    normalizer = "softmax" if name in ESTIMATORS else name
    model = pretrain(shared, run.seed, c, data, normalizer)
    run.seed_stage(name)
    images, labels = data.train.unit().flatten(1), data.train.labels
    test = binarize(data.test.unit().flatten(1), c.shared_seed)
    labelled, unlabelled = split(labels, c.labelled, c.shared_seed)
    weight = c.unlabelled_weight or len(unlabelled) / len(labelled)
    estimator = None
    if name in ESTIMATORS:
        options = {"temperature": c.temperature} if "gumbel" in name else {}
        estimator = ESTIMATORS[name](images.size(1), **options).to(run.device)
    # One module, so that a learned baseline is trained, checkpointed and resumed with the model.
    whole = nn.ModuleDict({"model": model})
    if estimator is not None:
        whole["estimator"] = estimator

    def loss(batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        index = labelled[torch.randint(len(labelled), (len(batch),), device=run.device)]
        known = labelled_loss(model, normalizer, binarize(images[index]), labels[index])
        before = model.decoder.calls
        x = binarize(images[unlabelled[batch]])
        unknown_ = unlabelled_loss(model, normalizer, estimator, x)
        calls = torch.tensor((model.decoder.calls - before) / len(batch))
        numbers = {"known": known.detach(), "unknown": unknown_.detach(), "calls": calls}
        return known + weight * unknown_, numbers

    methods = ["softmax", "posthoc"] if name == "softmax" else [name]

    def evaluate() -> dict[str, Any]:
        return judge(model, normalizer, test, data.test.labels)

    optimizer = torch.optim.Adam(whole.parameters(), lr=c.learning_rate)
    schedule = Schedule(len(unlabelled), c.batch_size, c.epochs)
    history = train(run, "ssvae", whole, optimizer, schedule, loss, evaluate)
    results: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        for method in methods:
            how = method if method == "posthoc" else normalizer
            metrics = judge(model, how, test, data.test.labels)
            metrics["pretrained_accuracy"] = history[0]["accuracy"]
            if method == "posthoc":
                # Nothing is trained with it: only test images are decoded on its support.
                results[method] = {"metrics": metrics, "history": []}
                continue
            metrics["calls_training"] = history[-1]["calls"]
            metrics["seconds_per_epoch"] = seconds_per_epoch(run, "ssvae")
            results[method] = {"metrics": metrics, "history": history}
    return results
