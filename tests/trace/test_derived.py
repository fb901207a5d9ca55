"""Mean over heads and rollout, against their definitions in other words."""

import numpy as np

from onmt_evsoftmax.corpora.marks import Tokens
from onmt_evsoftmax.trace import Attention, Record
from onmt_evsoftmax.trace.derived import mean_of_heads, rollout

GENERATOR = np.random.default_rng(5)


def attention(rows, keys, causal=False):
    weights = GENERATOR.dirichlet([0.3] * keys, (3, 2, rows)).astype(np.float32)
    weights[weights < 0.05] = 0
    if causal:
        weights = np.tril(weights) + np.eye(rows, dtype=np.float32) * 1e-3
    weights /= weights.sum(-1, keepdims=True)
    return Attention(weights, weights > 0)


def record(**kinds):
    side = Tokens(tuple("abcd"), (0, 1, 2, 3))
    target = Tokens(tuple("xyz"), (0, 1, -1))
    return Record(0, side, target, target, (), 0.0, kinds)


def test_mean_of_heads():
    given = attention(4, 4)
    made = mean_of_heads(record(encoder=given)).attention["encoder"]
    np.testing.assert_allclose(made.weights[:, 0], given.weights.sum(1) / 2, rtol=1e-6)
    assert (made.support == (made.weights > 0)).all()


def walks(mean, layer, row):
    """Rollout by its meaning: where walks from ``row`` down to the input end, and how often."""
    if layer < 0:
        return {row: 1.0}
    steps = {row: 0.5}
    for key, weight in enumerate(mean[layer, row]):
        steps[key] = steps.get(key, 0) + 0.5 * weight
    ends: dict[int, float] = {}
    for key, weight in steps.items():
        for end, rest in walks(mean, layer - 1, key).items() if weight else ():
            ends[end] = ends.get(end, 0) + weight * rest
    return ends


def test_rollout_is_where_walks_end():
    encoder, decoder, context = attention(4, 4), attention(3, 3, causal=True), attention(3, 4)
    made = rollout(record(encoder=encoder, decoder=decoder, context=context)).attention
    for kind, given in (("encoder", encoder), ("decoder", decoder)):
        mean = given.weights.mean(1)
        for layer in range(3):
            for row in range(mean.shape[1]):
                ends = walks(mean, layer, row)
                got = made[kind].weights[layer, 0, row]
                np.testing.assert_allclose(
                    got, [ends.get(k, 0) for k in range(len(got))], atol=1e-6
                )
                support = made[kind].support[layer, 0, row]
                assert set(np.flatnonzero(support)) == {end for end, p in ends.items() if p > 0}
    np.testing.assert_allclose(
        made["context"].weights[:, 0],
        context.weights.mean(1) @ made["encoder"].weights[-1, 0],
        1e-5,
    )
    for each in made.values():
        np.testing.assert_allclose(each.weights.sum(-1), 1, atol=1e-5)
    assert "context" not in rollout(record(context=context)).attention
