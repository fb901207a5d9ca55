"""The benchmark of the stock commands reads what this version of OpenNMT-py logs."""

from __future__ import annotations

import pytest

from onmt_evsoftmax.bench import endtoend


@pytest.mark.parametrize("case", endtoend.cases())
def test_the_stock_commands_are_measured(case, monkeypatch):
    small = {"hidden_size: 256": "hidden_size: 16", "word_vec_size: 256": "word_vec_size: 16"}
    small |= {"transformer_ff: 1024": "transformer_ff: 16", "batch_size: 1024": "batch_size: 64"}
    text = endtoend.TRAIN
    for large, little in small.items():
        assert large in text
        text = text.replace(large, little)
    for name, value in {"TRAIN": text, "SENTENCES": 50, "WORDS": 50, "LENGTH": 24}.items():
        monkeypatch.setattr(endtoend, name, value)
    (result,) = endtoend.measure(case, 2.0, 0)
    assert (result.name, result.peer, result.case) == ("evsoftmax", "stock softmax", f"onmt_{case}")
    assert result.peer_both > 0
    assert 0.02 < result.both < 50  # of so little work a ratio says nothing
