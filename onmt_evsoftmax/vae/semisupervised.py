"""The semi-supervised VAE's networks and its losses on labelled and on unlabelled images.

For unlabelled images the expectation over z is exact over the support of q: only pairs of an image
and a class that has mass are encoded and decoded. Or it is estimated from samples.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import get_loss
from onmt_evsoftmax.vae import latent
from onmt_evsoftmax.vae.estimators import Estimator, marginalize


def _deeper(hidden: int, layers: int) -> nn.Sequential:
    """The hidden layers after the first; nothing if there is only one."""
    return nn.Sequential(
        *(m for _ in range(layers - 1) for m in (nn.Linear(hidden, hidden), nn.ReLU()))
    )


class Decoder(nn.Module):
    """p(x | z, h): a row of scores (R, pixels) per row of z's contribution and of h (R, G).

    ``calls`` counts the rows that were decoded.
    """

    def __init__(self, classes: int, gaussian: int, hidden: int, pixels: int, layers: int) -> None:
        super().__init__()
        self.label = nn.Linear(classes, hidden, bias=False)
        self.code = nn.Linear(gaussian, hidden)
        self.deeper = _deeper(hidden, layers)
        self.out = nn.Linear(hidden, pixels)
        self.calls = 0

    def forward(self, label: Tensor, code: Tensor) -> Tensor:
        self.calls += len(code)
        return self.out(self.deeper(F.relu(label + self.code(code))))


class SSVAE(nn.Module):
    """Classifier q(z | x), inference network q(h | x, z) and generative network p(x | z, h)."""

    def __init__(
        self,
        pixels: int,
        classes: int,
        width: int = 256,
        hidden: int = 128,
        gaussian: int = 8,
        layers: int = 1,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(pixels, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.scores = nn.Linear(width, classes)
        self.image = nn.Linear(pixels, hidden)
        self.label = nn.Linear(classes, hidden, bias=False)
        self.deeper = _deeper(hidden, layers)
        self.moments = nn.Linear(hidden, 2 * gaussian)
        self.decoder = Decoder(classes, gaussian, hidden, pixels, layers)

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
        moments = self.model.moments(self.model.deeper(F.relu(hidden)))
        mean, log_variance = moments.chunk(2, -1)
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
