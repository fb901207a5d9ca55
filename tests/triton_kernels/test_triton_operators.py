"""The kernels as torch operators: registration, gradients, compilation, refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from attention_cases import random
from torch._subclasses.fake_tensor import FakeTensorMode
from where import ATTENTION, DEVICE, runs_kernels

from onmt_evsoftmax.kernels.triton import available, interpreted
from onmt_evsoftmax.kernels.triton.normalizers import NAMES, load
from onmt_evsoftmax.normalizers.registry import own_records

ROWS = {record.row_kernel for record in own_records() if record.row_kernel}
ops = torch.ops.onmt_evsoftmax_triton
#: No alpha, relative positions, slopes or seed; offset, causal, scale, dropout.
OPTIONS = (None, None, None, None, None, 0, False, 0.25, 0.0)


def attention(query, key, value, normalizer="evsoftmax"):
    return ops.attention_forward(normalizer, query, key, value, None, None, *OPTIONS)[0]


@runs_kernels
@pytest.mark.parametrize("normalizer", NAMES)
def test_rows_pass_torchs_own_check(normalizer):
    scores = random(3, 5, 20).to(DEVICE).requires_grad_()
    mask = random(1, 5, 20, seed=1).to(DEVICE) > -1
    alpha = None
    if load(normalizer).per_row:
        alpha = torch.full((1, 5, 1), 1.4, device=DEVICE, requires_grad=True)
    arguments = (normalizer, scores, mask, 0.0, alpha, True)
    torch.library.opcheck(ops.rows_forward.default, arguments)


@runs_kernels
@pytest.mark.parametrize("normalizer", ATTENTION)
def test_attention_passes_torchs_own_check(normalizer):
    tensors = [random(1, 2, 9, 16, seed=i).to(DEVICE).requires_grad_() for i in range(3)]
    arguments = (normalizer, *tensors, None, None, *OPTIONS)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(ops.attention_forward.default, arguments, test_utils=checks)
    tables = [random(5, 16, seed=i).to(DEVICE).requires_grad_() for i in (3, 4)]
    terms = (None, *tables, torch.ones(1, 2, device=DEVICE), None, 2, False, 0.25, 0.0)
    placed = (normalizer, *tensors, None, None, *terms)
    torch.library.opcheck(ops.attention_forward.default, placed, test_utils=checks)


@runs_kernels
def test_compiled_whole():
    """No break in the graph, forward and backward, the same numbers."""

    def step(query, key, value, scores):
        out = attention(query * 2, key, value).relu()
        return out.sum() + ops.rows_forward("sparsemax", scores, None, 0.0, None, False)[0].sum()

    leaves = [random(1, 2, 9, 16, seed=i).to(DEVICE).requires_grad_() for i in range(3)]
    leaves.append(random(4, 9, seed=3).to(DEVICE).requires_grad_())
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(step(*leaves), leaves)
    for got, want in zip(torch.autograd.grad(compiled(*leaves), leaves), expected, strict=True):
        assert torch.equal(got, want)


@runs_kernels
def test_learned_alpha_gets_its_gradient():
    scores = random(2, 3, 4, 12).double().to(DEVICE)
    alpha = torch.tensor([1.2, 1.5, 1.8], dtype=torch.float64, device=DEVICE).view(1, 3, 1, 1)
    grad = random(2, 3, 4, 12, seed=1).double().to(DEVICE)
    alpha.requires_grad_()

    def loss(at):
        return (ops.rows_forward("entmax", scores, None, 0.0, at, False)[0] * grad).sum((0, 2, 3))

    (got,) = torch.autograd.grad(loss(alpha).sum(), alpha)
    with torch.no_grad():
        expected = (loss(alpha + 1e-5) - loss(alpha - 1e-5)) / 2e-5
    torch.testing.assert_close(got.view(3), expected, atol=1e-7, rtol=1e-6)


def test_fake_cuda_tensors_need_neither_a_gpu_nor_triton():
    with FakeTensorMode(allow_non_fake_inputs=True):
        query = torch.empty(2, 4, 10, 16, device="cuda", dtype=torch.bfloat16)
        key = torch.empty(2, 2, 7, 16, device="cuda", dtype=torch.bfloat16)
        out = attention(query, key, torch.empty(2, 2, 7, 24, device="cuda", dtype=torch.bfloat16))
        p, support = ops.rows_forward("entmax15", query, None, 0.0, None, True)
        tables = torch.empty(5, 16, device="cuda"), torch.empty(5, 24, device="cuda")
        terms = (None, *tables, *OPTIONS[3:])
        given = (query, key, key.new_empty(2, 2, 7, 24), None, None, *terms)
        masses = ops.attention_forward("evsoftmax", *given)[4]
    assert (out.shape, out.dtype, out.device.type) == ((2, 4, 10, 24), torch.bfloat16, "cuda")
    assert masses.shape == (2, 4, 10, 5)
    assert (p.shape, support.dtype) == (query.shape, torch.bool)


@runs_kernels
def test_operators_refuse_what_a_kernel_would_misread():
    x = random(1, 2, 9, 16).to(DEVICE)
    large = torch.ones(1, 3, 9, 16, dtype=torch.bool)
    with pytest.raises(ValueError, match="must be one of entmax"):
        ops.rows_forward("softmax", x, None, 0.0, None, True)
    with pytest.raises(ValueError, match="sparsemax has no alpha"):
        ops.rows_forward("sparsemax", x, None, 0.0, x[..., :1], True)
    for mask in (large, torch.ones_like(x)):
        with pytest.raises(ValueError, match=r"mask must be torch\.bool and broadcast to"):
            ops.rows_forward("sparsemax", x, mask, 0.0, None, True)
    with pytest.raises(ValueError, match="must be one of entmax15"):
        attention(x, x, x, "entmax")
    with pytest.raises(ValueError, match="query, key and value must be"):
        attention(x, x[:, :, :, :8], x)
    with pytest.raises(ValueError, match="query, key and value must be"):
        attention(x.double(), x.double(), x.double())
    bias = torch.zeros(1, 2, 9, 9, device=DEVICE, requires_grad=True)
    with pytest.raises(ValueError, match="no gradient for a bias"):
        ops.attention_forward("evsoftmax", x, x, x, None, bias, *OPTIONS)
    slopes, table = torch.ones(1, 2, device=DEVICE), torch.ones(5, 16, device=DEVICE)
    for terms, says in (
        ((table[:4], None, None), "odd number of rows"),
        ((table[:, :8], None, None), "relative_keys must be of shape"),
        ((table, table[:3], None), "must be of shape"),
        ((None, None, slopes[:, :1]), "slopes must be of shape"),
        ((None, None, slopes.requires_grad_()), "no gradient for slopes"),
    ):
        with pytest.raises(ValueError, match=says):
            ops.attention_forward("evsoftmax", x, x, x, None, None, None, *terms, *OPTIONS[4:])
    with pytest.raises(ValueError, match="with a seed"):
        ops.attention_forward("evsoftmax", x, x, x, None, None, *OPTIONS[:-1], 0.5)


@pytest.mark.skipif(not available(), reason="needs Triton (make test-triton)")
def test_every_attention_kernel_that_a_record_names_is_there():
    assert all(load(name).attention_weights is not None for name in ATTENTION)
    assert set(NAMES) >= ROWS


def test_what_cannot_be_served_is_said():
    from onmt_evsoftmax.kernels.triton.serving import attention_blocker, rows_blocker

    x = torch.zeros(1, 2, 9, 16)
    assert rows_blocker("softmax", x) == "softmax has no Triton kernel"
    assert "torch.int64" in rows_blocker("sparsemax", x.long())

    def blocker(kernel="evsoftmax", dtype=torch.float32, head=16):
        return attention_blocker(kernel, dtype, head, query=x)

    assert blocker("softmax") == "softmax has no Triton kernel"
    assert "query is torch.float64" in blocker(dtype=torch.float64)
    if available() and interpreted():
        assert blocker() is None
        assert "more than 256 dimensions" in blocker(head=257)
        assert rows_blocker("entmax", x) is None
    else:
        reason = "on a GPU" if available() else "not installed"
        assert reason in blocker()
        assert reason in rows_blocker("entmax", x)


def test_importing_the_package_and_the_operators_imports_no_triton():
    code = (
        "import sys, onmt_evsoftmax_hook, onmt_evsoftmax, onmt_evsoftmax.opennmt, "
        "onmt_evsoftmax.attention; "
        "sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
