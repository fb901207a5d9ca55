"""The kernels as one backend among the others: chosen, forced, refused, and equal to the others."""

from __future__ import annotations

import os
import subprocess
import sys

import functional
import pytest
import torch
from attention_cases import generator, random
from where import ATTENTION, DEVICE, runs_kernels

from onmt_evsoftmax import kernels, sparse_attention
from onmt_evsoftmax.attention import Positions, backends
from onmt_evsoftmax.attention.call import Call
from onmt_evsoftmax.kernels.triton import available, interpreted
from onmt_evsoftmax.normalizers.entmax import Entmax
from onmt_evsoftmax.normalizers.registry import own_records

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROWS = {record.name: record.function for record in own_records() if record.row_kernel}


@pytest.fixture
def forced():
    """Rows go to Triton on CPU tensors, too; a list collects the names of the kernels that ran."""
    from onmt_evsoftmax.kernels.triton import rows

    ran = []
    with pytest.MonkeyPatch.context() as patch, kernels.using("triton"):
        for name in ("rows_forward", "rows_backward"):
            real = getattr(rows, name)
            patch.setattr(
                rows, name, lambda k, *a, _real=real, **o: ran.append(k) or _real(k, *a, **o)
            )
        yield ran


def outcome(function, leaves, grad):
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    out = function(*leaves)
    return [out, *torch.autograd.grad(out, leaves, grad)]


@runs_kernels
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_are_those_of_torch(name, dtype, forced):
    scores, grad = (random(3, 9, 20, seed=i).to(DEVICE, dtype) for i in range(2))
    mask = random(3, 1, 20, seed=2).to(DEVICE) > -1
    for dim, given in ((-1, mask), (1, None)):

        def function(x, dim=dim, given=given):
            return ROWS[name](x, given, dim)

        del forced[:]
        found = outcome(function, [scores], grad)
        assert len(forced) >= 2
        with kernels.using("torch"):
            expected = outcome(function, [scores], grad)
        for got, want in zip(found, expected, strict=True):
            assert got.dtype == dtype
            torch.testing.assert_close(
                got.double(),
                want.double(),
                atol=8e-3 if dtype == torch.bfloat16 else 2e-6,
                rtol=2e-2,
            )


@runs_kernels
def test_any_alpha_and_a_learned_one(forced):
    scores = random(2, 3, 4, 12).double().to(DEVICE)
    grad = random(2, 3, 4, 12, seed=1).double().to(DEVICE)
    alpha = torch.tensor([1.0, 1.3, 2.0], device=DEVICE, dtype=torch.float64).view(3, 1, 1)

    def learned(x, a):
        return functional.entmax(x, alpha=a)

    found = outcome(learned, [scores, alpha], grad)
    found += outcome(lambda x: functional.entmax(x, dim=1, alpha=1.3), [scores], grad)
    assert forced == ["entmax"] * 4
    with kernels.using("torch"):
        expected = outcome(learned, [scores, alpha], grad)
        expected += outcome(lambda x: functional.entmax(x, dim=1, alpha=1.3), [scores], grad)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-7, rtol=1e-6)


@runs_kernels
def test_an_alpha_below_1_makes_its_rows_nan(forced):
    from onmt_evsoftmax.kernels.triton import rows

    alpha = torch.tensor([0.9, 1.1], device=DEVICE).view(2, 1)
    for columns in (5, 5000):
        p, support = rows.rows_forward("entmax", random(2, columns).to(DEVICE), alpha=alpha)
        assert p[0].isnan().all()
        assert not support[0].any()
        assert p[1].isfinite().all()


