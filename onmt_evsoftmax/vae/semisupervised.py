"""The semi-supervised VAE's networks and its losses on labelled and on unlabelled images.

For unlabelled images the expectation over z is exact over the support of q: only pairs of an image
and a class that has mass are encoded and decoded. Or it is estimated from samples.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import get_loss
from onmt_evsoftmax.vae import latent
from onmt_evsoftmax.vae.estimators import Estimator, marginalize


class LabelledPerceptron(nn.Module):
    """A perceptron of an input (…, I) with a class (…, K) concatenated.

    The first layer's two halves are applied apart, so that an image's half is computed once for all
    of its classes, and a class's half is a row of the weights.
    """

    def __init__(self, inputs: int, classes: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.first = nn.Linear(inputs + classes, hidden)
        deeper = (m for _ in range(layers - 1) for m in (nn.Linear(hidden, hidden), nn.ReLU()))
        self.rest = nn.Sequential(nn.ReLU(), *deeper, nn.Linear(hidden, outputs))

    def input_part(self, inputs: Tensor) -> Tensor:
        """(R, I) → (R, hidden)."""
        return F.linear(inputs, self.first.weight[:, : self.inputs], self.first.bias)

    def class_part(self, classes: Tensor) -> Tensor:
        """Whole classes (R,) of integers, or relaxed ones (R, K) → (R, hidden)."""
        weight = self.first.weight[:, self.inputs :].t()
        return classes @ weight if classes.is_floating_point() else weight[classes]

    def forward(self, input_part: Tensor, class_part: Tensor) -> Tensor:
        return self.rest(input_part + class_part)


class SSVAE(nn.Module):
    """Classifier q(z | x), inference network q(h | x, z) and generative network p(x | z, h).

    ``decoded`` counts the rows that the generative network was applied to.
    """

    def __init__(
        self,
        pixels: int,
        classes: int,
        width: int = 256,
        hidden: int = 128,
        gaussian: int = 8,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.classes, self.gaussian, self.decoded = classes, gaussian, 0
        sizes = [pixels, width, width, width]
        self.features = nn.Sequential(
            *(m for i, o in itertools.pairwise(sizes) for m in (nn.Linear(i, o), nn.ReLU()))
        )
        self.scores = nn.Linear(width, classes)
        self.inference = LabelledPerceptron(pixels, classes, hidden, layers, 2 * gaussian)
        self.generative = LabelledPerceptron(gaussian, classes, hidden, layers, pixels)

    def classify(self, x: Tensor) -> Tensor:
        """Scores (N, K) of the digits."""
        return self.scores(self.features(x))

    def decode(self, h: Tensor, classes: Tensor) -> Tensor:
        """Scores (R, pixels) of rows h (R, G) with their classes (R,), or relaxed ones (R, K)."""
        self.decoded += len(h)
        network = self.generative
        return network(network.input_part(h), network.class_part(classes))


class _BernoulliCost(torch.autograd.Function):
    """−log p(x) (R,) of images x (R, pixels) of 0 and 1 under Bernoulli scores (R, pixels).

    One sigmoid serves value and gradient: half the time of torch's binary cross-entropy, in which
    training would spend a quarter of its time.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, x: Tensor) -> Tensor:
        sign = x.mul(2).sub_(1)
        right = torch.sigmoid(sign * scores)  # the probability of the pixel that is there
        ctx.save_for_backward(sign, right)
        return -right.clamp(min=torch.finfo(right.dtype).tiny).log_().sum(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        sign, right = ctx.saved_tensors
        return (right - 1).mul_(sign).mul_(gradient.unsqueeze(-1)), None


_bernoulli_cost: Callable[[Tensor, Tensor], Tensor] = _BernoulliCost.apply


class NegativeElbo:
    """The cost −ELBO(x, z) of each class z for a batch x (N, pixels) of 0 and 1.

    ``noise`` (N, K, G) is drawn for every pair, so that the cost of a pair does not depend on which
    other pairs are computed.
    """

    def __init__(self, model: SSVAE, x: Tensor, noise: Tensor | None = None) -> None:
        self.model, self.x = model, x
        self.image = model.inference.input_part(x)
        if noise is None:
            shape = (len(x), model.classes, model.gaussian)
            noise = torch.randn(shape, device=x.device, dtype=x.dtype)
        self.noise = noise

    def part(self, rows: slice) -> NegativeElbo:
        """The cost of some of the images."""
        part = copy.copy(self)
        part.x, part.image, part.noise = self.x[rows], self.image[rows], self.noise[rows]
        return part

    def pairs(self, rows: Tensor, classes: Tensor) -> Tensor:
        """Costs (P,) of images ``rows`` (P,) as ``classes`` (P,)."""
        # `index_select` copies whole rows; `x[rows]` takes ten times as long.
        image, x = self.image.index_select(0, rows), self.x.index_select(0, rows)
        return self._cost(image, classes, self.noise[rows, classes], x)

    def relaxed(self, z: Tensor) -> Tensor:
        """Costs (N,) of relaxed classes (N, K)."""
        return self._cost(self.image, z, self.noise[:, 0], self.x)

    def _cost(self, image: Tensor, classes: Tensor, noise: Tensor, x: Tensor) -> Tensor:
        inference = self.model.inference
        mean, log_variance = inference(image, inference.class_part(classes)).chunk(2, -1)
        h = mean + (log_variance / 2).exp() * noise
        rebuilt = _bernoulli_cost(self.model.decode(h, classes), x)
        kl: Tensor = (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1) / 2
        return rebuilt + kl


class Losses(NamedTuple):
    """What a batch costs, and how many classes q gives mass to.

    ``known`` (a number) is the mean over labelled images of −ELBO of the right class and the
    normalizer's own classification loss. ``unknown`` (M,) is E_q[−ELBO(x, z)] + KL(q ‖ uniform) of
    each unlabelled image, ``support`` (M,) the size of its q's support, and ``nonzero`` (M,) how
    many probabilities are not 0 in float32: the published count, which underflow lowers.
    """

    known: Tensor
    unknown: Tensor
    support: Tensor
    nonzero: Tensor


def losses(
    model: SSVAE,
    normalizer: str,
    x: Tensor,
    labels: Tensor,
    estimator: Estimator | None = None,
    noise: Tensor | None = None,
    negligible: float = 0.0,
) -> Losses:
    """Of images x (N + M, pixels), of which the first N have labels (N,); N or M may be 0.

    Without an estimator the expectation over z is exact. Pairs of an image and a class with q below
    ``negligible`` are not decoded.
    """
    count = len(labels)
    scores = model.classify(x)
    q, support = latent.exact(normalizer, scores[count:])
    cost = NegativeElbo(model, x, noise)
    # A known label is a q with one class, so labelled images are decoded along with the others.
    sure = F.one_hot(labels, model.classes)
    if estimator is None:
        both = torch.cat([sure.to(q), q]), torch.cat([sure.bool(), support])
        rebuilt = marginalize(*both, cost, negligible)
        known, expected = rebuilt[:count], rebuilt[count:]
    else:
        known = marginalize(sure.to(q), sure.bool(), cost.part(slice(count)))
        rest = slice(count, None)
        expected = estimator(scores[rest], cost.part(rest), x[rest])
    own = get_loss(normalizer)(scores[:count], labels) if count else torch.zeros(())
    return Losses(
        known.sum() / max(count, 1) + own,
        expected - latent.entropy(q) + math.log(model.classes),
        support.sum(-1),
        (q.float() != 0).sum(-1),
    )
