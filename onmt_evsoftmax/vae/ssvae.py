"""Semi-supervised VAE: an image has a digit z, known for a tenth of them, and a Gaussian h.

p(x, z, h) = p(x | z, h) p(z) p(h) with uniform p(z); q(z | x) is the classifier that is judged. A
job pretrains on the labelled images, then trains on all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import get_loss
from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.vae import latent
from onmt_evsoftmax.vae.configuration import check_data, check_names, check_numbers
from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.estimators import ESTIMATORS, Estimator
from onmt_evsoftmax.vae.semisupervised import SSVAE, labelled_loss, unlabelled_loss
from onmt_evsoftmax.vae.training import SECONDS, Run, Schedule, seconds_per_epoch, train

#: Threads that pay on a CPU.
THREADS = 1

#: Metric → (title, decimals), in the order of the table.
METRICS = {
    "accuracy": ("accuracy %", 2),
    "calls_training": ("decoder calls", 2),
    "support_test": ("support, test", 2),
    "pretrained_accuracy": ("labels only %", 2),
    **SECONDS,
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
    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 5e-4
    unlabelled_weight: float = 0.5
    temperature: float = 0.67
    classifier_hidden: int = 256
    hidden: int = 128
    hidden_layers: int = 1
    gaussian: int = 8

    def __post_init__(self) -> None:
        check_names(self.normalizers)
        for name in self.normalizers:
            get_loss(name)
        for name in self.estimators:
            if name not in ESTIMATORS:
                raise ValueError(unknown_name("estimator", name, ESTIMATORS))
        check_data(self.data, "digits", "mnist")
        check_numbers(self, "normalizers", "estimators", "pretraining_epochs", "unlabelled_weight")
        if not self.normalizers and not self.estimators:
            raise ValueError("normalizers and estimators are both empty: list a method")
        if not 0 < self.labelled < 1:
            raise ValueError(f"labelled must be between 0 and 1, not {self.labelled}")


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


def check(c: Configuration, data: DataSet) -> None:
    """Refuse a share of labelled images that leaves no others."""
    images = len(data.train.labels)
    if not len(split(data.train.labels, c.labelled, c.shared_seed)[1]):
        raise UserError(
            f"labelled: {c.labelled} of {images} training images leaves none unlabelled; lower it"
        )


def judge(model: SSVAE, method: str, x: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and mean support of q(z | x) on images (N, pixels) of 0 and 1."""
    last = model.scores
    q, support = latent.of_layer(method, model.features(x), last.weight, last.bias)
    right = (q.argmax(-1) == labels).double().mean()
    return {"accuracy": 100 * float(right), "support_test": float(support.double().sum(-1).mean())}


class Task:
    """The images of a data set as this experiment sees them, with the losses that it trains on."""

    def __init__(self, c: Configuration, data: DataSet) -> None:
        self.c = c
        self.images, self.labels = data.train.unit().flatten(1), data.train.labels
        self.classes = len(data.classes)
        self.labelled, self.unlabelled = split(self.labels, c.labelled, c.shared_seed)
        self.weight = c.unlabelled_weight or len(self.unlabelled) / len(self.labelled)
        self.test = binarize(data.test.unit().flatten(1), c.shared_seed)
        self.test_labels = data.test.labels

    def model(self) -> SSVAE:
        c, pixels = self.c, self.images.size(1)
        sizes = (c.classifier_hidden, c.hidden, c.gaussian, c.hidden_layers)
        return SSVAE(pixels, self.classes, *sizes).to(self.images.device)

    def estimator(self, name: str) -> Estimator:
        options = {"temperature": self.c.temperature} if "gumbel" in name else {}
        return ESTIMATORS[name](self.images.size(1), **options).to(self.images.device)

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        # Fused: the plain loop over parameters costs a tenth of a step, on CPUs too.
        return torch.optim.Adam(module.parameters(), lr=self.c.learning_rate, fused=True)

    def known(self, model: SSVAE, normalizer: str, index: Tensor) -> Tensor:
        """Loss of the images ``index`` (B,) with their labels: a number."""
        x = binarize(self.images[index])
        return labelled_loss(model, normalizer, x, self.labels[index])

    def both(
        self, model: SSVAE, normalizer: str, estimator: Estimator | None, batch: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the unlabelled images ``batch`` (B,), and of as many labelled ones at random."""
        chosen = torch.randint(len(self.labelled), (len(batch),), device=batch.device)
        known = self.known(model, normalizer, self.labelled[chosen])
        before = model.decoder.calls
        x = binarize(self.images[self.unlabelled[batch]])
        unknown = unlabelled_loss(model, normalizer, estimator, x)
        calls = torch.tensor((model.decoder.calls - before) / len(batch))
        numbers = {"known": known.detach(), "unknown": unknown.detach(), "calls": calls}
        return known + self.weight * unknown, numbers

    def judge(self, model: SSVAE, method: str) -> dict[str, float]:
        return judge(model, method, self.test, self.test_labels)


def prepare(run: Run, c: Configuration, data: DataSet) -> None:
    """Train the model on labelled images alone, of every normalizer and seed."""
    task = Task(c, data)
    for normalizer in dict.fromkeys([*c.normalizers, *(["softmax"] if c.estimators else [])]):
        for seed in c.seeds:
            pretrain(run, seed, task, normalizer)


def pretrain(shared: Run, seed: int, task: Task, normalizer: str) -> SSVAE:
    """The model trained on labelled images alone; jobs of one normalizer and seed share it."""
    stage = f"pretraining-{normalizer}-seed{seed}"
    run = Run(shared.folder, seed, shared.device, shared.tensorboard)
    run.seed_stage(stage)
    model = task.model()
    size, c = len(task.labelled), task.c
    # Epochs are short here, and a look at all test images after each would cost half as much again.
    often = -(-size // c.batch_size) * max(c.pretraining_epochs // 10, 1)
    train(
        run,
        stage,
        model,
        task.optimizer(model),
        Schedule(size, c.batch_size, c.pretraining_epochs, often),
        lambda batch: (task.known(model, normalizer, task.labelled[batch]), {}),
        lambda: task.judge(model, normalizer),
    )
    return model


def job(
    run: Run, shared: Run, c: Configuration, data: DataSet, name: str
) -> dict[str, dict[str, Any]]:
    """Pretrain, then train on all images; ``name`` is a normalizer or an estimator on softmax."""
    normalizer = "softmax" if name in ESTIMATORS else name
    task = Task(c, data)
    model = pretrain(shared, run.seed, task, normalizer)
    run.seed_stage(name)
    estimator = task.estimator(name) if name in ESTIMATORS else None
    # One module, so that a learned baseline is trained, checkpointed and resumed with the model.
    whole = nn.ModuleDict({"model": model})
    if estimator is not None:
        whole["estimator"] = estimator
    history = train(
        run,
        "ssvae",
        whole,
        task.optimizer(whole),
        Schedule(len(task.unlabelled), c.batch_size, c.epochs),
        lambda batch: task.both(model, normalizer, estimator, batch),
        lambda: task.judge(model, normalizer),
    )
    results: dict[str, dict[str, Any]] = {}
    for method in latent.methods_of(name):
        with torch.no_grad():
            metrics = task.judge(model, method if method == "posthoc" else normalizer)
        metrics["pretrained_accuracy"] = history[0]["accuracy"]
        results[method] = {"metrics": metrics, "history": []}
        if method != "posthoc":  # nothing is trained with it: it is softmax's model
            metrics["calls_training"] = history[-1]["calls"]
            metrics.update(seconds_per_epoch(run, "ssvae"))
            results[method]["history"] = history
    return results
