"""One query per head, as in decoding: the kernel that reads keys and values where they are.

The explicit backend in float64 is the definition here.
"""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import random
from compiled import needs_kernels, with_each_instruction_set
from test_attention_terms import KINDS, NAMES, normalizer_of, terms

from onmt_evsoftmax import kernels, sparse_attention
from onmt_evsoftmax.attention.fused import single_query

pytestmark = [*with_each_instruction_set, needs_kernels]

LENGTHS = [1, 2, 7, 8, 9, 16, 17, 33, 127, 256, 257, 512, 4097]


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def tensors(keys: int, size: int = 16, batch: int = 3, heads: int = 2):
    """Query, key and value as OpenNMT-py lays them out: (batch, length, heads, size), turned."""
    shapes = [(batch, length, heads, size) for length in (1, keys, keys)]
    return [random(*shape, seed=i).transpose(1, 2) * 2 for i, shape in enumerate(shapes)]


def expected(name, given, mask=None, positions=None):
    """Context and probabilities by the definition, in float64."""
    query, key, value = (t.double() for t in given)
    module = normalizer_of(name, query.size(1), torch.float64)
    positions = positions and positions.to(torch.float64)
    context = sparse_attention(
        query,
        key,
        value,
        mask,
        normalizer=module,
        positions=positions,
        backend="explicit",
    )
    everything = torch.eye(key.size(2), dtype=torch.float64).expand(*key.shape[:3], key.size(2))
    without = positions and positions._replace(relative_values=None)
    p = sparse_attention(
        query, key, everything, mask, normalizer=module, positions=without, backend="explicit"
    )
    return context, p


def check(name, given, mask=None, positions=None):
    key_mask = None if mask is None else mask[..., 0, :]
    module = normalizer_of(name, given[0].size(1))
    context, p = single_query(*given, key_mask, module, positions)
    for found, right in zip((context, p), expected(name, given, mask, positions), strict=True):
        torch.testing.assert_close(found.double(), right, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keys", LENGTHS)
def test_any_length(name, keys):
    check(name, tensors(keys))


@pytest.mark.parametrize("size", [1, 7, 8, 12, 64, 200, 256])
def test_any_size_of_a_head(size):
    check("sparsemax", tensors(20, size))


@pytest.mark.parametrize("name", NAMES)
def test_masks(name):
    mask = random(3, 1, 1, 40, seed=9) > -0.5
    check(name, tensors(40), mask)
    check(name, tensors(40), mask.expand(3, 2, 1, 40))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [0, 3, 39, 60])
def test_positions(name, kind, offset):
    check(name, tensors(40), random(3, 1, 1, 40, seed=9) > -1, terms(kind, 2, 16, offset=offset))


def test_a_call_with_one_query_takes_it(monkeypatch):
    calls = []
    real = kernels.single_query
    monkeypatch.setattr(kernels, "single_query", lambda *a: calls.append(1) or real(*a))
    query, key, value = tensors(20)
    found = sparse_attention(query, key, value)
    assert calls == [1]
    with torch.enable_grad():
        other = sparse_attention(query.clone().requires_grad_(), key, value)
    sparse_attention(query, key, value, is_causal=True)
    sparse_attention(query, key, value, dropout_p=0.5)
    sparse_attention(query, key, value, torch.zeros(1, 20))
    torch.func.vmap(sparse_attention)(query, key, value)
    masks = random(4, 1, 20, seed=9) > -1
    batched = torch.func.vmap(lambda mask: sparse_attention(query, key, value, mask))(masks)
    assert calls == [1]
    torch.testing.assert_close(found, other.detach())
    torch.testing.assert_close(batched[3], sparse_attention(query, key, value, masks[3]))
    sparse_attention(query.bfloat16(), key.bfloat16(), value.bfloat16())
    assert len(calls) == 3


@pytest.mark.parametrize("name", NAMES)
def test_what_is_excluded_does_nothing_and_what_is_broken_shows(name):
    query, key, value = tensors(12)
    mask = torch.ones(3, 1, 1, 12, dtype=torch.bool)
    mask[1, ..., 5:] = False
    mask[2] = False
    key[1, :, 7], value[1, :, 8], key[2] = math.nan, math.inf, math.nan
    module = normalizer_of(name, 2)
    context, p = single_query(query, key, value, mask[..., 0, :], module, None)
    short, short_p = single_query(
        query[1:2], key[1:2, :, :5], value[1:2, :, :5], None, module, None
    )
    assert torch.equal(context[1:2], short)
    assert torch.equal(p[1:2, ..., :5], short_p)
    assert not p[1, ..., 5:].any()
    assert not context[2].any()
    assert not p[2].any()
    key[0, :, 3] = math.nan
    context, p = single_query(query, key, value, mask[..., 0, :], module, None)
    assert context[0].isnan().all()
    assert p[0].isnan().all()
    assert torch.equal(context[1:2], short)


@pytest.mark.parametrize("name", NAMES)
def test_equal_keys_have_equal_weights(name):
    query, key, value = tensors(19, size=12)
    key = key[:, :, :1].expand_as(key)
    _, p = single_query(query, key, value, None, normalizer_of(name, 2), None)
    assert torch.equal(p, p[..., :1].expand_as(p))


def test_no_keys_at_all():
    assert single_query(*tensors(0), None, "sparsemax", None) is None
    context = sparse_attention(*tensors(0), normalizer="sparsemax")
    assert context.shape == (3, 2, 1, 16)
    assert not context.any()


def test_what_it_does_not_take():
    query, key, value = tensors(5)
    assert single_query(query, key, value, None, "softmax", None) is None
    assert single_query(key, key, value, None, "evsoftmax", None) is None
    doubles = (t.double() for t in (query, key, value))
    assert single_query(*doubles, None, "evsoftmax", None) is None
