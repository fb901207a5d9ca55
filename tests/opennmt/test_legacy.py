"""Checkpoints and traces of the package as it was before its modules moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onmt_evsoftmax.trace import TraceReader
from onmt_evsoftmax.trace.tracer import Tracer

LEGACY = Path(__file__).parents[1] / "legacy"


def lines(name: str) -> list[list[str]]:
    return [line.split() for line in (LEGACY / name).read_text().splitlines()]


@pytest.mark.parametrize("name", ["evsoftmax", "entmax", "mixed", "rnn"])
def test_checkpoint_loads_and_decodes(name: str) -> None:
    tracer = Tracer(str(LEGACY / f"{name}_step_30.pt"), beam_size=2, max_length=5)
    assert tracer.record(0, lines("t.en")[0]).target.tokens


@pytest.mark.parametrize("name", ["evsoftmax", "entmax", "rnn"])
def test_checkpoint_attends_as_its_trace_says(name: str) -> None:
    tracer = Tracer(str(LEGACY / f"{name}_step_30.pt"))
    with TraceReader(LEGACY / f"{name}.trace") as trace:
        assert trace.complete
        assert len(trace) == len(lines("t.en"))
        assert {kind: about.normalizer for kind, about in trace.header.kinds.items()} == {
            kind: about.normalizer for kind, about in tracer.kinds.items()
        }
        for index in (0, 7, 19):
            then = trace[index]
            now = tracer.record(index, lines("t.en")[index], lines("t.de")[index])
            assert now.target.tokens == then.target.tokens
            np.testing.assert_allclose(now.scores, then.scores, rtol=1e-5)
            for kind, attention in then.attention.items():
                np.testing.assert_array_equal(now.attention[kind].support, attention.support)
                np.testing.assert_allclose(
                    now.attention[kind].weights, attention.weights, atol=1e-6
                )
