"""Runs the attention kernels where this machine has them, and holds them against the reference."""

from __future__ import annotations

import math

import numpy as np
import torch
from attention_cases import random
from attention_reference import Places, reference
from where import DEVICE

from onmt_evsoftmax.attention import dropout
from onmt_evsoftmax.kernels import Task


def on_device(*tensors):
    return [None if t is None else t.to(DEVICE) for t in tensors]


def run(name, query, key, value, mask=None, bias=None, grad=None, **options):
    """(out, gradients) of the kernels, on the CPU again."""
    from onmt_evsoftmax.kernels.triton.attention import attention_backward, attention_forward

    options.setdefault("scale", 1 / math.sqrt(query.size(-1)))
    tensors = on_device(query, key, value, mask, bias)
    task = Task(
        name,
        *tensors,
        **{n: o.to(DEVICE) if isinstance(o, torch.Tensor) else o for n, o in options.items()},
    )
    out, *rows = attention_forward(task)
    if grad is None:
        return out.cpu(), None
    grads = attention_backward(grad.to(DEVICE), task, out, *rows)
    return out.cpu(), [g.cpu() for g in grads if g is not None]


def check(name, query, key, value, mask=None, bias=None, tolerance=4e-6, **options):
    """Result and gradients of the kernels against the reference."""
    grad = random(*query.shape[:3], value.size(3), seed=5).to(query.dtype)
    factor = None
    if options.get("dropout_p"):
        heads = query.size(0) * query.size(1)
        factor = dropout.factors(
            options["seed"], options["dropout_p"], heads, query.size(2), key.size(2)
        )
    scale = options.get("scale", 1 / math.sqrt(query.size(-1)))
    expected = reference(
        name,
        query,
        key,
        value,
        grad,
        scale,
        mask,
        bias,
        options.get("causal", False),
        factor,
        Places(**{n: options[n] for n in Places._fields if n in options}),
    )
    assert expected.clear.mean() > 0.5
    grad = grad * torch.from_numpy(expected.clear).unsqueeze(-1)
    out, grads = run(name, query, key, value, mask, bias, grad, **options)
    assert out.dtype == query.dtype
    np.testing.assert_allclose(
        out.double().numpy()[expected.clear],
        expected.out[expected.clear],
        atol=tolerance,
        rtol=tolerance * 3,
    )
    for got, want in zip(grads, expected.grads, strict=True):
        bound = 3 * tolerance * max(1.0, np.abs(want).max())
        np.testing.assert_allclose(got.double().numpy(), want, atol=bound, rtol=tolerance * 30)
