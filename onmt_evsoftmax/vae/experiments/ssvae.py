"""Semi-supervised VAE: an image has a digit z, known for a tenth of them, and a Gaussian h.

p(x, z, h) = p(x | z, h) p(z) p(h) with uniform p(z); q(z | x) is the classifier that is judged. A
job pretrains on the labelled images, then trains on all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.vae import experiment, figures, latent
from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.estimators import ESTIMATORS, SAMPLED_FROM, Estimator, Gumbel, Temperature
from onmt_evsoftmax.vae.experiment import Experiment, Outcome
from onmt_evsoftmax.vae.semisupervised import SSVAE, losses
from onmt_evsoftmax.vae.training import Run, Schedule, train

#: What the best epoch is chosen by: −ELBO of the validation images.
SELECT = "validation_cost"


@dataclass
class Configuration(experiment.Configuration):
    """``recipes/vae/ssvae.yaml`` explains each key."""

    choices: ClassVar[tuple[str, ...]] = ("normalizers", "estimators", "seeds")
    may_be_zero: ClassVar[tuple[str, ...]] = (
        "normalizers",
        "estimators",
        "validation_images",
        "pretraining_epochs",
        "weight_decay",
        "unlabelled_weight",
        "temperature_decay",
        "temperature_minimum",
        "negligible",
    )

    estimators: list[str] = field(default_factory=lambda: list(ESTIMATORS))
    validation_images: int = 0
    labelled: float = 0.1
    pretraining_epochs: int = 100
    pretraining_learning_rate: float = 5e-4
    learning_rate: float = 5e-4
    learning_rate_of: dict[str, float] = field(default_factory=dict)
    weight_decay: float = 0.0
    unlabelled_weight: float = 0.5
    temperature: float = 0.67
    temperature_decay: float = 0.0
    temperature_minimum: float = 0.5
    temperature_every: int = 1000
    negligible: float = 1e-7
    classifier_hidden: int = 256
    hidden: int = 128
    hidden_layers: int = 2
    gaussian: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.estimators:
            if name not in ESTIMATORS:
                raise ValueError(unknown_name("estimator", name, ESTIMATORS))
        for name in self.learning_rate_of:
            if name not in ESTIMATORS:
                experiment.check_normalizer(name)
        if not self.methods():
            raise ValueError("normalizers and estimators are both empty: list a method")
        if not 0 < self.labelled < 1:
            raise ValueError(f"labelled must be between 0 and 1, not {self.labelled}")


def binarize(images: Tensor, seed: int | None = None) -> Tensor:
    """0 and 1 drawn with the pixels' grey values as probabilities; with a seed always the same."""
    if seed is None:  # as `bernoulli`, in two thirds of its time
        return (torch.rand_like(images) < images).to(images)
    generator = torch.Generator().manual_seed(seed)
    return torch.bernoulli(images.cpu(), generator=generator).to(images.device)


class Split(NamedTuple):
    """Indices of the training images: with a known label, without one, and held out."""

    labelled: Tensor
    unlabelled: Tensor
    validation: Tensor


def split(labels: Tensor, fraction: float, seed: int, validation: int = 0) -> Split:
    """Hold out ``validation`` images; label a ``fraction`` of the others, of each class alike."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    held_out, order = order[:validation], order[validation:]
    order = order[labels[order].argsort(stable=True)]
    # Evenly spaced in an order by class, so every class has its share and the total is exact.
    number = max(1, round(fraction * len(order)))
    places = torch.arange(number, device=order.device) * len(order) // number
    known = torch.zeros_like(order, dtype=torch.bool).index_fill(0, places, True)
    return Split(*(part.sort().values for part in (order[known], order[~known], held_out)))


def judge(model: SSVAE, method: str, x: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy of q(z | x) on images (N, pixels) of 0 and 1, and both counts of its classes."""
    q, support = latent.exact(method, model.classify(x))
    right = (q.argmax(-1) == labels).double().mean()
    return {
        "accuracy": 100 * float(right),
        "support_test": float(support.double().sum(-1).mean()),
        "nonzero_test": float((q.float() != 0).double().sum(-1).mean()),
    }


