"""Traced and exported models: torch computes, and other programs get the right answer."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from onmt_evsoftmax import sparse_attention
from onmt_evsoftmax.normalizers.registry import get_normalizer, records

NAMES = [record.name for record in records()]
each = pytest.mark.parametrize("name", NAMES)


class Head(nn.Module):
    """A layer, a normalizer with a mask (True = takes part), and a layer that reads it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.normalizer = get_normalizer(name)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.last(self.normalizer(3 * self.first(x), mask))


class Attention(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.name, self.layer = name, nn.Linear(6, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = self.layer(x)
        return sparse_attention(q, 2 * q, q, mask, is_causal=True, normalizer=self.name)


def case(kind: str, name: str) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A model and two inputs: the second is not what it is traced with."""
    generator = torch.Generator().manual_seed(2)
    if kind == "rows":
        model, shapes = Head(name), ((4, 6), (4, 8))
    else:
        model, shapes = Attention(name), ((2, 5, 6), (2, 1, 5))
    inputs = []
    for _ in range(2):
        mask = torch.rand(shapes[1], generator=generator) < 0.8
        mask[..., 0] = True
        inputs.append((torch.randn(shapes[0], generator=generator), mask))
    return model.eval(), inputs


kinds = pytest.mark.parametrize("kind", ["rows", "attention"])


@each
@kinds
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_trace(kind, name, frozen):
    model, (first, second) = case(kind, name)
    for parameter in model.parameters():
        parameter.requires_grad_(not frozen)
    with torch.set_grad_enabled(not frozen):
        traced = torch.jit.trace(model, first)
    stored = io.BytesIO()
    torch.jit.save(traced, stored)
    stored.seek(0)
    loaded = torch.jit.load(stored)
    for inputs in (first, second):
        torch.testing.assert_close(loaded(*inputs), model(*inputs), atol=2e-6, rtol=1e-5)


@each
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_traced_model_has_the_right_gradients(name):
    model, (first, second) = case("rows", name)
    traced = torch.jit.trace(model, first)
    x = second[0].clone().requires_grad_()
    for inputs in (first, second):
        x = inputs[0].clone().requires_grad_()
        (got,) = torch.autograd.grad(traced(x, inputs[1]).square().sum(), x)
        (want,) = torch.autograd.grad(model(x, inputs[1]).square().sum(), x)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@each
@kinds
def test_torch_export(kind, name):
    model, (first, second) = case(kind, name)
    program = torch.export.export(model, first)
    assert not any("onmt_evsoftmax" in str(node.target) for node in program.graph.nodes)
    for inputs in (first, second):
        torch.testing.assert_close(program.module()(*inputs), model(*inputs), atol=2e-6, rtol=1e-5)


@each
@kinds
@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx(kind, name, dynamo, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    if dynamo and kind == "attention" and name not in ("evsoftmax", "sparsemax"):
        pytest.skip("takes long; rows and two kinds of attention show it")
    model, (first, second) = case(kind, name)
    path = str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, first, path, dynamo=dynamo, verbose=False)
    session = onnxruntime.InferenceSession(path)
    names = [given.name for given in session.get_inputs()]
    for inputs in (first, second):
        given = dict(zip(names, (t.numpy() for t in inputs), strict=True))
        (got,) = session.run(None, given)
        np.testing.assert_allclose(got, model(*inputs).detach().numpy(), atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_learned_alphas_and_other_lengths_are_exported_too():
    model, (first, second) = case("rows", "entmax")
    model.normalizer = get_normalizer("entmax", alpha="learn")
    batch = {0: torch.export.Dim("batch", min=2)}
    program = torch.export.export(model, first, dynamic_shapes=(batch, batch))
    traced = torch.jit.trace(model, first)
    longer = tuple(torch.cat([one, two]) for one, two in zip(first, second, strict=True))
    for inputs in (first, second, longer):
        for exported in (program.module(), traced):
            torch.testing.assert_close(exported(*inputs), model(*inputs), atol=2e-6, rtol=1e-5)


def test_what_cannot_be_exported_is_refused_by_name():
    class Dropping(nn.Module):
        def __init__(self, **options) -> None:
            super().__init__()
            self.options = options

        def forward(self, x):
            return sparse_attention(x, x, x, **self.options)

    x = torch.randn(1, 2, 5, 8)
    for options, says in (
        ({"dropout_p": 0.5}, "dropout cannot be exported"),
        ({"backend": "fused"}, "cannot be exported|not compiled"),
    ):
        with pytest.raises(Exception, match=says):
            torch.jit.trace(Dropping(**options), x)
        with pytest.raises(Exception, match=says):
            torch.export.export(Dropping(**options), (x,))
