"""The row kernels, every instruction set that this machine has, against float64 references.

Sizes lie around every block boundary of the C code: lanes (4, 8, 16), the narrow and wide paths
(128), groups of rows (4096 / 32 …) and the flush of float32 sums (64 vectors).
"""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import reference
import torch

from onmt_evsoftmax import functional, kernels
from onmt_evsoftmax.kernels import operators

if not kernels.available():
    pytest.skip(
        "the kernels are not compiled or not in use: install with a C compiler (pip install -e .) "
        "and leave ONMT_EVSOFTMAX_BACKEND unset",
        allow_module_level=True,
    )

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
SIZES += [511, 512, 513, 1000, 4095, 4097, 32000]
REFERENCE = {
    "evsoftmax": reference.evsoftmax,
    "sparsemax": partial(reference.entmax, alpha=2.0),
    "entmax15": partial(reference.entmax, alpha=1.5),
}
JUNK = [math.nan, math.inf, -math.inf, 1e30, -1e18, 1e-40]


def instruction_sets() -> list[str]:
    found = []
    for name in kernels.BACKENDS[2:]:
        try:
            with kernels.using(name):
                found.append(name)
        except ValueError:
            pass
    return found


@pytest.fixture(params=instruction_sets(), autouse=True)
def instruction_set(request):
    with kernels.using(request.param):
        yield request.param


