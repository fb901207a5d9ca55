"""VQ-VAE with an autoregressive prior: images are drawn as codes by a PixelCNN, then decoded.

Stage 1, shared by all jobs: the autoencoder, and a Wide ResNet on real images that will judge.
Stage 2, one job per normalizer: a class-conditional PixelCNN over the codes, trained with the
normalizer's own loss. Stage 3: codes sampled from its exact sparse distribution, decoded, judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_evsoftmax.normalizers.registry import get_loss
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.progress import progress
from onmt_evsoftmax.vae import distributed, experiment, figures, latent
from onmt_evsoftmax.vae.autoencoder import VQVAE, usage
from onmt_evsoftmax.vae.data import DATA_SETS, DataSet, Images, load
from onmt_evsoftmax.vae.experiment import Experiment, Outcome
from onmt_evsoftmax.vae.pixelcnn import PixelCNN
from onmt_evsoftmax.vae.training import Run, Schedule, Trained, train
from onmt_evsoftmax.vae.wideresnet import WideResNet, augment, check_depth, top_accuracy

_TOPS = (1, 5, 10)


@dataclass
class Configuration(experiment.Configuration):
    """``recipes/vae/vqvae.yaml`` explains each key."""

    data_sets: ClassVar[tuple[str, ...]] = DATA_SETS
    may_be_zero: ClassVar[tuple[str, ...]] = ("classes", "image_size", "commitment", "weight_decay")

    seeds: list[int] = field(default_factory=lambda: [1])
    epochs: int = 8
    batch_size: int = 32
    classes: int = 0
    image_size: int = 0
    codes: int = 64
    hidden: int = 32
    downsamplings: int = 1
    commitment: float = 1.0
    autoencoder_epochs: int = 15
    autoencoder_batch_size: int = 32
    autoencoder_learning_rate: float = 1e-3
    wideresnet_depth: int = 10
    wideresnet_width: int = 1
    wideresnet_epochs: int = 6
    wideresnet_batch_size: int = 32
    wideresnet_learning_rate: float = 3e-3
    mirror: bool = False
    layers: int = 4
    prior_hidden: int = 32
    prior_head: int = 64
    learning_rates: list[float] = field(default_factory=lambda: [2e-3])
    weight_decay: float = 0.0
    xavier: bool = False
    best_epoch: bool = False
    samples_per_class: int = 25
    figure_classes: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_depth(self.wideresnet_depth)
        if self.image_size and self.data != "tiny-imagenet":
            raise ValueError(
                f"image_size scales tiny-imagenet's images, not those of {self.data}: leave it out"
            )


def signed(pixels: Tensor) -> Tensor:
    """uint8 images as float in [−1, 1]."""
    return pixels.float() / 127.5 - 1


def _in_parts(function: Callable[[Tensor], Tensor], items: Tensor) -> Tensor:
    return torch.cat([function(part) for part in items.split(250)])


# --- stage 1 --------------------------------------------------------------------------------------


def train_autoencoder(run: Run, c: Configuration, data: DataSet) -> tuple[VQVAE, dict[str, Any]]:
    """The VQ-VAE in evaluation mode, and its last evaluation."""
    run.seed_stage("autoencoder")
    model = VQVAE(data.train.pixels.size(1), c.codes, c.hidden, c.downsamplings).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=c.autoencoder_learning_rate)
    pixels, test = data.train.pixels, data.test.pixels

    def loss(batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        images = signed(pixels[batch])
        rebuilt, codebook_loss, commitment, _ = model(images)
        error = F.mse_loss(rebuilt, images)
        return error + codebook_loss + c.commitment * commitment, {"mse": error.detach()}

    def evaluate() -> dict[str, Any]:
        errors, codes = [], []
        for part in test.split(250):
            rebuilt, _, _, found = model(signed(part))
            errors.append(F.mse_loss(rebuilt, signed(part), reduction="none").mean((1, 2, 3)))
            codes.append(found)
        used, perplexity = usage(torch.cat(codes), c.codes)
        mse = float(torch.cat(errors).mean())
        return {"test_mse": mse, "codes_used": used, "perplexity": perplexity}

    schedule = Schedule(len(pixels), c.autoencoder_batch_size, c.autoencoder_epochs)
    return model, train(run, "autoencoder", model, optimizer, schedule, loss, evaluate).final


def train_judge(run: Run, c: Configuration, data: DataSet) -> tuple[WideResNet, dict[str, Any]]:
    """The Wide ResNet in evaluation mode, and its accuracies on the real test images."""
    run.seed_stage("wideresnet")
    channels, classes = data.train.pixels.size(1), len(data.classes)
    model = WideResNet(channels, classes, c.wideresnet_depth, c.wideresnet_width).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=c.wideresnet_learning_rate)
    pixels, labels = data.train

    def loss(batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        images = signed(pixels[batch])
        images = augment(images) if c.mirror else images
        return F.cross_entropy(model(images), labels[batch]), {}

    def evaluate() -> dict[str, Any]:
        scores = _in_parts(lambda part: model(signed(part)), data.test.pixels)
        return {f"real_top{k}": top_accuracy(scores, data.test.labels, k) for k in _TOPS}

    schedule = Schedule(len(pixels), c.wideresnet_batch_size, c.wideresnet_epochs)
    return model, train(run, "wideresnet", model, optimizer, schedule, loss, evaluate).final


# --- stage 2 --------------------------------------------------------------------------------------


def train_prior(
    run: Run,
    c: Configuration,
    normalizer: str,
    train_codes: Images,
    test_codes: Images,
    classes: int,
) -> tuple[PixelCNN, float, Trained]:
    """The PixelCNN of the learning rate with the lowest loss on test codes, the rate, how it went.

    ``train_codes`` and ``test_codes`` hold codes (N, h, w) in place of pixels.
    """
    criterion = get_loss(normalizer)
    codes, labels = train_codes
    found = []
    select = "test_loss" if c.best_epoch else ""
    for rate in c.learning_rates:
        stage = f"prior-lr{rate:g}"
        run.seed_stage("prior")
        model = PixelCNN(c.codes, classes, c.prior_hidden, c.layers, c.prior_head, c.xavier)
        model.to(run.device)

        def loss(batch: Tensor, model: PixelCNN = model) -> tuple[Tensor, dict[str, Tensor]]:
            return criterion(model(codes[batch], labels[batch]), codes[batch]), {}

        def evaluate(model: PixelCNN = model) -> dict[str, Any]:
            parts = zip(test_codes.pixels.split(250), test_codes.labels.split(250), strict=True)
            losses = [
                criterion(model(part, names), part, reduction="none").mean((1, 2))
                for part, names in parts
            ]
            return {"test_loss": float(torch.cat(losses).mean())}

        optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=c.weight_decay)
        schedule = Schedule(len(codes), c.batch_size, c.epochs, select=select)
        trained = train(run, stage, model, optimizer, schedule, loss, evaluate)
        found.append((model, rate, trained))
    return min(found, key=lambda prior: prior[2].final["test_loss"])


# --- stage 3 --------------------------------------------------------------------------------------


@torch.no_grad()
def generate(
    run: Run, prior: PixelCNN, method: str, shape: tuple[int, int], classes: int, each: int
) -> tuple[Tensor, Tensor, float]:
    """Codes (classes · each, h, w) and their labels, class by class; and the mean support size."""
    labels = torch.arange(classes, device=run.device).repeat_interleave(each)
    generator = torch.Generator(run.device).manual_seed(run.seed)
    codes, sizes = [], []
    parts = labels.split(500)
    title, hidden = f"{run.folder.name} samples {method}", distributed.rank() != 0
    for part in progress(title, len(parts), unit="batches", lines=parts, quiet=hidden):
        drawn, support = prior.sample(part, shape, partial(latent.exact, method), generator)
        codes.append(drawn)
        sizes.append(support)
    return torch.cat(codes), labels, float(torch.cat(sizes).double().mean())


class VectorQuantizedVAE(Experiment[Configuration]):
    """The experiment: one prior per normalizer and seed on the codes of one shared autoencoder."""

    help = "VQ-VAE, PixelCNN prior and Wide ResNet judge (paper: Table 3 and Figure 5)"
    configuration = Configuration
    metrics: ClassVar = {
        "top1": ("acc-1", 1),
        "top5": ("acc-5", 1),
        "top10": ("acc-10", 1),
        "support": ("K", 1),
        "prior_loss": ("validation loss", 3),
        "prior_epoch": ("epoch", 0),
        "learning_rate": ("lr", 6),
        "real_top1": ("real acc-1", 1),
        "real_top5": ("real acc-5", 1),
        "real_top10": ("real acc-10", 1),
        "codes_used": ("codes used", 0),
        "perplexity": ("perplexity", 1),
    }
    figures: ClassVar = {"figure5": figures.sampled_images}
    threads = 2

    def load(self, c: Configuration, folder: str | Path | None, *, fetch: bool = False) -> DataSet:
        return load(c.data, folder, fetch=fetch, classes=c.classes, size=c.image_size)

    def check(self, c: Configuration, images: DataSet) -> None:
        height, width = images.train.pixels.shape[2:]
        if height % 2**c.downsamplings or width % 2**c.downsamplings:
            raise UserError(
                f"images of {height} × {width} cannot be halved {c.downsamplings} times; "
                "change downsamplings or image_size"
            )

    def prepare(self, shared: Run, c: Configuration, images: DataSet) -> None:
        train_autoencoder(shared, c, images)
        train_judge(shared, c, images)

    def job(
        self, run: Run, shared: Run, c: Configuration, images: DataSet, method: str
    ) -> dict[str, Outcome]:
        autoencoder, rebuilt = train_autoencoder(shared, c, images)
        wide, real = train_judge(shared, c, images)
        with torch.no_grad():
            encoded = [
                Images(_in_parts(lambda p: autoencoder.encode(signed(p)), part.pixels), part.labels)
                for part in (images.train, images.test)
            ]
        classes = len(images.classes)
        prior, rate, trained = train_prior(run, c, method, encoded[0], encoded[1], classes)
        shape = (encoded[0].pixels.size(1), encoded[0].pixels.size(2))
        outcomes = {}
        for name in latent.methods_of(method):
            codes, labels, support = generate(run, prior, name, shape, classes, c.samples_per_class)
            with torch.no_grad():
                drawn = _in_parts(autoencoder.decode, codes)
                scores = _in_parts(wide, drawn)
            sample = drawn.unflatten(0, (classes, -1))[: c.figure_classes, :5]
            metrics = {
                **{f"top{k}": top_accuracy(scores, labels, k) for k in _TOPS},
                "support": support,
                "prior_loss": trained.final["test_loss"],
                "prior_epoch": trained.final["epoch"],
                "learning_rate": rate,
                **trained.seconds,
                **{key: real[key] for key in real if key.startswith("real_")},
                **{key: rebuilt[key] for key in ("codes_used", "perplexity", "test_mse")},
            }
            shown = {
                "classes": images.classes[: c.figure_classes],
                "samples": ((sample + 1) * 127.5).round().clamp(0, 255).int().tolist(),
            }
            outcomes[name] = Outcome(metrics, trained.history, shown)
        return outcomes


EXPERIMENT = VectorQuantizedVAE()
