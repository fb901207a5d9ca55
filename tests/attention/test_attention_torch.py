"""Attention under torch's transformations, and the memory it takes."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch
from attention_cases import generator, random
from attention_reference import ALPHAS
from compiled import needs_kernels

from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention


@needs_kernels
def test_compiles_without_graph_breaks():
    tensors = [random(2, 2, 30, 8, seed=i).requires_grad_() for i in range(3)]
    mask = torch.arange(30) < 25
    compiled = torch.compile(evsoftmax_attention, fullgraph=True, backend="aot_eager")
    for options in ({}, {"is_causal": True}):
        expected = evsoftmax_attention(*tensors, mask, **options)
        out = compiled(*tensors, mask, **options)
        assert torch.equal(out, expected)
        grads = torch.autograd.grad(out.square().sum(), tensors)
        for got, want in zip(
            grads, torch.autograd.grad(expected.square().sum(), tensors), strict=True
        ):
            torch.testing.assert_close(got, want)
    dropped = compiled(*tensors, dropout_p=0.5)
    assert dropped.isfinite().all()


@needs_kernels
def test_compiles_where_nothing_or_one_tensor_needs_a_gradient():
    compiled = torch.compile(evsoftmax_attention, fullgraph=True, backend="aot_eager")
    tensors = [random(2, 2, 30, 8, seed=i) for i in range(3)]
    mask = torch.arange(30) < 25
    assert torch.equal(compiled(*tensors, mask), evsoftmax_attention(*tensors, mask))
    with torch.inference_mode():
        assert torch.equal(compiled(*tensors), evsoftmax_attention(*tensors))
    leaf = tensors[0].requires_grad_()  # self-attention: the same tensor three times
    out, expected = compiled(leaf, leaf, leaf), evsoftmax_attention(leaf, leaf, leaf)
    assert torch.equal(out, expected)
    (got,) = torch.autograd.grad(out.square().sum(), leaf)
    (want,) = torch.autograd.grad(expected.square().sum(), leaf)
    torch.testing.assert_close(got, want)


@needs_kernels
def test_operators_keep_torch_s_rules():
    tensors = [random(2, 2, 20, 8, seed=i).requires_grad_() for i in range(3)]
    mask, bias = torch.ones(2, 1, 1, 20, dtype=torch.bool), random(1, 2, 20, 20)
    forward = torch.ops.onmt_evsoftmax.attention_forward.default
    for name in ALPHAS:
        plain = (None, None, None, None, None, 0, True, 0.3, 0.0)
        torch.library.opcheck(forward, (name, *tensors, mask, None, *plain))
        table, slopes = random(5, 8).requires_grad_(), torch.ones(2, 2)
        terms = (None, table, table.detach().clone().requires_grad_(), slopes, torch.tensor(7))
        dropped = (name, *tensors, None, bias, *terms, 1, False, 0.3, 0.5)
        torch.library.opcheck(forward, dropped)
    alpha = torch.full((2, 2), 1.3, requires_grad=True)
    options = (alpha, None, None, None, None, 0, True, 0.3, 0.0)
    torch.library.opcheck(forward, ("entmax", *tensors, mask, None, *options))


@needs_kernels
def test_vmap_equals_a_loop():
    query, key, value = (random(3, 2, 20, 8, seed=i) for i in range(3))
    mask = torch.rand(3, 20, generator=generator(3)) < 0.8
    looped = torch.stack([evsoftmax_attention(*t) for t in zip(query, key, value, strict=True)])
    assert torch.equal(torch.vmap(evsoftmax_attention)(query, key, value), looped)
    shared = torch.vmap(evsoftmax_attention, in_dims=(0, None, None))(query, key[0], value[0])
    torch.testing.assert_close(shared[1], evsoftmax_attention(query[1], key[0], value[0]))
    masked = torch.vmap(evsoftmax_attention)(query, key, value, mask)
    torch.testing.assert_close(masked[2], evsoftmax_attention(query[2], key[2], value[2], mask[2]))
    gradient = torch.func.grad(lambda q: evsoftmax_attention(q, key[0], value[0]).square().sum())
    leaf = query[0].clone().requires_grad_()
    evsoftmax_attention(leaf, key[0], value[0]).square().sum().backward()
    torch.testing.assert_close(gradient(query[0]), leaf.grad, atol=1e-5, rtol=1e-4)


@needs_kernels
def test_vmap_drops_by_one_seed_or_says_so():
    query, key, value = (random(3, 2, 20, 8, seed=i) for i in range(3))

    def dropped(*tensors, backend="auto"):
        return evsoftmax_attention(*tensors, dropout_p=0.5, backend=backend)

    same = torch.vmap(dropped, randomness="same")(query, key, value)
    assert same.shape == (3, 2, 20, 8)
    with pytest.raises(ValueError, match="one seed for the whole batch"):
        torch.vmap(dropped, randomness="different")(query, key, value)
    explicit = functools.partial(dropped, backend="explicit")
    different = torch.vmap(explicit, randomness="different")(query, key, value)
    assert different.shape == (3, 2, 20, 8)


def test_compiles_under_autocast():
    tensors = [random(2, 2, 30, 8, seed=i) for i in range(3)]
    compiled = torch.compile(evsoftmax_attention, fullgraph=True, backend="aot_eager")
    for backend in ("auto", "explicit"):
        with torch.autocast("cpu", torch.bfloat16):
            expected = evsoftmax_attention(*tensors, backend=backend)
            torch.testing.assert_close(compiled(*tensors, backend=backend), expected)


PEAK = """
import resource, torch
from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention
torch.set_num_threads(1)
def run(length):
    tensors = [torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3)]
    evsoftmax_attention(*tensors, backend="fused").sum().backward()
run(256)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(6000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@needs_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_memory_does_not_grow_with_the_square_of_the_length():
    run = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, cwd="."
    )
    assert int(run.stdout) < 30_000, "kilobytes; one matrix of scores would be 144000"
