"""Attention with terms of its own for every head or distance: alphas, relative positions, ALiBi.

The explicit backend in float64 is the definition here; the references of the other tests hold it
against NumPy.
"""

from __future__ import annotations

import math

import functional
import pytest
import torch
from attention_cases import generator, random
from attention_reference import ALPHAS
from compiled import needs_kernels, with_each_instruction_set

from onmt_evsoftmax import get_normalizer, kernels, sparse_attention
from onmt_evsoftmax.attention import Positions


def each_set(test):
    for mark in with_each_instruction_set:
        test = mark(test)
    return test


NAMES = [*ALPHAS, "entmax"]
KINDS = ["relative", "keys", "values", "alibi", "both"]
LENGTHS = [(1, 1), (9, 9), (1, 40), (65, 65), (130, 70), (33, 200)]


def terms(kind: str, heads: int, size: int, window: int = 4, offset: int = 0) -> Positions:
    tables = [random(2 * window + 1, size, seed=20 + i) for i in range(2)]
    slopes = torch.linspace(0.05, 0.5, heads)
    return Positions(
        tables[0] if kind in ("relative", "keys", "both") else None,
        tables[1] if kind in ("relative", "values", "both") else None,
        slopes if kind in ("alibi", "both") else None,
        offset,
    )


def normalizer_of(name: str, heads: int, dtype: torch.dtype = torch.float32):
    """entmax with a learned alpha for every head, from 1.2 to 1.8."""
    if name != "entmax":
        return name
    module = get_normalizer("entmax", alpha="learn", heads=heads)
    start = torch.linspace(-1.4, 1.4, heads).view(heads, 1, 1)
    module.pre_alpha.data.copy_(start)
    return module.to(dtype)


def both_passes(name, tensors, positions, dtype, backend, **options):
    """Output, and gradients of all that has one."""
    query, key, value = leaves = [t.to(dtype).requires_grad_() for t in tensors]
    normalizer = normalizer_of(name, query.size(-3), dtype)
    given = positions
    if positions is not None:
        tables = [
            None if t is None else t.to(dtype).clone().requires_grad_() for t in positions[:2]
        ]
        slopes = None if positions.slopes is None else positions.slopes.to(dtype)
        given = Positions(*tables, slopes, positions.offset)
        leaves += [t for t in tables if t is not None]
    if not isinstance(normalizer, str):
        leaves.append(normalizer.pre_alpha)
    out = sparse_attention(
        query, key, value, normalizer=normalizer, positions=given, backend=backend, **options
    )
    grad = torch.randn(out.shape, generator=generator(5)).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def check(name, tensors, positions, **options):
    got = both_passes(name, tensors, positions, torch.float32, "fused", **options)
    want = both_passes(name, tensors, positions, torch.float64, "explicit", **options)
    for g, w in zip(got, want, strict=True):
        # Slopes p^(2 - alpha) of probabilities near 0 magnify their rounding.
        bound = (1e-4 if name == "entmax" else 2e-5) * max(1.0, w.abs().max().item())
        torch.testing.assert_close(g.double(), w, atol=bound, rtol=1e-4)


@each_set
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_position_terms_are_those_of_the_definition(name, kind, lengths):
    queries, keys = lengths
    tensors = [random(2, 3, n, 24, seed=i) for i, n in enumerate((queries, keys, keys))]
    positions = terms(kind, 3, 24, offset=max(keys - queries, 0))
    check(name, tensors, positions)
    mask = torch.rand(2, 1, 1, keys, generator=generator(7)) < 0.8
    check(name, tensors, positions, attn_mask=mask, is_causal=queries == keys)


@each_set
@pytest.mark.parametrize("name", NAMES)
def test_position_terms_with_everything_else(name):
    tensors = [random(2, 3, 70, 16, seed=i) for i in range(3)]
    positions = terms("both", 3, 16, window=40)
    bias = random(3, 70, 70, seed=9)
    mask = torch.rand(2, 1, 70, 70, generator=generator(7)) < 0.7
    for limits in (bias, mask, None):
        check(name, tensors, positions, attn_mask=limits)
    dropped = [
        sparse_attention(
            *tensors, bias, 0.4, normalizer=normalizer_of(name, 3), positions=positions,
            generator=generator(1), backend=backend,
        )
        for backend in ("fused", "explicit")
    ]  # fmt: skip
    torch.testing.assert_close(*dropped, atol=5e-5, rtol=1e-4)


@each_set
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(0, 8), (8, 0), (0, 0)])
@pytest.mark.parametrize("queries", [1, 9])
def test_heads_of_size_0(name, sizes, queries):
    """Only the distance of a key then tells it from others."""
    shapes = ((queries, sizes[0]), (10, sizes[0]), (10, sizes[1]))  # 9 would have ties
    tensors = [random(1, 2, *shape, seed=i) for i, shape in enumerate(shapes)]
    keys, values, slopes, _ = terms("both", 2, 8)
    positions = Positions(keys[:, : sizes[0]], values[:, : sizes[1]], slopes)
    got = both_passes(name, tensors, positions, torch.float32, "fused")
    want = both_passes(name, tensors, positions, torch.float64, "explicit")
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.double(), w, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        out = sparse_attention(*tensors, normalizer=normalizer_of(name, 2), positions=positions)
    torch.testing.assert_close(out, got[0])


