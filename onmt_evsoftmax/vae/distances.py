"""How far a predicted distribution over digits is from the right one.

``p`` and ``q`` are probabilities (…, K) over the same K labels. The labels' positions are 0 … K−1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def label_wasserstein(p: Tensor, q: Tensor) -> Tensor:
    """W1 (…) on the label positions: how far mass must move along 0 … K−1. Even to odd is 1.0."""
    return (p - q).cumsum(-1).abs().sum(-1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Half the L1 distance (…): how much mass is on wrong labels, all mistakes being equal."""
    return (p - q).abs().sum(-1) / 2


def legacy_wasserstein(p: Tensor, q: Tensor) -> Tensor:
    """What the published code computed (…): W1 between the *values* of p and of q as samples.

    It does not see which label has which probability, so even against odd is 0. Reported only to be
    comparable with the paper's Figure 3.
    """
    return (p.sort(-1).values - q.sort(-1).values).abs().mean(-1)


def parity_targets(classes: int = 10) -> Tensor:
    """Uniform over the even labels and over the odd ones: (2, classes)."""
    parity = torch.arange(classes) % 2
    target = torch.stack([parity == 0, parity == 1]).double()
    return target / target.sum(-1, keepdim=True)