class Task:
    """The images of a data set as this experiment sees them, with the losses that it trains on."""

    def __init__(self, c: Configuration, data: DataSet) -> None:
        self.c = c
        self.images, self.labels = data.train.unit().flatten(1), data.train.labels
        self.classes = len(data.classes)
        parts = split(self.labels, c.labelled, c.shared_seed, c.validation_images)
        self.labelled, self.unlabelled = parts.labelled, parts.unlabelled
        self.weight = c.unlabelled_weight or len(self.unlabelled) / len(self.labelled)
        self.test = binarize(data.test.unit().flatten(1), c.shared_seed)
        self.test_labels = data.test.labels
        # Drawn once, so that epochs and methods are compared on the same images and noise.
        self.validation = binarize(self.images[parts.validation], c.shared_seed)
        generator = torch.Generator().manual_seed(c.shared_seed)
        shape = (len(self.validation), self.classes, c.gaussian)
        self.noise = torch.randn(shape, generator=generator).to(self.images.device)
        self.select = SELECT if c.validation_images else ""

    def model(self) -> SSVAE:
        c, pixels = self.c, self.images.size(1)
        sizes = (c.classifier_hidden, c.hidden, c.gaussian, c.hidden_layers)
        return SSVAE(pixels, self.classes, *sizes).to(self.images.device)

    def estimator(self, name: str) -> Estimator:
        c, made = self.c, ESTIMATORS[name](self.images.size(1))
        if isinstance(made, Gumbel):
            made.temperature = Temperature(
                c.temperature, c.temperature_decay, c.temperature_minimum, c.temperature_every
            )
        return made.to(self.images.device)

    def optimizer(self, module: nn.Module, rate: float) -> torch.optim.Optimizer:
        # Fused: the plain loop over parameters costs a tenth of a step, on CPUs too.
        decay = self.c.weight_decay
        return torch.optim.Adam(module.parameters(), lr=rate, weight_decay=decay, fused=True)

    def known(self, model: SSVAE, normalizer: str, index: Tensor) -> Tensor:
        """Loss of the images ``index`` (B,) with their labels: a number."""
        return losses(model, normalizer, self.draw(index), self.labels[index]).known

    def draw(self, index: Tensor) -> Tensor:
        """The images ``index`` (B,) binarised: (B, pixels)."""
        return binarize(self.images.index_select(0, index))

    def both(
        self, model: SSVAE, normalizer: str, estimator: Estimator | None, batch: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the unlabelled images ``batch`` (B,), and of as many labelled ones at random."""
        chosen = torch.randint(len(self.labelled), (len(batch),), device=batch.device)
        known = self.labelled[chosen]
        x, labels = self.draw(torch.cat([known, self.unlabelled[batch]])), self.labels[known]
        before = model.decoded + len(known)
        found = losses(model, normalizer, x, labels, estimator, negligible=self.c.negligible)
        unknown = found.unknown.mean()
        numbers = {
            "known": found.known.detach(),
            "unknown": unknown.detach(),
            "calls": torch.tensor((model.decoded - before) / len(batch)),
            "support": found.support.double().mean(),
            "nonzero": found.nonzero.double().mean(),
        }
        return found.known + self.weight * unknown, numbers

    def judge(self, model: SSVAE, method: str) -> dict[str, float]:
        return judge(model, method, self.test, self.test_labels)

    def evaluate(self, model: SSVAE, normalizer: str) -> dict[str, float]:
        """What is looked at while a model is trained: the test images, and what selects."""
        found = self.judge(model, normalizer)
        if self.select:
            none = self.labels[:0]
            parts = zip(self.validation.split(1000), self.noise.split(1000), strict=True)
            costs = [
                losses(model, normalizer, x, none, None, noise, self.c.negligible).unknown
                for x, noise in parts
            ]
            found[self.select] = float(torch.cat(costs).double().mean())
        return found


def pretrain(shared: Run, seed: int, task: Task, normalizer: str) -> SSVAE:
    """The model trained on labelled images alone; jobs of one normalizer and seed share it."""
    stage = f"pretraining-{normalizer}-seed{seed}"
    run = replace(shared, seed=seed)
    run.seed_stage(stage)
    model = task.model()
    size, c = len(task.labelled), task.c
    # Epochs are short here, and a look at all test images after each would cost half as much again.
    often = -(-size // c.batch_size) * max(c.pretraining_epochs // 10, 1)
    train(
        run,
        stage,
        model,
        task.optimizer(model, c.pretraining_learning_rate),
        Schedule(size, c.batch_size, c.pretraining_epochs, often, task.select),
        lambda batch: (task.known(model, normalizer, task.labelled[batch]), {}),
        lambda: task.evaluate(model, normalizer),
    )
    return model


class SemiSupervisedVAE(Experiment[Configuration]):
    """The experiment: every normalizer exactly, and the estimators on softmax."""

    help = "semi-supervised VAE, marginalised over the support or sampled (paper: Table 2)"
    configuration = Configuration
    metrics: ClassVar = {
        "accuracy": ("accuracy %", 2),
        "pretrained_accuracy": ("labels only %", 2),
        "support_test": ("support", 2),
        "nonzero_test": ("q ≠ 0 in float32", 2),
        "calls_training": ("decoded in training", 2),
        "best_epoch": ("best epoch", 0),
    }
    figures: ClassVar = {"accuracy": figures.accuracy_curves}

    def check(self, c: Configuration, images: DataSet) -> None:
        labels = images.train.labels
        left = len(labels) - c.validation_images
        if left < 1:
            raise UserError(
                f"validation_images: {c.validation_images} of {len(labels)} training images leaves "
                "none to train on; lower it"
            )
        if not len(split(labels, c.labelled, c.shared_seed, c.validation_images).unlabelled):
            raise UserError(
                f"labelled: {c.labelled} of {left} training images leaves none unlabelled; lower it"
            )

    def prepare(self, shared: Run, c: Configuration, images: DataSet) -> None:
        task = Task(c, images)
        for normalizer in dict.fromkeys(map(_normalizer_of, c.methods())):
            for seed in c.seeds:
                pretrain(shared, seed, task, normalizer)

    def job(
        self, run: Run, shared: Run, c: Configuration, images: DataSet, method: str
    ) -> dict[str, Outcome]:
        normalizer = _normalizer_of(method)
        task = Task(c, images)
        model = pretrain(shared, run.seed, task, normalizer)
        run.seed_stage(method)
        # One module, so that a learned baseline is trained, saved and resumed with the model.
        whole = nn.ModuleDict({"model": model})
        estimator = task.estimator(method) if method in ESTIMATORS else None
        if estimator is not None:
            whole["estimator"] = estimator
        trained = train(
            run,
            "ssvae",
            whole,
            task.optimizer(whole, c.learning_rate_of.get(method, c.learning_rate)),
            Schedule(len(task.unlabelled), c.batch_size, c.epochs, select=task.select),
            lambda batch: task.both(model, normalizer, estimator, batch),
            lambda: task.evaluate(model, normalizer),
        )
        common = {
            "pretrained_accuracy": trained.history[0]["accuracy"],
            "best_epoch": trained.final["epoch"],
        }
        with torch.no_grad():
            outcomes = {
                name: Outcome(task.judge(model, _normalizer_of(name)) | common)
                for name in latent.methods_of(method)
            }
        # The others were not trained: they are this model at test time.
        calls = {"calls_training": trained.history[-1]["calls"]}
        outcomes[method].metrics |= calls | trained.seconds
        outcomes[method].history = trained.history
        return outcomes


def _normalizer_of(method: str) -> str:
    """What makes a method's q(z | x): itself, or what an estimator samples from."""
    return SAMPLED_FROM if method in ESTIMATORS else method


EXPERIMENT = SemiSupervisedVAE()