@each_set
@pytest.mark.parametrize("lengths", [(1, 1), (7, 16), (64, 128), (65, 129), (2, 700)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_an_alpha_for_every_head(lengths, is_causal):
    queries, keys = lengths
    tensors = [random(2, 4, n, 24, seed=i) for i, n in enumerate((queries, keys, keys))]
    check("entmax", tensors, None, is_causal=is_causal)
    whole = torch.rand(2, 1, queries, keys, generator=generator(7)) < 0.7
    check("entmax", tensors, None, attn_mask=whole)


@needs_kernels
@pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0])
def test_a_number_for_alpha(alpha):
    tensors = [random(1, 2, 40, 16, seed=i) for i in range(3)]
    module = get_normalizer("entmax", alpha=alpha)
    out = sparse_attention(*tensors, normalizer=module, backend="fused")
    expected = sparse_attention(*(t.double() for t in tensors), normalizer=module)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
def test_dropout_and_second_derivatives(name):
    tensors = [random(1, 2, 6, 4, seed=i) for i in range(3)]
    positions = terms("both", 2, 4, window=2)

    def penalty(backend, dtype):
        leaf = tensors[0].to(dtype).requires_grad_()
        others = [t.to(dtype) for t in tensors[1:]]
        given = positions.to(dtype)
        out = sparse_attention(
            leaf, *others, None, 0.3, normalizer=normalizer_of(name, 2, dtype), positions=given,
            generator=generator(2), backend=backend,
        )  # fmt: skip
        (first,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0].double()

    fused, explicit = penalty("fused", torch.float32), penalty("explicit", torch.float64)
    torch.testing.assert_close(fused, explicit, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("positions", "says"),
    [
        (Positions(slopes=torch.ones(3, requires_grad=True)), "slopes that need a gradient"),
        (Positions(random(1, 8), random(1, 8)), "one row for all distances"),
        (Positions(relative_values=random(1, 8)), "one row for all distances"),
    ],
)
def test_terms_that_no_kernel_computes_are_computed_all_the_same(positions, says):
    tensors = [random(2, 3, 6, 8, seed=i) for i in range(3)]
    out = sparse_attention(*tensors, positions=positions)
    expected = sparse_attention(*tensors, positions=positions, backend="explicit")
    torch.testing.assert_close(out, expected)
    if positions.slopes is not None:
        (grad,) = torch.autograd.grad(out.square().sum(), positions.slopes)
        assert (grad != 0).all()
    if kernels.available():
        with pytest.raises(ValueError, match=says):
            sparse_attention(*tensors, positions=positions, backend="fused")


def test_the_definition_of_relative_positions_and_alibi():
    """Against the formulas, a loop over all pairs."""
    query, key, value = (random(5, 8, seed=i).double() for i in range(3))
    positions = terms("both", 1, 8, window=2).to(torch.float64)
    slope = positions.slopes.item()
    scores = torch.zeros(5, 5, dtype=torch.float64)
    clipped = [[max(-2, min(2, j - i)) + 2 for j in range(5)] for i in range(5)]
    for i in range(5):
        for j in range(5):
            turned = key[j] + positions.relative_keys[clipped[i][j]]
            scores[i, j] = query[i] @ turned / math.sqrt(8) - slope * abs(i - j)
    p = functional.sparsemax(scores)
    expected = torch.stack(
        [
            sum(p[i, j] * (value[j] + positions.relative_values[clipped[i][j]]) for j in range(5))
            for i in range(5)
        ]
    )
    given = positions._replace(slopes=positions.slopes[0])
    out = sparse_attention(query, key, value, normalizer="sparsemax", positions=given)
    torch.testing.assert_close(out, expected)


def test_tables_that_do_not_fit_are_refused():
    query = random(1, 2, 5, 8)
    for positions, says in (
        (Positions(random(4, 8)), "odd number"),
        (Positions(random(5, 7)), "a row of 8"),
        (Positions(random(5, 8), random(3, 8)), "as many distances"),
        (Positions(slopes=random(3)), "do not fit"),
    ):
        with pytest.raises(ValueError, match=says):
            sparse_attention(query, query, query, positions=positions)


@needs_kernels
@pytest.mark.parametrize("name", ["evsoftmax", "sparsemax"])
def test_compiled_with_positions(name):
    tensors = [random(1, 2, 20, 8, seed=i).requires_grad_() for i in range(3)]
    table = random(9, 8, seed=4).requires_grad_()

    def attend(query, key, value, table):
        positions = Positions(table, table)
        return sparse_attention(query, key, value, normalizer=name, positions=positions)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    results = []
    for function in (compiled, attend):
        out = function(*tensors, table)
        results.append([out, *torch.autograd.grad(out.square().sum(), [*tensors, table])])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
