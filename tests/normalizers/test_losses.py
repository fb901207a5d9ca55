"""Losses against closed forms, torch's cross entropy and the entmax library."""

from __future__ import annotations

import math

import entmax
import functional
import pytest
import reference
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from onmt_evsoftmax.normalizers.registry import get_loss

FENCHEL_YOUNG = {
    "sparsemax": (functional.sparsemax_loss, 2.0, entmax.sparsemax_loss),
    "entmax15": (functional.entmax15_loss, 1.5, entmax.entmax15_loss),
    "entmax": (
        lambda *a, **k: functional.entmax_loss(*a, alpha=1.3, **k),
        1.3,
        lambda x, y: entmax.entmax_bisect_loss(x, y, alpha=1.3),
    ),
}
ALL = {
    "softmax": functional.softmax_loss,
    "evsoftmax": functional.evsoftmax_loss,
    **{name: loss for name, (loss, _, _) in FENCHEL_YOUNG.items()},
}
each = pytest.mark.parametrize("name", ALL)
each_fenchel_young = pytest.mark.parametrize("name", FENCHEL_YOUNG)


def logits(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2


def targets(*shape: int, classes: int, ignored: int | None = None) -> torch.Tensor:
    target = torch.randint(classes, shape, generator=torch.Generator().manual_seed(1))
    if ignored is not None:
        target.view(-1)[::3] = ignored
    return target


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 0, 5, -1])
@pytest.mark.parametrize("shape", [(6, 7), (6, 7, 3), (4, 7, 2, 3)])
def test_softmax_loss_is_cross_entropy(shape, ignored, reduction, smoothing):
    x = logits(*shape)
    y = targets(shape[0], *shape[2:], classes=7, ignored=ignored)
    options = {"ignore_index": ignored, "reduction": reduction, "label_smoothing": smoothing}
    torch.testing.assert_close(
        functional.softmax_loss(x, y, **options), F.cross_entropy(x, y, **options)
    )


@each
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_conventions_of_cross_entropy(name, smoothing):
    """What is ignored counts nowhere; the mean is over the rest; positions are independent."""
    loss = ALL[name]
    x, y = logits(5, 7, 3), targets(5, 3, classes=7, ignored=-7)
    options = {"ignore_index": -7, "label_smoothing": smoothing}
    each_position = loss(x, y, reduction="none", **options)
    assert each_position.shape == y.shape
    assert (each_position[y == -7] == 0).all()
    kept = each_position[y != -7]
    torch.testing.assert_close(loss(x, y, reduction="sum", **options), kept.sum())
    torch.testing.assert_close(loss(x, y, **options), kept.mean())
    flat = loss(x.movedim(1, -1)[y != -7], y[y != -7], reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(flat, kept)
    torch.testing.assert_close(
        loss(x[0, :, 0], torch.tensor(2)), loss(x[:1, :, 0], torch.tensor([2]))
    )
    assert loss(x, torch.full((5, 3), -7), ignore_index=-7).isnan()  # as torch: a mean of nothing


def test_evsoftmax_loss_is_the_likelihood_of_the_training_form():
    x, y = logits(20, 9), targets(20, classes=9)
    expected = [
        -math.log(reference.evsoftmax(v.numpy(), 1e-6)[0][i]) for v, i in zip(x, y, strict=True)
    ]
    torch.testing.assert_close(
        functional.evsoftmax_loss(x, y, reduction="none"), torch.tensor(expected, dtype=x.dtype)
    )
    # On two classes, or with everything kept, it must coincide with torch's cross entropy.
    equal = torch.zeros(4, 9, dtype=torch.float64)
    torch.testing.assert_close(
        functional.evsoftmax_loss(equal, y[:4]), F.cross_entropy(equal, y[:4])
    )


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("gap", [10.0, 75.0, 95.0, 3e4, 6e4])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_finite_at_any_gap(name, dtype, gap, smoothing):
    for target in range(3):
        x = torch.tensor([[gap, 0.0, -gap]], dtype=dtype, requires_grad=True)
        value = ALL[name](x, torch.tensor([target]), label_smoothing=smoothing)
        value.backward()
        assert value.isfinite()
        assert value.dtype == torch.float32
        assert x.grad.isfinite().all()


def test_evsoftmax_is_finite_at_enormous_gaps():
    x = torch.tensor([[1e30, 0.0, -1e30]], requires_grad=True)
    value = functional.evsoftmax_loss(x, torch.tensor([2]))
    value.backward()
    assert value.isfinite()
    torch.testing.assert_close(x.grad, torch.tensor([[1.0, 0.0, -1.0]]))


@each_fenchel_young
def test_equals_the_entmax_library(name):
    loss, _, library = FENCHEL_YOUNG[name]
    x, y = logits(50, 11), targets(50, classes=11)
    torch.testing.assert_close(loss(x, y, reduction="none"), library(x, y))


@each_fenchel_young
def test_closed_form(name):
    """L = Ω*(v) + Ω(y) − v·y with Ω the negative Tsallis entropy, from the NumPy reference."""
    loss, alpha, _ = FENCHEL_YOUNG[name]
    x, y = logits(20, 6), targets(20, classes=6)

    def omega(p):
        return ((p**alpha).sum() - p.sum()) / (alpha * (alpha - 1))

    for smoothing in (0.0, 0.2):
        for v, i, value in zip(
            x, y, loss(x, y, reduction="none", label_smoothing=smoothing), strict=True
        ):
            p = torch.from_numpy(reference.entmax(v.numpy(), alpha)[0])
            soft = torch.full_like(p, smoothing / 6)
            soft[i] += 1 - smoothing
            expected = (p @ v - omega(p)) + omega(soft) - v @ soft
            torch.testing.assert_close(value, expected, atol=1e-9, rtol=0)


@each_fenchel_young
@given(seed=st.integers(0, 10_000), target=st.integers(0, 4))
def test_zero_exactly_when_the_target_has_all_the_mass(name, seed, target):
    loss, alpha, _ = FENCHEL_YOUNG[name]
    x = logits(1, 5, seed=seed, dtype=torch.float32)
    y = torch.tensor([target])
    value = loss(x, y).item()
    p = functional.entmax(x, alpha=alpha)
    if p[0, target] == 1:
        assert value == 0
    else:
        assert value > -1e-6
    rest = torch.arange(5) != target
    x[0, target] = x[0, rest].max() + 1 / (alpha - 1) + 1e-3
    assert loss(x, y).item() == 0
    x[0, target] -= 0.9
    assert loss(x, y).item() > 0


@each
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_derivatives(name, smoothing):
    x, y = logits(4, 6, seed=2).requires_grad_(), targets(4, classes=6, ignored=-100)

    def f(s):
        return ALL[name](s, y, label_smoothing=smoothing)

    assert torch.autograd.gradcheck(f, x)
    assert torch.autograd.gradgradcheck(f, x)


@each_fenchel_young
def test_gradient_is_p_minus_y(name):
    loss, alpha, _ = FENCHEL_YOUNG[name]
    x, y = logits(8, 6).requires_grad_(), targets(8, classes=6)
    loss(x, y, reduction="sum").backward()
    p = functional.entmax(x.detach(), alpha=alpha)
    torch.testing.assert_close(x.grad, p - F.one_hot(y, 6), atol=1e-9, rtol=0)


def test_alpha_receives_a_gradient():
    x, y = logits(5, 6), targets(5, classes=6)
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: functional.entmax_loss(x, y, alpha=a), alpha)


