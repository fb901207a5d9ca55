"""Class-conditional gated PixelCNN (van den Oord et al., 2016) over a grid of codes.

Pixel (i, j) sees only rows above it (the vertical stack) and pixels to its left (the horizontal
stack). ``sample`` uses that: a row of the vertical stack is computed once, when it begins, and a
pixel of the horizontal stack once, when its turn comes, so that drawing a whole image costs about
one forward pass instead of one per pixel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Scores (N, K) → p (N, K) and its support (True = has mass).
Distribution = Callable[[Tensor], tuple[Tensor, Tensor]]


def _gate(x: Tensor) -> Tensor:
    """tanh of the first half of the channels times sigmoid of the second."""
    left, right = x.chunk(2, 1)
    return torch.tanh(left) * torch.sigmoid(right)


class GatedLayer(nn.Module):
    """One layer of both stacks; ``first`` hides the pixel itself (mask A) and has no residual."""

    def __init__(self, hidden: int, kernel: int, classes: int, first: bool) -> None:
        super().__init__()
        self.reach, self.first = kernel // 2, first
        above = self.reach if first else self.reach + 1  # rows i−reach … i−1, and i if not first
        left = self.reach if first else self.reach + 1
        self.vertical = nn.Conv2d(hidden, 2 * hidden, (above, kernel))
        self.horizontal = nn.Conv2d(hidden, 2 * hidden, (1, left))
        self.across = nn.Conv2d(2 * hidden, 2 * hidden, 1)
        self.mix = nn.Conv2d(hidden, hidden, 1)
        self.label = nn.Embedding(classes, 2 * hidden)

    def forward(self, v: Tensor, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """v, h (N, D, H, W) → the next v and h; a position depends on no later one."""
        bias = self.label(labels)[:, :, None, None]
        height, width = v.shape[-2:]
        down = self.vertical(F.pad(v, (self.reach, self.reach, self.reach, 0)))[..., :height, :]
        right = self.horizontal(F.pad(h, (self.reach, 0, 0, 0)))[..., :width]
        mixed = self.mix(_gate(self.across(down) + right + bias))
        return _gate(down + bias), mixed if self.first else mixed + h


class PixelCNN(nn.Module):
    """Codes (N, H, W) and labels (N,) → scores (N, K, H, W) of each code given those before it."""

    def __init__(
        self, codes: int, classes: int, hidden: int, layers: int, head: int, xavier: bool = False
    ) -> None:
        super().__init__()
        self.codes = codes
        self.embedding = nn.Embedding(codes, hidden)
        self.layers = nn.ModuleList(
            GatedLayer(hidden, 3 if i else 7, classes, first=not i) for i in range(layers)
        )
        self.head = nn.Sequential(nn.Conv2d(hidden, head, 1), nn.ReLU())
        self.last = nn.Linear(head, codes)
        if xavier:
            for module in self.modules():
                if isinstance(module, (nn.Conv2d, nn.Linear)):
                    nn.init.xavier_uniform_(module.weight)
                    assert module.bias is not None
                    nn.init.zeros_(module.bias)

    def forward(self, codes: Tensor, labels: Tensor) -> Tensor:
        v = h = self.embedding(codes).movedim(-1, 1)
        for layer in self.layers:
            v, h = layer(v, h, labels)
        scores: Tensor = self.last(self.head(h).movedim(1, -1))
        return scores.movedim(-1, 1)

    @torch.no_grad()
    def sample(
        self,
        labels: Tensor,
        shape: tuple[int, int],
        distribution: Distribution,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Codes (N, H, W) for labels (N,), and the size of the support (N, H, W) at each pixel."""
        sampler = _Sampler(self, labels, shape)
        height, width = shape
        codes = torch.zeros(len(labels), height, width, dtype=torch.long, device=labels.device)
        sizes = torch.zeros_like(codes)
        for i in range(height):
            sampler.begin_row(i)
            for j in range(width):
                p, support = distribution(self.last(sampler.features(i, j)))
                codes[:, i, j] = draw(p, generator)
                sizes[:, i, j] = support.sum(-1)
                sampler.put(i, j, self.embedding(codes[:, i, j]))
        return codes, sizes


def draw(p: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """An index (N,) of each row of p (N, K): the largest p over an exponential variable.

    An index without mass is never drawn, as 0 is never the largest.
    """
    noise = torch.empty_like(p).exponential_(generator=generator)
    return (p / noise).argmax(-1)


class _Sampler:
    """The stacks' values at the pixels drawn so far, layer by layer.

    ``v[l]`` and ``h[l]`` are the inputs of layer l, padded by its reach: above, left and right for
    v, left for h. Index l = number of layers holds the output of h only.
    """

    def __init__(self, model: PixelCNN, labels: Tensor, shape: tuple[int, int]) -> None:
        (height, width), batch = shape, len(labels)
        self.model, self.width = model, width
        self.layers: list[GatedLayer] = list(model.layers)  # type: ignore[arg-type]
        hidden, zeros = model.embedding.embedding_dim, model.embedding.weight.new_zeros
        reaches = [layer.reach for layer in self.layers]
        self.v = [zeros(batch, hidden, height + reach, width + 2 * reach) for reach in reaches]
        self.h = [zeros(batch, hidden, height, width + reach) for reach in reaches]
        self.bias = [layer.label(labels)[:, :, None, None] for layer in self.layers]
        self.across: list[Tensor] = []

    def begin_row(self, i: int) -> None:
        """Compute row i of the vertical stack, which needs only the rows above."""
        self.across = []
        for number, layer in enumerate(self.layers):
            rows = layer.vertical.kernel_size[0]
            down = layer.vertical(self.v[number][:, :, i : i + rows])
            self.across.append(layer.across(down))
            if number + 1 < len(self.layers):
                reach = self.layers[number + 1].reach
                row = _gate(down + self.bias[number])[:, :, 0]
                self.v[number + 1][:, :, i + reach, reach : reach + self.width] = row

    def features(self, i: int, j: int) -> Tensor:
        """What enters the last layer at pixel (i, j): (N, J)."""
        for number, layer in enumerate(self.layers):
            columns = layer.horizontal.kernel_size[1]
            row = self.h[number][:, :, i : i + 1]
            right = layer.horizontal(row[..., j : j + columns])
            total = self.across[number][..., j : j + 1] + right + self.bias[number]
            mixed = layer.mix(_gate(total))
            if not layer.first:
                mixed = mixed + row[..., j + layer.reach, None]
            if number + 1 < len(self.layers):
                reach = self.layers[number + 1].reach
                self.h[number + 1][:, :, i, j + reach] = mixed[..., 0, 0]
        features: Tensor = self.model.head(mixed)
        return features[..., 0, 0]

    def put(self, i: int, j: int, embedded: Tensor) -> None:
        """Enter what was drawn at pixel (i, j): (N, D)."""
        reach = self.layers[0].reach
        self.v[0][:, :, i + reach, j + reach] = embedded
        self.h[0][:, :, i, j + reach] = embedded
