"""The benchmark of the stock commands reads what this version of OpenNMT-py logs."""

from __future__ import annotations

import pytest

from onmt_evsoftmax.bench import busy, endtoend


@pytest.fixture
def little(monkeypatch):
    small = {"hidden_size: 128": "hidden_size: 16", "word_vec_size: 128": "word_vec_size: 16"}
    small |= {"transformer_ff: 256": "transformer_ff: 16", "batch_size: 2048": "batch_size: 64"}
    text = endtoend.TRAIN
    for large, little in small.items():
        assert large in text
        text = text.replace(large, little)
    sizes = {"TRAIN": text, "SENTENCES": 50, "WORDS": 50, "LENGTH": 24, "ROUNDS": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(endtoend, name, value)


@pytest.mark.parametrize("case", endtoend.cases())
def test_the_stock_commands_are_measured(case, little):
    results = list(endtoend.measure(case, 2.0, 0))
    assert [result.name for result in results] == ["evsoftmax", "sparsemax", "entmax15"]
    for result in results:
        assert (result.peer, result.case) == ("stock softmax", f"onmt_{case}")
        assert result.peer_both > 0
        assert 0.02 < result.both < 50  # of so little work a ratio says nothing


@pytest.mark.slow
def test_the_programs_are_measured_beside_a_busy_process(little):
    """Of the four, the one that takes least time here."""
    case = busy.cases()[-1]
    results = {result.name: result for result in busy.measure(case, 0.0, 0)}
    assert set(results) == {
        "softmax, busy", "evsoftmax, busy", "softmax, threads left alone, busy", "softmax, idle"
    }  # fmt: skip
    assert {result.case for result in results.values()} == {case}
    assert all(0.02 < result.both < 50 for result in results.values())
    assert results["softmax, busy"].target_both == 2.5
    assert results["softmax, idle"].target_both == 1.03