@runs_kernels
def test_rows_can_be_differentiated_twice_and_forward_and_batched(forced):
    scores = random(2, 4).double().to(DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(functional.entmax15, scores[:1], check_forward_ad=True)
    assert torch.autograd.gradgradcheck(functional.entmax15, scores[:1])
    batched = torch.vmap(functional.entmax15)(scores)
    assert torch.equal(batched, functional.entmax15(scores))
    assert torch.func.jacrev(functional.entmax15)(scores).shape == (2, 4, 2, 4)
    assert "entmax15" in forced


@runs_kernels
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_that_of_the_other_backends(name):
    query, key, value = (random(2, 1, 40, 16, seed=i).to(DEVICE) for i in range(3))
    mask = random(2, 1, 40, 40, seed=3).to(DEVICE) > -1
    mask[..., 0] = True
    grad = random(2, 1, 40, 16, seed=4).to(DEVICE)
    cases = [
        {"attn_mask": mask[:, :, :1], "is_causal": True, "dropout_p": 0.4},
        {"attn_mask": mask},
        {"attn_mask": random(40, 40, seed=5).to(DEVICE), "dropout_p": 0.4},
    ]
    if name == ATTENTION[0]:
        cases.append({"dropout_p": 1.0})
    for options in cases:

        def attend(backend, options=options):
            return lambda *tensors: sparse_attention(
                *tensors, **options, normalizer=name, generator=generator(1), backend=backend
            )

        found = outcome(attend("triton"), [query, key, value], grad)
        others = ["explicit"] + ["fused"] * (DEVICE == "cpu" and kernels.available())
        for other in others:
            expected = outcome(attend(other), [query, key, value], grad)
            for got, want in zip(found, expected, strict=True):
                torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@runs_kernels
def test_attention_of_any_rank_and_shared_heads():
    query, key = random(3, 1, 4, 9, 16).to(DEVICE), random(2, 2, 9, 16, seed=1).to(DEVICE)
    found = sparse_attention(query, key, key, enable_gqa=True, backend="triton")
    expected = sparse_attention(query, key, key, enable_gqa=True, backend="explicit")
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    flat = sparse_attention(query[0, 0, 0], key[0, 0], key[0, 0], backend="triton")
    torch.testing.assert_close(flat, expected[0, 0, 0], atol=2e-6, rtol=1e-5)


@runs_kernels
@pytest.mark.parametrize("name", ATTENTION)
def test_shared_heads_are_not_copied(name, monkeypatch):
    """The kernels find the head of keys themselves, and add up what its queries want."""
    leaves = [random(1, heads, 20, 8, seed=i).to(DEVICE) for i, heads in enumerate((6, 2, 2))]
    grad, mask = random(1, 6, 20, 8, seed=5).to(DEVICE), random(1, 6, 1, 20, seed=6) > -1

    def attend(backend):
        return lambda *t: sparse_attention(
            *t, mask.to(DEVICE), enable_gqa=True, is_causal=True, normalizer=name, backend=backend
        )

    expected = outcome(attend("explicit"), leaves, grad)
    monkeypatch.setattr(Call, "repeated", lambda call: pytest.fail("copied"))
    for got, want in zip(outcome(attend("triton"), leaves, grad), expected, strict=True):
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_equal_the_cpu_kernels(dtype):
    """Both compute scores and thresholds in float32; the GPU's multiply rounded probabilities."""
    if not kernels.available():
        pytest.skip("the CPU kernels are not compiled")
    tensors = [random(1, 2, 40, 16, seed=i).to(dtype) for i in range(3)]
    found = sparse_attention(*(t.to(DEVICE) for t in tensors), backend="triton").cpu()
    expected = sparse_attention(*tensors, backend="fused")
    bound = 1e-3 if dtype == torch.float16 else 8e-3
    torch.testing.assert_close(found.float(), expected.float(), atol=bound, rtol=bound)


@runs_kernels
def test_attention_can_be_differentiated_twice_and_batched():
    leaves = [
        random(1, heads, 9, 8, seed=i).to(DEVICE).requires_grad_()
        for i, heads in enumerate((4, 2, 2))
    ]

    def second(backend):
        out = sparse_attention(*leaves, is_causal=True, enable_gqa=True, backend=backend)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    for got, want in zip(second("triton"), second("explicit"), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    many = [random(3, 1, 2, 9, 8, seed=i).to(DEVICE) for i in range(3)]
    batched = torch.vmap(lambda *t: sparse_attention(*t, backend="triton"))(*many)
    torch.testing.assert_close(batched, sparse_attention(*many, backend="explicit"))


@runs_kernels
def test_whole_graphs_are_compiled(forced):
    def step(query, key, value):
        p = functional.entmax15(query) + functional.entmax(key, alpha=1.3)
        return sparse_attention(p, key, value, is_causal=True, backend="triton").sum()

    leaves = [random(1, 2, 9, 8, seed=i).to(DEVICE).requires_grad_() for i in range(3)]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(step(*leaves), leaves)
    for got, want in zip(torch.autograd.grad(compiled(*leaves), leaves), expected, strict=True):
        torch.testing.assert_close(got, want)


@runs_kernels
def test_autocast_decides_on_the_type_of_the_result_only():
    tensors = [random(1, 2, 9, 8, seed=i).to(DEVICE) for i in range(3)]
    expected = sparse_attention(*tensors, backend="triton")
    with torch.autocast(DEVICE, torch.bfloat16):
        found = sparse_attention(*tensors, backend="triton")
    assert torch.equal(found, expected.bfloat16())


@runs_kernels
def test_auto_takes_it_where_it_is_forced_or_on_a_gpu(monkeypatch):
    ran = []
    triton = backends.BACKENDS["triton"]
    counted = triton._replace(run=lambda call: ran.append(1) or triton.run(call))
    monkeypatch.setitem(backends.BACKENDS, "triton", counted)
    tensors = [random(1, 2, 9, 8, seed=i).to(DEVICE) for i in range(3)]
    with kernels.using("triton"):
        sparse_attention(*tensors)
    assert ran == [1]
    with kernels.using("torch"):
        sparse_attention(*tensors)
        with pytest.raises(ValueError, match="ONMT_EVSOFTMAX_BACKEND is torch"):
            sparse_attention(*tensors, backend="triton")
    assert ran == [1]
    sparse_attention(*tensors)
    assert len(ran) == (2 if DEVICE == "cuda" or not kernels.available() else 1)


@runs_kernels
def test_alphas_of_heads_are_left_to_others():
    tensors = [random(1, 2, 9, 8, seed=i).to(DEVICE) for i in range(3)]
    learned = Entmax("learn", heads=2).to(DEVICE)
    with kernels.using("triton"):
        with pytest.raises(ValueError, match="no Triton attention for entmax of any alpha"):
            sparse_attention(*tensors, normalizer=learned, backend="triton")
        found = sparse_attention(*tensors, normalizer=learned)
    expected = sparse_attention(*tensors, normalizer=learned, backend="explicit")
    torch.testing.assert_close(found, expected)


@runs_kernels
@pytest.mark.parametrize("name", ATTENTION)
def test_positions_are_those_of_the_other_backends(name):
    """Gradients of the tables, too, and one table for keys and values, as OpenNMT-py has it."""
    leaves = [random(2, 2, 20, 8, seed=i).to(DEVICE) for i in range(3)]
    leaves += [random(5, 8, seed=i).to(DEVICE) for i in (3, 4)]
    grad, mask = random(2, 2, 20, 8, seed=5).to(DEVICE), random(2, 1, 1, 20, seed=6) > -1
    slopes = torch.tensor([0.1, 0.3], device=DEVICE)
    cases = [
        (True, lambda keys, values: Positions(keys, values, slopes, offset=1)),
        (False, lambda keys, values: Positions(keys, keys + 0 * values)),
        (False, lambda keys, values: Positions(relative_values=values + 0 * keys)),
    ]
    for causal, positions in cases[: None if name == ATTENTION[0] else 1]:

        def attend(backend, causal=causal, positions=positions):
            return lambda query, key, value, keys, values: sparse_attention(
                query,
                key,
                value,
                mask.to(DEVICE),
                0.4,
                causal,
                normalizer=name,
                positions=positions(keys, values),
                generator=generator(1),
                backend=backend,
            )

        found = outcome(attend("triton"), leaves, grad)
        for other in ["explicit"] + ["fused"] * (DEVICE == "cpu" and kernels.available()):
            for got, want in zip(found, outcome(attend(other), leaves, grad), strict=True):
                torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@runs_kernels
def test_positions_are_compiled_and_differentiated_twice():
    leaves = [random(1, 2, 9, 8, seed=i).to(DEVICE).requires_grad_() for i in range(3)]
    leaves.append(random(5, 8, seed=3).to(DEVICE).requires_grad_())

    def attend(query, key, value, table, backend="triton"):
        positions = Positions(table, table)
        return sparse_attention(query, key, value, positions=positions, backend=backend)

    def second(backend):
        out = attend(*leaves, backend=backend)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    for got, want in zip(second("triton"), second("explicit"), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(attend(*leaves).sum(), leaves)
    for got, want in zip(
        torch.autograd.grad(compiled(*leaves).sum(), leaves), expected, strict=True
    ):
        torch.testing.assert_close(got, want)
    with pytest.raises(ValueError, match=r"not fused under torch\.func"):
        torch.vmap(attend, (0, 0, 0, None))(*(t.unsqueeze(0) for t in leaves[:3]), leaves[3])


@runs_kernels
@pytest.mark.parametrize("positions", [0, 2])
def test_the_hidden_parts_of_opennmt_use_it(positions, forced, monkeypatch):
    """As OpenNMT-py calls it: a mask that is True where keys are excluded, dropout in training.

    Its start-up line calls both fused.
    """
    pytest.importorskip("onmt")
    from onmt.modules.multi_headed_attn import MultiHeadedAttention

    from onmt_evsoftmax import get_normalizer
    from onmt_evsoftmax.opennmt.modules import NOBODY, AttentionNormalizer, fuse

    ran = []
    triton = backends.BACKENDS["triton"]
    counted = triton._replace(run=lambda call: ran.append(call) or triton.run(call))
    monkeypatch.setitem(backends.BACKENDS, "triton", counted)
    options = {"max_relative_positions": positions, "attn_type": "self"}
    attention = MultiHeadedAttention(2, 16, dropout=0.0, **options).to(DEVICE)
    attention.softmax = AttentionNormalizer(get_normalizer("evsoftmax"))
    x, excluded = random(2, 9, 16).to(DEVICE), torch.zeros(2, 1, 9, dtype=torch.bool)
    excluded[1, :, 5:] = True
    excluded = excluded.unsqueeze(1).to(DEVICE)
    expected, _ = attention(x, x, x, mask=excluded)
    fuse(attention, NOBODY)
    out, matrix = attention(x, x, x, mask=excluded)
    assert matrix.size(-1) == 0
    assert [call.positions is not None for call in ran] == [positions != 0]
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


# --- without a GPU, or without Triton -------------------------------------------------------------


def run(code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **settings}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )


def test_forcing_it_without_triton_is_told():
    if available():
        pytest.skip("Triton is installed")
    done = run("import onmt_evsoftmax.kernels", ONMT_EVSOFTMAX_BACKEND="triton")
    assert done.returncode
    assert "'triton', which is not installed" in done.stderr
    with pytest.raises(ValueError, match="Triton is not installed"):
        sparse_attention(*(random(1, 2, 9, 8) for _ in range(3)), backend="triton")


@pytest.mark.skipif(DEVICE == "cuda" or interpreted(), reason="kernels run here")
def test_cpu_tensors_without_the_interpreter_are_torch_s():
    if available():
        code = (
            "import torch; from onmt_evsoftmax import evsoftmax, kernels; "
            "print(kernels.backend()); evsoftmax(torch.zeros(3))"
        )
        done = run(code, ONMT_EVSOFTMAX_BACKEND="triton", TRITON_INTERPRET="0")
        assert done.stdout.startswith("torch\n"), done.stderr
    with pytest.raises(ValueError, match=r"not installed|tensors are on cpu"):
        sparse_attention(*(random(1, 2, 9, 8) for _ in range(3)), backend="triton")


def test_the_start_up_line_and_doctor_say_what_computes_on_a_gpu(monkeypatch):
    pytest.importorskip("onmt")
    from onmt_evsoftmax import doctor
    from onmt_evsoftmax.kernels import triton
    from onmt_evsoftmax.opennmt import sites

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for there, line, advice in (
        (True, "Triton kernels on GPU", ""),
        (False, "torch (Triton is not installed) on GPU", "pip install triton"),
    ):
        monkeypatch.setattr(triton, "available", lambda there=there: there)
        assert sites.row_backends("evsoftmax")[1] == line
        assert sites.row_backends(None)[1] == "torch on GPU"
        _, found = doctor._kernels()
        assert found.advice == advice
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert len(sites.row_backends("evsoftmax")) == 1
    _, found = doctor._kernels()
    assert (found.found, found.advice) == ("none: Triton is not installed, torch computes", "")
