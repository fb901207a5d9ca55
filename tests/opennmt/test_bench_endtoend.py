"""The benchmark of the stock commands reads what this version of OpenNMT-py logs."""

from __future__ import annotations

import pytest

from onmt_evsoftmax.bench import endtoend


@pytest.mark.parametrize("case", endtoend.cases())
def test_the_stock_commands_are_measured(case, monkeypatch):
    monkeypatch.setattr(endtoend, "SENTENCES", 3)
    (result,) = endtoend.measure(case, 0.0, 0)
    assert (result.name, result.peer, result.case) == ("evsoftmax", "stock softmax", f"onmt_{case}")
    assert result.peer_both > 0
    assert 0.02 < result.both < 50  # of so little work a ratio says nothing
