"""Wide residual network (Zagoruyko & Komodakis, 2016): the judge of generated images."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Block(nn.Module):
    """Pre-activation residual block of two 3 × 3 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.skip = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        shortcut = x if self.skip is None else self.skip(active)
        residual: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return shortcut + residual


class WideResNet(nn.Module):
    """WRN-``depth``-``width``: images (N, channels, H, W) in [−1, 1] → scores (N, classes)."""

    def __init__(self, channels: int, classes: int, depth: int = 28, width: int = 10) -> None:
        super().__init__()
        check_depth(depth)
        sizes = [16, 16 * width, 32 * width, 64 * width]
        self.first = nn.Conv2d(channels, sizes[0], 3, 1, 1, bias=False)
        blocks: list[nn.Module] = []
        for group, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            for position in range((depth - 4) // 6):
                stride = 2 if group and not position else 1
                blocks.append(_Block(outputs if position else inputs, outputs, stride))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(sizes[-1])
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.norm(self.blocks(self.first(images))))
        return self.head(hidden.mean((2, 3)))


def check_depth(depth: int) -> None:
    """Refuse a number of layers that does not divide into three groups of whole blocks."""
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"the depth of a Wide ResNet is 6 n + 4 and at least 10, not {depth}")


def augment(images: Tensor) -> Tensor:
    """Mirror half of the images (N, C, H, W) and shift all by up to an eighth of their width."""
    mirrored = torch.rand(len(images), device=images.device) < 0.5
    images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
    reach = images.size(-1) // 8
    down, right = torch.randint(-reach, reach + 1, (2,)).tolist()
    return images.roll((down, right), (-2, -1)) if reach else images


def top_accuracy(scores: Tensor, labels: Tensor, k: int) -> float:
    """Percentage of rows of scores (N, classes) whose label (N,) is among the k highest."""
    k = min(k, scores.size(-1))
    hits = (scores.topk(k, -1).indices == labels.unsqueeze(-1)).any(-1)
    return 100 * float(hits.double().mean())