def test_kl_of_the_training_forms():
    q, p = logits(12, 7), logits(12, 7, seed=9)
    mask = torch.ones(12, 7, dtype=torch.bool)
    mask[:, 3] = False
    expected = []
    for a, b in zip(q, p, strict=True):
        a, b = (reference.evsoftmax(v[mask[0]].numpy(), 1e-6)[0] for v in (a, b))
        expected.append(float((a * (torch.tensor(a) / torch.tensor(b)).log().numpy()).sum()))
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(functional.evsoftmax_kl(q, p, mask), expected)
    torch.testing.assert_close(functional.evsoftmax_kl(q.t(), p.t(), mask.t(), 0), expected)
    torch.testing.assert_close(
        functional.evsoftmax_kl(q, p, mask, reduction="mean"), expected.mean()
    )
    assert (functional.evsoftmax_kl(q, q) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_kl_is_finite_at_any_gap(dtype):
    for gap in (75.0, 95.0, 3e4):
        q = torch.tensor([gap, 0.0, -gap], dtype=dtype, requires_grad=True)
        p = torch.tensor([-gap, 0.0, gap], dtype=dtype, requires_grad=True)
        kl = functional.evsoftmax_kl(q, p)
        kl.backward()
        assert kl.isfinite()
        assert q.grad.isfinite().all()
        assert p.grad.isfinite().all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, y: functional.evsoftmax_loss(x, y, eps=0.0), "logarithm"),
        (lambda x, y: functional.evsoftmax_kl(x, x, eps=0.0), "logarithm"),
        (lambda x, y: functional.sparsemax_loss(x, y, reduction="avg"), "reduction"),
        (lambda x, y: functional.softmax_loss(x, y, label_smoothing=1.5), "label_smoothing"),
        (lambda x, y: functional.softmax_loss(x, y[:2]), "does not fit"),
        (lambda x, y: get_loss("sparsehourglass"), "no loss of its own"),
    ],
)
def test_refusals(call, says):
    with pytest.raises(ValueError, match=says):
        call(logits(3, 4), targets(3, classes=4))
