"""The registry: names, options, modules, losses, and what third parties add."""

from __future__ import annotations

import pytest
import torch

import onmt_evsoftmax
from onmt_evsoftmax.normalizers import functional
from onmt_evsoftmax.normalizers import registry as normalizers
from onmt_evsoftmax.normalizers.registry import (
    get_loss,
    get_normalizer,
    normalizer_names,
    register_normalizer,
)

SCORES = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([True, True, True, True, False])


@pytest.mark.parametrize(
    "name", ["softmax", "evsoftmax", "sparsemax", "entmax15", "entmax", "sparsehourglass"]
)
def test_each_name_is_its_function(name):
    assert name in normalizer_names()
    module = get_normalizer(name).eval()
    function = getattr(functional, name)
    assert torch.equal(module(SCORES, MASK), function(SCORES, MASK))
    assert torch.equal(module(SCORES, MASK, -1), function(SCORES, MASK, -1))
    assert torch.equal(
        module(SCORES, MASK, return_support=True)[1], function(SCORES, MASK, return_support=True)[1]
    )
    assert getattr(onmt_evsoftmax, name) is function


def test_eps_is_for_training_only():
    module = get_normalizer("evsoftmax", eps=1e-3)
    assert torch.equal(module.train()(SCORES), functional.evsoftmax(SCORES, eps=1e-3))
    assert torch.equal(module.eval()(SCORES), functional.evsoftmax(SCORES))
    assert "eps=0.001" in repr(module.train())


def test_learned_alpha_per_head():
    module = get_normalizer("entmax", alpha="learn", heads=3)
    assert module.alpha.flatten().tolist() == [1.5] * 3
    torch.testing.assert_close(module(SCORES), functional.entmax15(SCORES), atol=1e-5, rtol=0)
    optimizer = torch.optim.SGD(module.parameters(), lr=5.0)
    for _ in range(200):  # sparser is better for the first head, denser for the others
        optimizer.zero_grad()
        heads = module(SCORES).square().sum((0, 2, 3))
        (heads[1:].sum() - heads[0]).backward()
        optimizer.step()
    first, *others = module.alpha.flatten().tolist()
    assert 1.5 < first < 2
    assert all(1 < alpha < 1.5 for alpha in others)
    again = get_normalizer("entmax", alpha="learn", heads=3)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(SCORES), module(SCORES))
    module.pre_alpha.data.fill_(-1e4)  # alpha is 1 to the last bit, yet nothing breaks
    torch.testing.assert_close(module(SCORES), functional.softmax(SCORES), atol=2e-2, rtol=0)


def test_a_fixed_alpha_has_no_parameter():
    module = get_normalizer("entmax", alpha="1.3")
    assert list(module.state_dict()) == []
    torch.testing.assert_close(module(SCORES), functional.entmax(SCORES, alpha=1.3))


def test_the_loss_stands_beside_its_normalizer():
    y = torch.randint(5, (2,))
    x = SCORES[:, 0, 0]
    for name in ("softmax", "evsoftmax", "sparsemax", "entmax15", "entmax"):
        assert get_loss(name)(x, y).isfinite(), name
    assert get_loss("evsoftmax", eps=1e-2)(x, y) < get_loss("evsoftmax", eps=1e-9)(x, y) + 1


@pytest.fixture
def registry():
    before = dict(normalizers._REGISTRY)
    yield
    normalizers._REGISTRY.clear()
    normalizers._REGISTRY.update(before)


@pytest.mark.usefixtures("registry")
def test_third_parties_register_their_own():
    class Hardmax(torch.nn.Module):
        def __init__(self, temperature: float = 1.0) -> None:
            super().__init__()

        def forward(self, scores, mask=None, dim=-1):
            scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
            return (scores == scores.amax(dim, keepdim=True)).to(scores.dtype)

    register_normalizer("hardmax", Hardmax)
    assert "hardmax" in normalizer_names()
    assert get_normalizer("hardmax", temperature=2.0)(SCORES, MASK).sum() == 2 * 3 * 4
    with pytest.raises(ValueError, match="registered already"):
        register_normalizer("hardmax", Hardmax)
    with pytest.raises(ValueError, match="did you mean temperature"):
        get_normalizer("hardmax", temprature=2.0)
    with pytest.raises(ValueError, match="no loss of its own"):
        get_loss("hardmax")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: get_normalizer("evsotfmax"),
            r"did you mean evsoftmax\?\); known: softmax, evsoftmax",
        ),
        (lambda: get_loss("sparsmax"), "did you mean sparsemax"),
        (
            lambda: get_normalizer("entmax", alhpa=1.3),
            r"did you mean alpha\?\); known: alpha, heads",
        ),
        (lambda: get_normalizer("softmax", eps=1.0), "'eps'; known: none"),
        (lambda: get_normalizer("entmax", alpha="lern"), "a number or 'learn'"),
        (lambda: get_normalizer("entmax", alpha=1.0), "at least 1.01"),
        (lambda: get_normalizer("evsoftmax", eps=-1.0), "eps must be"),
        (lambda: get_normalizer("sparsehourglass", q=0.0), "q must be positive"),
        (lambda: get_loss("softmax", alpha=1.5), "unknown option of the loss of 'softmax'"),
    ],
)
def test_errors_list_what_is_valid_and_the_nearest(call, says):
    with pytest.raises(ValueError, match=says):
        call()
