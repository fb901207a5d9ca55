"""Attention in blocks of queries, in torch: every registered normalizer, with linear memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from attention_cases import generator, random

from onmt_evsoftmax import get_normalizer, sparse_attention
from onmt_evsoftmax.attention import BACKENDS, Positions, blocks
from onmt_evsoftmax.normalizers.registry import normalizer_names

NAMES = normalizer_names("attention")


def both_passes(backend, name, tensors, *arguments, **options):
    leaves = [t.clone().requires_grad_() for t in tensors]
    module = get_normalizer(name, **({"alpha": "learn", "heads": 2} if name == "entmax" else {}))
    out = sparse_attention(
        *leaves, *arguments, normalizer=module, backend=backend, generator=generator(3), **options
    )
    given = [*leaves, *module.parameters()]
    return [out, *torch.autograd.grad(out.square().sum(), given)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Seven queries at a time, at most."""
    monkeypatch.setattr(blocks, "BLOCK", 7 * 4 * 30)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_compute_what_the_definition_does(small_blocks, name, is_causal):
    tensors = [random(2, 2, 30, 8, seed=i).double() for i in range(3)]
    whole = torch.rand(2, 1, 30, 30, generator=generator(1)) < 0.8
    table = random(5, 8, seed=7).double()
    for mask in (None, whole, whole[:, :, :1], random(30, 30, seed=5).double()):
        for dropout_p, positions in ((0.0, None), (0.3, Positions(table, table))):
            arguments = (mask, dropout_p, is_causal)
            got, want = (
                both_passes(backend, name, tensors, *arguments, positions=positions)
                for backend in ("blocks", "explicit")
            )
            for g, w in zip(got, want, strict=True):
                torch.testing.assert_close(g, w)


def test_large_matrices_are_computed_in_blocks_by_themselves(monkeypatch):
    calls = []
    query = random(1, 1, 64, 4).double()
    watched = BACKENDS["blocks"]._replace(run=lambda call: calls.append(call) or call.query)
    monkeypatch.setitem(BACKENDS, "blocks", watched)
    sparse_attention(query, query, query, normalizer="softmax")
    assert not calls
    monkeypatch.setattr(blocks, "WORTH", 64 * 64)
    sparse_attention(query, query, query, normalizer="softmax")
    assert calls


def test_a_function_nobody_registered_is_not_split():
    query = random(1, 1, 4, 4)
    with pytest.raises(ValueError, match="may look at all queries at once"):
        sparse_attention(
            query, query, query, normalizer=lambda s, m, d: torch.softmax(s, d), backend="blocks"
        )


MEASURE = """
import json, sys
import torch
from onmt_evsoftmax import sparse_attention
from onmt_evsoftmax.bench.scaling import _peak_of
torch.set_num_threads(1)
def both(length):
    leaves = [torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3)]
    attend = lambda: sparse_attention(*leaves, normalizer="softmax", backend="blocks")
    return lambda: attend().sum().backward()
both(64)()
print(json.dumps([_peak_of(both(length)) for length in (2048, 8192)]))
"""


def test_memory_does_not_grow_with_the_square_of_the_length():
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    )
    short, long = json.loads(done.stdout)
    assert long < 4 * short  # once it was 15 times as much: gradients of all blocks were kept
    assert long < 0.1 * (2 * 8192 * 8192 * 4)  # one matrix
