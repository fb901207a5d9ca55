"""Rows derived from a sentence's attention: the mean over heads, and attention rollout.

Each function returns the record with one head per layer, so that it is counted and drawn as any
other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from onmt_evsoftmax.trace.record import Attention, Record


def mean_of_heads(record: Record) -> Record:
    """The heads of every layer averaged; a key is attended if any head attends to it."""
    attention = {
        kind: Attention(a.weights.mean(1, keepdims=True), np.any(a.support, 1, keepdims=True))
        for kind, a in record.attention.items()
    }
    return dataclasses.replace(record, attention=attention)


def rollout(record: Record) -> Record:
    """Attention through all layers up to each (Abnar and Zuidema, 2020).

    A layer passes on half of what it attends to and half of itself, the residual connection:
    R_l = (½ A_l + ½ I) R_{l−1}, with A_l the mean over heads. Context attention is carried on
    through the encoder: A_l R, with R that of the encoder's last layer.
    """
    means = mean_of_heads(record).attention
    found = {kind: _self_rollout(means[kind]) for kind in rollout_kinds(means) if kind != "context"}
    if "context" in rollout_kinds(means):
        context, encoder = means["context"], found["encoder"]
        found["context"] = Attention(
            context.weights @ encoder.weights[-1],
            (context.support.astype(np.float32) @ encoder.support[-1]) > 0,
        )
    attention = {kind: found[kind] for kind in record.attention if kind in found}
    return dataclasses.replace(record, attention=attention)


def rollout_kinds(kinds: Iterable[str]) -> list[str]:
    """Of these kinds of attention, those that have a rollout: context needs the encoder's."""
    present = list(kinds)
    return [kind for kind in present if kind != "context" or "encoder" in present]


def _self_rollout(mean: Attention) -> Attention:
    layers, _, rows, keys = mean.shape
    self_weight = np.eye(rows, keys)
    weights, support = np.eye(keys), np.eye(keys, dtype=bool)
    all_weights, all_support = [], []
    for layer in range(layers):
        weights = (0.5 * mean.weights[layer, 0].astype(np.float64) + 0.5 * self_weight) @ weights
        reached = mean.support[layer, 0] | self_weight.astype(bool)
        support = (reached.astype(np.float32) @ support) > 0
        all_weights.append(weights[None])
        all_support.append(support[None])
    return Attention(np.stack(all_weights).astype(np.float32), np.stack(all_support))


#: What a row derived from a layer's heads is called → how it is made.
DERIVED: Mapping[str, Callable[[Record], Record]] = {
    "mean of heads": mean_of_heads,
    "rollout": rollout,
}
