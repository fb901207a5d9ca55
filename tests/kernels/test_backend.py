"""Which code computes: the environment's choice, the fallback, the OpenMP runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import functional
import pytest
import torch
from compiled import needs_kernels
from row_cases import REFERENCE, each, generator

from onmt_evsoftmax import kernels
from onmt_evsoftmax.kernels import library

pytestmark = needs_kernels


@each
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functional_agrees_with_its_fallback(instruction_set, name, masked, dim, dtype):
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

    (p, support, grad), (q, fallback_support, fallback_grad) = run(instruction_set), run("torch")
    assert (support != fallback_support).sum() == 0
    torch.testing.assert_close(p, q, atol=5e-7, rtol=1e-5)
    torch.testing.assert_close(grad, fallback_grad, atol=5e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("backend", "prints"),
    [
        ("torch", "torch"),
        ("portable", "portable"),
        ("auto", None),
        ("", None),
        ("fast", "must be one of"),
    ],
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


def test_a_mistake_in_the_environment_is_one_line():
    run = subprocess.run(
        [sys.executable, "-m", "onmt_evsoftmax", "doctor"],
        env={**os.environ, "ONMT_EVSOFTMAX_BACKEND": "fast"},
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = run.stderr.splitlines()
    assert line.startswith("onmt_evsoftmax doctor: error: ONMT_EVSOFTMAX_BACKEND is 'fast';")
    assert run.returncode == 2


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
    assert set(library.NORMALIZERS) == set(REFERENCE)
