"""A million small calls keep memory flat, and calls from several Python threads are safe."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import functional
import pytest
import torch
from compiled import needs_kernels
from row_cases import generator

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention

pytestmark = needs_kernels

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="reads memory use from /proc, which is Linux's"
)


def rows_of(scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaf = scores.clone().requires_grad_()
    p, support = functional.entmax15(leaf, return_support=True)
    return p.detach(), support, *torch.autograd.grad(p.square().sum(), leaf)


def attention_of(scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaf = scores.clone().requires_grad_()
    out = evsoftmax_attention(leaf, leaf, leaf, is_causal=True, backend="fused")
    return out.detach(), *torch.autograd.grad(out.square().sum(), leaf)


@pytest.mark.parametrize("compute", [rows_of, attention_of])
@pytest.mark.parametrize("inner", [1, 2])
def test_calls_from_several_python_threads(instruction_set, compute, inner):
    """Each of them also asks OpenMP for ``inner`` threads."""
    inputs = [torch.randn(200, 30 + 7 * i, generator=generator(i)) for i in range(8)]
    expected: list[tuple[torch.Tensor, ...]] = []
    wrong, before = [], torch.get_num_threads()

    def work(i: int) -> None:
        for _ in range(30):
            same = zip(compute(inputs[i]), expected[i], strict=True)
            if not all(torch.equal(got, want) for got, want in same):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    torch.set_num_threads(inner)
    try:
        expected += [compute(scores) for scores in inputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch.set_num_threads(before)
    assert not wrong


def call_rows() -> Callable[[], object]:
    scores = torch.randn(2, 3, 9, requires_grad=True)
    mask = torch.ones(2, 1, 9, dtype=torch.bool)
    half = torch.randn(2, 200).bfloat16()

    def once() -> None:
        functional.evsoftmax(scores, mask).sum().backward()
        kernels.rows_forward("sparsemax", half)

    return once


def call_attention() -> Callable[[], object]:
    query, key = (torch.randn(1, 2, length, 8, requires_grad=True) for length in (3, 5))
    mask = torch.ones(5, dtype=torch.bool)
    return lambda: evsoftmax_attention(query, key, key, mask, backend="fused").sum().backward()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def grown_by(calls: int, once: Callable[[], object]) -> int:
    for _ in range(2000):
        once()
    gc.collect()
    before = resident_bytes()
    for _ in range(calls):
        once()
    gc.collect()
    return resident_bytes() - before


@needs_proc
@pytest.mark.parametrize("make", [call_rows, call_attention])
def test_calls_do_not_leak(make):
    assert grown_by(5_000, make()) < 2**18  # 50 bytes a call


@needs_proc
@pytest.mark.slow
@pytest.mark.skipif("ONMT_EVSOFTMAX_SLOW" not in os.environ, reason="set ONMT_EVSOFTMAX_SLOW=1")
@pytest.mark.parametrize("make", [call_rows, call_attention])
def test_a_million_calls_do_not_leak(make):
    assert grown_by(1_000_000, make()) < 2**21
