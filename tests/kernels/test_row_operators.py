"""The row kernels as torch operators: torch.compile, vmap, batched gradients."""

from __future__ import annotations

import functional
import pytest
import torch
from compiled import with_each_instruction_set
from row_cases import each

from onmt_evsoftmax.kernels import library

pytestmark = with_each_instruction_set

#: No alpha, relative positions, slopes or seed; offset, causal, scale, dropout.
PLAIN = (None, None, None, None, None, 0, False, 1.0, 0.0)


@each
def test_operators_keep_torch_s_rules(name):
    scores = torch.randn(3, 4, 9, requires_grad=True)
    mask = torch.rand(3, 1, 9) < 0.8
    forward = torch.ops.onmt_evsoftmax.rows_forward.default
    parameter = library.RANGES[name][0]  # the least that it takes
    for arguments in (
        (None, 0.0, None, True),
        (mask, 0.0, None, False),
        (mask, parameter, None, True),
    ):
        torch.library.opcheck(forward, (name, scores, *arguments))
    p = torch.rand(3, 4, 9)
    backward = torch.ops.onmt_evsoftmax.rows_backward.default
    torch.library.opcheck(backward, (name, p, torch.randn(3, 4, 9)))


@each
def test_the_operator_has_the_gradient_of_the_function(name):
    scores = torch.randn(5, 20, dtype=torch.float64, requires_grad=True)
    p, _ = torch.ops.onmt_evsoftmax.rows_forward(name, scores, None, 0.0, None, False)
    weight = torch.randn(5, 20, dtype=torch.float64)
    (grad,) = torch.autograd.grad((p * weight).sum(), scores)
    (expected,) = torch.autograd.grad((getattr(functional, name)(scores) * weight).sum(), scores)
    torch.testing.assert_close(grad, expected)


