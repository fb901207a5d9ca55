"""The small convolutional network that says which digit an image shows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.training import Run, Schedule, train


class DigitClassifier(nn.Module):
    """Images (N, channels, height, width) in [0, 1] → scores (N, classes); any size from 8 up."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 64),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(64, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def train_classifier(run: Run, data: DataSet, epochs: int) -> tuple[DigitClassifier, float]:
    """The trained classifier, in evaluation mode, and its accuracy on the test images."""
    run.seed_stage("classifier")
    channels, height, width = data.train.pixels.shape[1:]
    model = DigitClassifier(channels, height, width, len(data.classes)).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    images, labels = data.train.unit(), data.train.labels
    test = data.test.unit()

    def loss(batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return F.cross_entropy(model(images[batch]), labels[batch]), {}

    def evaluate() -> dict[str, float]:
        scores = torch.cat([model(part) for part in test.split(1000)])
        return {"accuracy": float((scores.argmax(-1) == data.test.labels).float().mean())}

    schedule = Schedule(len(images), 128, epochs)
    trained = train(run, "classifier", model, optimizer, schedule, loss, evaluate)
    return model, trained.final["accuracy"]
