"""VQ-VAE (van den Oord et al., 2017): images to a grid of codes and back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Residual(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, 1, 1),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 1),
            nn.BatchNorm2d(hidden),
        )

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.body(x)
        return x + change


class VQVAE(nn.Module):
    """Images (N, C, H, W) in [−1, 1] ↔ codes (N, H / 2ⁿ, W / 2ⁿ) in 0 … K−1, n downsamplings."""

    def __init__(self, channels: int, codes: int, hidden: int, downsamplings: int) -> None:
        super().__init__()
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for level in range(downsamplings):
            inputs = channels if level == 0 else hidden
            down += [nn.Conv2d(inputs, hidden, 4, 2, 1)]
            up = [nn.ConvTranspose2d(hidden, inputs, 4, 2, 1), *up]
            if level < downsamplings - 1:
                down += [nn.BatchNorm2d(hidden), nn.ReLU()]
            if level > 0:
                up = [up[0], nn.BatchNorm2d(hidden), nn.ReLU(), *up[1:]]
        self.encoder = nn.Sequential(*down, _Residual(hidden), _Residual(hidden))
        self.decoder = nn.Sequential(
            _Residual(hidden), _Residual(hidden), nn.ReLU(), *up, nn.Tanh()
        )
        self.codebook = nn.Embedding(codes, hidden)
        nn.init.uniform_(self.codebook.weight, -1 / codes, 1 / codes)

    def nearest(self, vectors: Tensor) -> Tensor:
        """The code (N, h, w) nearest to each vector of (N, D, h, w)."""
        flat = vectors.movedim(1, -1)
        book = self.codebook.weight
        distance = (book**2).sum(-1) - 2 * flat @ book.t()  # up to |vector|², which is constant
        return distance.argmin(-1)

    def encode(self, images: Tensor) -> Tensor:
        """Codes (N, h, w)."""
        return self.nearest(self.encoder(images))

    def decode(self, codes: Tensor) -> Tensor:
        """Images of codes (N, h, w)."""
        return self.decoder(self.codebook(codes).movedim(-1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rebuilt images; squared distances code → vector and vector → code; codes.

        The decoder's gradient passes the quantisation unchanged (straight through); the codebook
        learns from the second value only and the encoder also from the third (the commitment).
        """
        vectors = self.encoder(images)
        codes = self.nearest(vectors.detach())
        quantized = self.codebook(codes).movedim(-1, 1)
        straight = vectors + (quantized - vectors).detach()
        codebook_loss = F.mse_loss(quantized, vectors.detach())
        commitment = F.mse_loss(vectors, quantized.detach())
        return self.decoder(straight), codebook_loss, commitment, codes


def usage(codes: Tensor, size: int) -> tuple[int, float]:
    """How many of ``size`` codes occur, and the perplexity of their frequencies."""
    counts = torch.bincount(codes.flatten(), minlength=size).double()
    p = counts / counts.sum()
    entropy = -(p[p > 0] * p[p > 0].log()).sum()
    return int((counts > 0).sum()), float(entropy.exp())
