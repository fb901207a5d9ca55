"""When a beam search ends: OpenNMT-py's own search is the judge of the rule it has in eole."""

import importlib

import pytest
import torch

WORDS, LENGTH, SENTENCES, BEAM = 12, 15, 40, 4
PAD, START, END, UNK = 0, 1, 2, 3


def language(seed):
    """Log-probabilities of the next word, (sentence, step, last word, word), drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(SENTENCES, LENGTH, WORDS, WORDS, generator=draw)
    scores[..., END] += 1  # so that beams end at different times
    return scores.log_softmax(-1)


def search(toolkit, table, n_best, penalty, waits=False, static=False):
    """What a toolkit's beam search finds in ``table``: a list of (words, score) per sentence."""
    place = "eole.predict" if toolkit == "eole" else "onmt.translate"
    module = importlib.import_module(f"{place}.beam_search")
    strategy = module.BeamSearch(
        BEAM,
        batch_size=SENTENCES,
        pad=PAD,
        bos=START,
        eos=[END] if toolkit == "eole" else END,
        unk=UNK,
        start=START,
        n_best=n_best,
        global_scorer=module.GNMTGlobalScorer(1.0, 0.0, penalty, "none"),
        min_length=0,
        max_length=LENGTH,
        return_attention=False,
        block_ngram_repeat=0,
        exclusion_tokens=set(),
        stepwise_penalty=False,
        ratio=-0.0,
        ban_unk_token=False,
    )
    strategy.parallel_gpu = 1
    strategy.static_batch_size = static
    if waits:
        strategy.best_ended = set()
    strategy.initialize(torch.zeros(SENTENCES, 1, 1), torch.ones(SENTENCES, dtype=torch.long))
    for step in range(LENGTH):
        rows = strategy.batch_offset.repeat_interleave(BEAM)
        strategy.advance(table[rows, step, strategy.current_predictions].clone(), None)
        strategy.update_finished()
        if strategy.done:
            break
    return [
        [(found.tolist(), float(score)) for found, score in zip(words, scores, strict=True)]
        for words, scores in zip(strategy.predictions, strategy.scores, strict=True)
    ]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("n_best", [1, 3])
@pytest.mark.parametrize("penalty", ["avg", "wu", "none"])
def test_the_rule(penalty, n_best, static):
    table = language(1)
    judge = search("onmt", table, n_best, penalty)
    found = search("eole", table, n_best, penalty, waits=True, static=static)
    assert [len(best) for best in found] == [n_best] * SENTENCES
    for mine, theirs in zip(found, judge, strict=True):
        for (words, score), (other_words, other_score) in zip(mine, theirs, strict=True):
            assert words == other_words
            assert score == pytest.approx(other_score, rel=1e-5)


def test_the_rule_matters():
    """Under a length penalty what ends later may be better; without one it cannot be."""
    table = language(1)
    for penalty, same in (("avg", False), ("none", True)):
        judge = search("onmt", table, 1, penalty)
        own = search("eole", table, 1, penalty)
        assert ([words for ((words, _),) in own] == [words for ((words, _),) in judge]) == same