def test_the_operator_gives_alpha_its_gradient():
    scores = torch.randn(3, 4, 9, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([1.2, 1.5, 1.8], dtype=torch.float64).view(3, 1, 1).requires_grad_()
    forward = torch.ops.onmt_evsoftmax.rows_forward.default
    arguments = ("entmax", scores, None, 0.0, alpha, False)
    torch.library.opcheck(forward, arguments)
    weight = torch.randn(3, 4, 9, dtype=torch.float64)
    expected = functional.entmax(scores, alpha=alpha)
    got, want = (
        torch.autograd.grad((p * weight).sum(), (scores, alpha))
        for p in (forward(*arguments)[0], expected)
    )
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@each
def test_operators_batch(name):
    scores, mask = torch.randn(4, 3, 9), torch.rand(4, 3, 9) < 0.7
    forward = torch.ops.onmt_evsoftmax.rows_forward
    for in_dims, arguments in (
        ((0, None), (scores, mask[0])),
        ((1, 1), (scores, mask)),
        ((None, 0), (scores[0], mask)),
    ):
        mapped = torch.vmap(lambda s, m: forward(name, s, m, 0.0, None, True)[0], in_dims)(
            *arguments
        )
        size = arguments[in_dims.index(1) if 1 in in_dims else in_dims.index(0)].size(
            max(d or 0 for d in in_dims)
        )
        for i in range(size):
            pick = [
                t if d is None else t.select(d, i) for t, d in zip(arguments, in_dims, strict=True)
            ]
            assert torch.equal(mapped[i], forward(name, *pick, 0.0, None, True)[0])


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


def test_operators_refuse_what_would_be_read_past_its_end():
    """They are within everybody's reach, also without the functions that check."""
    operators, scores = torch.ops.onmt_evsoftmax, torch.randn(3, 40)
    for mask in (torch.ones(40), torch.ones(3, 1), torch.ones(2, 40)):
        with pytest.raises(
            ValueError, match=r"must be torch.bool and broadcast to \(3, 40\), all of"
        ):
            operators.rows_forward("evsoftmax", scores, mask.bool(), 0.0, None, True)
    with pytest.raises(ValueError, match="must be alike"):
        operators.rows_backward("evsoftmax", scores, torch.randn(2, 2))
    query, value = torch.randn(1, 1, 5, 64), torch.randn(1, 1, 5, 8)
    with pytest.raises(ValueError, match="query, key and value must be"):
        operators.attention_forward(
            "evsoftmax", query, torch.randn(1, 1, 500, 4), value, None, None, *PLAIN
        )
    same, wide = torch.randn(1, 1, 5, 64), torch.ones(1, 1, 5, 4)
    for mask, bias in ((wide.bool(), None), (None, wide), (wide[0].bool(), None), (wide, None)):
        with pytest.raises(ValueError, match=r"must be torch.* and broadcast to"):
            operators.attention_forward("sparsemax", query, same, value, mask, bias, *PLAIN)
    for name, terms, says in (
        ("entmax", (None, None, None, None), "which needs it"),
        ("sparsemax", (torch.ones(1, 1), None, None, None), "which needs it"),
        ("entmax", (torch.full((1, 1), 2.5), None, None, None), "takes no alpha from"),
        ("sparsemax", (None, torch.ones(5, 7), None, None), "relative_keys must be of shape"),
        ("sparsemax", (None, torch.ones(4, 64), None, None), "odd number of rows"),
        ("sparsemax", (None, None, torch.ones(5, 8), None), "need relative_keys"),
        ("sparsemax", (None, None, None, torch.ones(3)), "slopes must be of shape"),
    ):
        with pytest.raises(ValueError, match=says):
            operators.attention_forward(name, query, same, value, None, None, *terms, *PLAIN[4:])
    with pytest.raises(ValueError, match="must be one of evsoftmax"):
        operators.attention_forward("softmax", query, same, value, None, None, *PLAIN)


def test_operators_refuse_in_a_sentence():
    forward, backward = (
        torch.ops.onmt_evsoftmax.rows_forward,
        torch.ops.onmt_evsoftmax.rows_backward,
    )
    for scores, name, error, says in (
        (torch.randn(3, 4), "softmax", ValueError, "must be one of evsoftmax"),
        (torch.ones(3, 4, dtype=torch.int64), "evsoftmax", TypeError, "rows must be of"),
        (torch.tensor(1.0), "evsoftmax", TypeError, "1 to 16 dimensions"),
        (torch.randn(*[1] * 16, 2, 4)[..., :3], "evsoftmax", TypeError, "1 to 16 dimensions"),
    ):
        with pytest.raises(error, match=says):
            forward(name, scores, None, 0.0, None, True)
        with pytest.raises(error, match=says):
            backward(name, scores, scores)
    for name, parameter in (("evsoftmax", -1.0), ("evsoftmax", 1e-45), ("sparsemax", 0.5)):
        with pytest.raises(ValueError, match="does not take the parameter"):
            forward(name, torch.randn(3, 4), None, parameter, None, True)


def test_attention_operators_refuse_what_the_forward_pass_did_not_give():
    operators = torch.ops.onmt_evsoftmax
    tensors = [torch.randn(1, 1, 5, 8) for _ in range(3)]
    for dropout_p in (0.5, 1.5, -1.0):
        with pytest.raises(ValueError, match="dropout_p must be"):
            operators.attention_forward("evsoftmax", *tensors, None, None, *PLAIN[:-1], dropout_p)
    given = ("sparsemax", *tensors, None, None, *PLAIN, False)
    saved = list(operators.attention_forward(*given))
    grad = torch.randn(1, 1, 5, 8)
    expected = operators.attention_backward(grad, *given, *saved)
    for i, name in enumerate(("grad", "out", "level", "bar")):
        good = (grad, *saved)[i]
        for bad in (good[..., :1], good.to(torch.float16)):
            results = [grad, *saved]
            results[i] = bad
            with pytest.raises(ValueError, match=f"{name} must be"):
                operators.attention_backward(results[0], *given, *results[1:])
    apart = [t.repeat_interleave(2, -1)[..., ::2] for t in saved]
    again = operators.attention_backward(grad, *given, *apart)
    for got, want in zip(again, expected, strict=True):
        assert torch.equal(got, want)