each = pytest.mark.parametrize("name", REFERENCE)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scores_of(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Rows of different spread, from nearly uniform probabilities to a single winner."""
    scale = torch.logspace(-2, 1.5, rows).unsqueeze(1)
    return torch.randn(rows, columns, generator=generator(seed)) * scale


def compare(name: str, v: np.ndarray, p: torch.Tensor, support: torch.Tensor, **options) -> None:
    """One row of valid entries: supports first, then values, to float32's last digits."""
    expected, expected_support = REFERENCE[name](v, **options)
    # ev-softmax decides by sums in double, exactly; the others to float32's rounding.
    if name == "evsoftmax" or reference.margin(v, name) > 3e-7:
        assert support.tolist() == expected_support.tolist()
    np.testing.assert_allclose(p.double().numpy(), expected, rtol=3e-6, atol=1.2e-7)
    assert abs(p.double().sum().item() - 1) < 3e-6


def check(name: str, scores: torch.Tensor, mask: torch.Tensor | None, **options) -> None:
    """Every row of float32 ``scores`` against the reference of its valid entries alone."""
    p, support = kernels.rows_forward(name, scores, mask, **options)
    valid = scores > -math.inf if mask is None else mask.expand(scores.shape)
    columns = scores.size(-1)
    for v, m, q, s in zip(
        *(t.reshape(-1, columns) for t in (scores, valid, p, support)), strict=True
    ):
        assert (q[~m] == 0).all()
        assert not s[~m].any()
        if m.any():
            compare(name, v[m].double().numpy(), q[m], s[m], **options)


# --- values ---------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("columns", SIZES)
def test_rows_of_every_size_equal_the_reference(name, columns):
    rows = 35 if columns < 1000 else 4
    check(name, scores_of(rows, columns), None)


@each
@pytest.mark.parametrize("columns", SIZES)
def test_masked_rows_of_every_size_equal_the_reference(name, columns):
    rows = 35 if columns < 1000 else 4
    scores = scores_of(rows, columns)
    mask = torch.rand(rows, columns, generator=generator(1)) < 0.7
    mask[-1] = False
    junk = torch.tensor(JUNK)[torch.randint(len(JUNK), scores.shape, generator=generator(2))]
    check(name, torch.where(mask, scores, junk), mask)
    check(name, torch.where(mask, scores, -math.inf), None)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
@pytest.mark.parametrize("columns", [1, 7, 16, 33, 257, 4097])
def test_eps_weighs_what_is_below_the_mean(columns, eps):
    scores = scores_of(9, columns) * 0.1
    mask = torch.rand(9, columns, generator=generator(1)) < 0.8
    check("evsoftmax", scores, None, eps=eps)
    check("evsoftmax", scores, mask, eps=eps)


@each
def test_float64_is_computed_in_float64(name):
    for columns in (1, 2, 33, 300):
        scores = scores_of(20, columns).double() * (1 + 1e-9)
        p, support = kernels.rows_forward(name, scores)
        for v, q, s in zip(scores, p, support, strict=True):
            expected, expected_support = REFERENCE[name](v.numpy())
            if reference.margin(v.numpy(), name) > 1e-13:
                assert s.tolist() == expected_support.tolist()
            np.testing.assert_allclose(q.numpy(), expected, rtol=1e-9, atol=1e-13)


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_rounded_once(name, dtype):
    """Every finite number of the type goes in; both directions must round as torch does."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()]
    numbers = numbers[torch.randperm(len(numbers), generator=generator())]
    for columns in (5, 32, 200, 1000):
        scores = numbers[: len(numbers) // columns * columns].view(-1, columns)
        mask = torch.rand(scores.shape, generator=generator(1)) < 0.9
        for given in (None, mask):
            p, support = kernels.rows_forward(name, scores, given)
            wide, wide_support = kernels.rows_forward(name, scores.float(), given)
            assert torch.equal(support, wide_support)
            assert torch.equal(p, wide.to(dtype))
        grad = (
            torch.randn(p.shape, generator=generator(2))
            * 10.0 ** torch.arange(-20, 20)[torch.randint(40, (len(p), 1), generator=generator(3))]
        )
        grad = grad.to(dtype)
        result = kernels.rows_backward(name, *no_grad(p, grad))
        expected = kernels.rows_backward(name, *no_grad(p.float(), grad.float()))
        assert torch.equal(result.nan_to_num(7.0), expected.to(dtype).nan_to_num(7.0))


def no_grad(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    torch.set_grad_enabled(False)
    return tensors


@pytest.fixture(autouse=True)
def _restore_grad_mode():
    yield
    torch.set_grad_enabled(True)


# --- special rows ---------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("columns", [1, 7, 8, 33, 128, 129, 600])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_nan_where_valid_and_stays_alone(name, columns, bad):
    for place in {0, columns // 2, columns - 1}:
        scores = scores_of(20, columns)
        scores[7, place] = bad
        p, support = kernels.rows_forward(name, scores)
        assert p[7].isnan().all()
        assert not support[7].any()
        others = torch.arange(20) != 7
        expected, expected_support = kernels.rows_forward(name, scores[others])
        assert torch.equal(p[others], expected)
        assert torch.equal(support[others], expected_support)
        if columns > 2:
            mask = torch.ones(columns, dtype=torch.bool)
            mask[1] = False
            scores[7, 2] = bad
            masked, _ = kernels.rows_forward(name, scores, mask.view(1, -1))
            assert masked[7, mask].isnan().all()
            assert (masked[:, 1] == 0).all()


@each
@pytest.mark.parametrize("columns", [1, 2, 10, 17, 64, 130, 512, 5000])
def test_constant_rows_are_uniform(name, columns):
    scores = (torch.randn(64, 1, generator=generator()) * 100).expand(64, columns)
    for constant in (scores, scores.double(), torch.full((3, columns), 1e-41)):
        p, support = kernels.rows_forward(name, constant)
        assert support.all()
        torch.testing.assert_close(p, torch.full_like(p, 1 / columns), rtol=1e-6, atol=0)


@pytest.mark.parametrize("columns", [6, 12, 40, 200, 700])
def test_entries_at_the_mean_are_kept(columns):
    """Small integers: their sum is exact in any order, so a tie is a tie."""
    scores = torch.randint(-3, 4, (200, columns), generator=generator()).float()
    scores[:, 0] -= scores.sum(-1)  # the mean is 0
    for offset in (0.0, 1024.0):
        _, support = kernels.rows_forward("evsoftmax", scores + offset)
        assert torch.equal(support, scores >= 0)


@each
def test_denormal_huge_and_distant_scores(name):
    base = scores_of(30, 70)
    for scores in (base * 1e-42, base * 1e-38, base * 1e30, base + 1e4, base * 100):
        p, support = kernels.rows_forward(name, scores)
        assert p.isfinite().all()
        assert support[range(30), scores.argmax(-1)].all()
        torch.testing.assert_close(p.sum(-1), torch.ones(30), atol=1e-5, rtol=0)
        for v, s in zip(scores.double().numpy(), support, strict=True):
            if name == "evsoftmax":
                assert s.tolist() == REFERENCE[name](v)[1].tolist()


@each
def test_results_have_no_denormal_numbers(name):
    p, support = kernels.rows_forward(name, scores_of(50, 90) * 30)
    tiny = (p > 0) & (p < torch.finfo(torch.float32).tiny)
    if name == "evsoftmax":
        assert not tiny.any()
        assert (support & (p == 0)).any()


# --- layout ---------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("columns", [1, 7, 16, 33, 257])
def test_any_alignment_and_strides(name, columns):
    expected, expected_support = kernels.rows_forward(name, scores_of(24, columns))
    for offset in range(4):
        memory = torch.empty(24 * columns + 4)
        unaligned = memory[offset : offset + 24 * columns].view(24, columns)
        wide = torch.empty(24, columns + 5)[:, offset : offset + columns]
        inner = torch.empty(24, columns, 3)[:, :, 1]
        turned = torch.empty(columns, 24).t()
        outer = torch.empty(4, 2, 3, 5, columns).transpose(0, 2)[:, :, :, 2]
        for scores in (unaligned, wide, inner, turned, outer):
            scores.copy_(scores_of(24, columns).view(scores.shape))
            p, support = kernels.rows_forward(name, scores)
            assert torch.equal(p.view(24, columns), expected)
            assert torch.equal(support.view(24, columns), expected_support)


@each
def test_broadcast_masks_equal_whole_ones(name):
    scores = torch.randn(3, 2, 5, 37, generator=generator())
    for shape in [(1, 1, 1, 37), (3, 1, 1, 37), (1, 2, 5, 37), (3, 2, 5, 37), (3, 1, 5, 37)]:
        mask = torch.rand(shape, generator=generator(1)) < 0.6
        whole = mask.expand(scores.shape).contiguous()
        turned = mask.transpose(0, 2).contiguous().transpose(0, 2)
        for given in (mask, turned, mask.expand(scores.shape)):
            for got, want in zip(
                kernels.rows_forward(name, scores, given),
                kernels.rows_forward(name, scores, whole),
                strict=True,
            ):
                assert torch.equal(got, want)
    rows_only = torch.rand(3, 2, 5, 1, generator=generator(1)).expand(3, 2, 5, 37) < 0.6
    p, _ = kernels.rows_forward(name, scores, rows_only)
    assert torch.equal(p.sum(-1) > 0, rows_only[..., 0])


@each
@pytest.mark.parametrize("columns", [9, 40, 300])
def test_padding_and_company_change_no_bit(name, columns):
    """A row alone, among others, and padded behind by masked entries."""
    scores = scores_of(41, columns)
    together, _ = kernels.rows_forward(name, scores)
    alone = torch.cat([kernels.rows_forward(name, row.unsqueeze(0))[0] for row in scores])
    assert torch.equal(alone, together)
    length = columns + 20
    padded = torch.full((41, length), math.nan)
    padded[:, :columns] = scores
    q, _ = kernels.rows_forward(name, padded, (torch.arange(length) < columns).view(1, -1))
    assert torch.equal(q[:, :columns], together)


# --- backward -------------------------------------------------------------------------------------


def jacobian_product(name: str, p: np.ndarray, g: np.ndarray) -> np.ndarray:
    slope = {"evsoftmax": p, "sparsemax": (p > 0) * 1.0, "entmax15": np.sqrt(p)}[name]
    total = slope.sum(-1, keepdims=True)
    mean = (slope * g).sum(-1, keepdims=True) / np.where(total > 0, total, 1)
    return slope * (g - mean)


@each
@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backward_of_every_size_equals_the_formula(name, columns, dtype):
    rows = 35 if columns < 1000 else 4
    mask = torch.rand(rows, columns, generator=generator(1)) < 0.9
    mask[-1] = False
    p, _ = kernels.rows_forward(name, scores_of(rows, columns).to(dtype), mask)
    grad = torch.randn(rows, columns, generator=generator(2), dtype=dtype)
    result = kernels.rows_backward(name, *no_grad(p, grad))
    expected = jacobian_product(name, p.double().numpy(), grad.double().numpy())
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=0, atol=tolerance)
    assert (result[~mask] == 0).all()
    strided = torch.randn(columns, rows, 2, dtype=dtype)[..., 0].t().copy_(grad)
    assert torch.equal(kernels.rows_backward(name, p, strided), result)


# --- threads and memory ---------------------------------------------------------------------------


@each
def test_any_number_of_threads_gives_the_same_bits(name):
    before = torch.get_num_threads()
    try:
        for shape in ((5, 40000), (3001, 33), (700, 300)):
            scores, results = torch.randn(shape, generator=generator()), []
            mask = torch.rand(shape, generator=generator(1)) < 0.8
            for threads in (1, 2, 3, 7):
                torch.set_num_threads(threads)
                p, support = kernels.rows_forward(name, scores, mask)
                results.append((p, support, kernels.rows_backward(name, *no_grad(p, scores))))
            for result in results[1:]:
                assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))
    finally:
        torch.set_num_threads(before)


def test_calls_from_several_python_threads():
    inputs = [torch.randn(200, 30 + 7 * i, generator=generator(i)) for i in range(8)]
    expected = [kernels.rows_forward("entmax15", scores) for scores in inputs]
    wrong = []

    def work(i: int) -> None:
        for _ in range(100):
            p, support = kernels.rows_forward("entmax15", inputs[i])
            if not (torch.equal(p, expected[i][0]) and torch.equal(support, expected[i][1])):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def grown_by(calls: int) -> int:
    scores = torch.randn(2, 3, 9, requires_grad=True)
    mask = torch.ones(2, 1, 9, dtype=torch.bool)
    half = torch.randn(2, 200).bfloat16()

    def once() -> None:
        functional.evsoftmax(scores, mask).sum().backward()
        kernels.rows_forward("sparsemax", half)

    for _ in range(2000):
        once()
    gc.collect()
    before = resident_bytes()
    for _ in range(calls):
        once()
    gc.collect()
    return resident_bytes() - before


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="reads memory use from /proc, which is Linux's"
)


@needs_proc
def test_calls_do_not_leak():
    assert grown_by(20_000) < 2**20  # 50 bytes a call


@needs_proc
@pytest.mark.slow
@pytest.mark.skipif("ONMT_EVSOFTMAX_SLOW" not in os.environ, reason="set ONMT_EVSOFTMAX_SLOW=1")
def test_a_million_calls_do_not_leak():
    assert grown_by(1_000_000) < 2**21


# --- torch operators ------------------------------------------------------------------------------


@each
def test_operators_keep_torch_s_rules(name):
    scores = torch.randn(3, 4, 9, requires_grad=True)
    mask = torch.rand(3, 1, 9) < 0.8
    forward = torch.ops.onmt_evsoftmax.rows_forward.default
    for arguments in ((None, 0.0, True), (mask, 0.0, False), (mask, 1e-3, True)):
        torch.library.opcheck(forward, (name, scores, *arguments))
    p = torch.rand(3, 4, 9)
    backward = torch.ops.onmt_evsoftmax.rows_backward.default
    torch.library.opcheck(backward, (name, p, torch.randn(3, 4, 9)))


@each
def test_the_operator_has_the_gradient_of_the_function(name):
    scores = torch.randn(5, 20, dtype=torch.float64, requires_grad=True)
    p, _ = torch.ops.onmt_evsoftmax.rows_forward(name, scores, None, 0.0, False)
    weight = torch.randn(5, 20, dtype=torch.float64)
    (grad,) = torch.autograd.grad((p * weight).sum(), scores)
    (expected,) = torch.autograd.grad((getattr(functional, name)(scores) * weight).sum(), scores)
    torch.testing.assert_close(grad, expected)


@each
def test_operators_batch(name):
    scores, mask = torch.randn(4, 3, 9), torch.rand(4, 3, 9) < 0.7
    forward = torch.ops.onmt_evsoftmax.rows_forward
    for in_dims, arguments in (
        ((0, None), (scores, mask[:1])),
        ((1, 1), (scores, mask)),
        ((None, 0), (scores[0], mask)),
    ):
        mapped = torch.vmap(lambda s, m: forward(name, s, m, 0.0, True)[0], in_dims)(*arguments)
        size = arguments[in_dims.index(1) if 1 in in_dims else in_dims.index(0)].size(
            max(d or 0 for d in in_dims)
        )
        for i in range(size):
            pick = [
                t if d is None else t.select(d, i) for t, d in zip(arguments, in_dims, strict=True)
            ]
            assert torch.equal(mapped[i], forward(name, *pick, 0.0, True)[0])


@each
def test_compiled_code_calls_the_kernel(name):
    seen = []

    def backend(module, _):
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module

    scores = torch.randn(6, 10)
    compiled = torch.compile(getattr(functional, name), fullgraph=True, backend=backend)
    assert torch.equal(compiled(scores), getattr(functional, name)(scores))
    assert any("onmt_evsoftmax" in target for target in seen)


def test_batched_gradients():
    scores = torch.randn(4, 7, requires_grad=True)
    p = functional.evsoftmax(scores)
    basis = torch.eye(28).view(28, 4, 7)
    (batched,) = torch.autograd.grad(p, scores, basis, is_grads_batched=True, retain_graph=True)
    looped = [torch.autograd.grad(p, scores, g, retain_graph=True)[0] for g in basis]
    torch.testing.assert_close(batched, torch.stack(looped))


# --- choosing the backend -------------------------------------------------------------------------


@each
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functional_agrees_with_its_fallback(name, masked, dim, dtype):
    f = getattr(functional, name)
    scores = (torch.randn(6, 50, 40, generator=generator()) * 2).to(dtype)
    mask = (torch.rand(6, 1, 40, generator=generator(1)) < 0.8) if masked else None
    weight = torch.randn(scores.shape, generator=generator(2), dtype=dtype)

    def run(backend: str):
        leaf = scores.clone().requires_grad_()
        with kernels.using(backend):
            p, support = f(leaf, mask, dim, return_support=True)
            (grad,) = torch.autograd.grad((p * weight).sum(), leaf)
        return p.detach(), support, grad

    (p, support, grad), (q, fallback_support, fallback_grad) = run("auto"), run("torch")
    assert (support != fallback_support).sum() == 0
    torch.testing.assert_close(p, q, atol=5e-7, rtol=1e-5)
    torch.testing.assert_close(grad, fallback_grad, atol=5e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("backend", "prints"),
    [("torch", "torch"), ("portable", "portable"), ("auto", None), ("fast", "must be one of")],
)
def test_the_environment_chooses(backend, prints):
    run = subprocess.run(
        [sys.executable, "-c", "from onmt_evsoftmax import kernels; print(kernels.backend())"],
        env={**os.environ, "ONMT_EVSOFTMAX_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (prints or "\n") in run.stdout + run.stderr
    assert (run.returncode == 0) == (backend != "fast")


def test_openmp_is_shared_with_torch():
    """Two OpenMP runtimes would put two teams of threads on the same cores."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("reads loaded libraries from /proc, which is Linux's")
    # In a process of its own: other libraries that tests load bring runtimes of theirs.
    code = (
        "import torch; from onmt_evsoftmax import evsoftmax; evsoftmax(torch.randn(64, 64)); "
        "print({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("libgomp") == 1


def test_what_is_not_served_is_left_to_the_caller():
    assert kernels.rows_forward("evsoftmax", torch.empty(3, 4, device="meta")) is None
    assert kernels.rows_forward("evsoftmax", torch.tensor(1.0)) is None
    with kernels.using("torch"):
        assert kernels.rows_forward("evsoftmax", torch.randn(3, 4)) is None
    with torch.enable_grad():
        assert kernels.rows_backward("evsoftmax", torch.rand(3, 4), torch.rand(3, 4)) is None
    assert set(operators.NORMALIZERS) == set(REFERENCE)
