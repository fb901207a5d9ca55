"""The float64 reference of the kernels' gradients, itself held against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_cases import random
from attention_reference import ALPHAS, Places, reference

from onmt_evsoftmax.attention import dropout


@pytest.mark.parametrize("name", ALPHAS)
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_gradients_are_those_of_finite_differences(name, dropout_p):
    tensors = [random(1, heads, 5, 3, seed=i).double() for i, heads in enumerate((4, 2, 2))]
    tensors += [random(3, 3, seed=i).double() for i in (8, 9)]  # relative keys and values
    slopes = random(1, 4, seed=10).abs()
    grad, bias = random(1, 4, 5, 3, seed=5), random(1, 4, 5, 5, seed=6).double()
    mask = random(1, 1, 5, 5, seed=7) > -0.8
    factor = None
    if dropout_p:
        factor = dropout.factors(torch.tensor(3), dropout_p, 4, 5, 5)

    def found(query, key, value, *tables):
        places = Places(*tables, slopes, 1)
        return reference(name, query, key, value, grad, 0.7, mask, bias, True, factor, places)

    expected = found(*tensors)
    assert expected.clear.all()
    weight, step = grad.double().numpy(), 1e-6
    for which, of_tensor in enumerate(expected.grads):
        numeric = np.zeros(of_tensor.size)
        for place in range(of_tensor.size):
            moved = []
            for sign in (1, -1):
                given = [t.clone() for t in tensors]
                given[which].view(-1)[place] += sign * step
                moved.append((found(*given).out * weight).sum())
            numeric[place] = (moved[0] - moved[1]) / (2 * step)
        np.testing.assert_allclose(of_tensor.reshape(-1), numeric, atol=1e-7, rtol=1e-6)
