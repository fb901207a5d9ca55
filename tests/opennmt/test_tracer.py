"""Traces of real OpenNMT-py models: what their modules computed, and nothing of the padding."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import models
import numpy as np
import onmt
import pytest
import torch
from onmt.modules import MultiHeadedAttention

from onmt_evsoftmax.attended import Counts
from onmt_evsoftmax.opennmt import load_model, record_attention
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace import Record, available
from onmt_evsoftmax.trace.text import check_text, splitter
from onmt_evsoftmax.trace.tracer import Tracer

PAIRS = [
    (s.split(), t.split()) for s, t in zip(checkpoints.SOURCE, checkpoints.TARGET, strict=True)
]
MODELS = {
    "softmax": [],
    "evsoftmax": ["-attention_normalizer", "evsoftmax"],
    "sparsemax": ["-attention_normalizer", "sparsemax"],
    "entmax15": ["-attention_normalizer", "entmax15"],
    "learned": ["-attention_normalizer", "entmax", "-attention_alpha", "learn"],
    "mixed": ["-context_attention_normalizer", "sparsemax"],
}

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Checkpoints by name, each saved once."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def checkpoint(name: str, base: list[str] = models.TRANSFORMER) -> Path:
        path = folder / f"{name}.pt"
        return path if path.exists() else checkpoints.save(path, *base, *MODELS.get(name, []))

    return checkpoint


def modules_output(loaded: Any, pairs: list[tuple[list[str], list[str]]]) -> dict[str, list[Any]]:
    """What each attention module itself returns on a padded batch: kind → (batch, heads, q, k)."""
    seen: dict[str, list[Any]] = {"encoder": [], "decoder": [], "context": []}
    handles = []
    for name, module in loaded.model.named_modules():
        if isinstance(module, MultiHeadedAttention):
            kind = "encoder" if name.startswith("encoder") else "decoder"
            kind = "context" if module.attn_type == "context" else kind
            # 3.5 returns no weights unless asked; the dropout right after them sees them. It does
            # nothing in evaluation, but 3.5 leaves it out if its rate is 0.
            module.dropout_p = 0.1
            handles.append(
                module.dropout.register_forward_hook(
                    lambda m, inputs, output, kind=kind: seen[kind].append(inputs[0].numpy())
                )
            )
    with record_attention(loaded.model):  # keeps 3.5 off the paths without weights
        loaded.force([s for s, _ in pairs], [t for _, t in pairs])
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_is_what_the_modules_computed(make: Make, name: str) -> None:
    tracer = Tracer(str(make(name)))
    batch = modules_output(tracer.model, PAIRS)
    for index, (source, target) in enumerate(PAIRS):
        record = tracer.record(index, source, target)
        alone = modules_output(tracer.model, [(source, target)])
        for kind, attention in record.attention.items():
            rows, keys = (len(side) for side in record.axes(kind))
            assert attention.shape == (2, 2, rows, keys)
            for layer in range(2):
                # Alone, bit for bit; in a padded batch, up to rounding.
                assert np.array_equal(attention.weights[layer], alone[kind][layer][0])
                np.testing.assert_allclose(
                    attention.weights[layer],
                    batch[kind][layer][index][:, :rows, :keys],
                    atol=1e-5,
                )
            allowed = available(kind, rows, keys)
            assert not attention.support[:, :, ~allowed].any()
            assert not attention.weights[~attention.support].any()
            np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-5)


def test_softmax_supports_everything_and_the_sparse_do_not(make: Make) -> None:
    for name in MODELS:
        tracer = Tracer(str(make(name)))
        record = tracer.record(0, *PAIRS[0])
        for kind, attention in record.attention.items():
            full = available(kind, *attention.shape[2:]).sum() * 4
            sparse = tracer.kinds[kind].normalizer != "softmax"
            assert (attention.support.sum() < full) == sparse


def test_the_header_knows_the_model(make: Make, tmp_path: Path) -> None:
    path = make("learned")
    tracer = Tracer(str(path))
    source = check_text(str(checkpoints.text(tmp_path / "s", checkpoints.SOURCE)))
    header = tracer.header(source, None)
    context = header.kinds["context"]
    assert (context.normalizer, context.layers, context.heads) == ("entmax", 2, 2)
    assert context.alphas == [[1.5, 1.5], [1.5, 1.5]]
    assert header.model["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert header.source["sentences"] == 4
    assert header.target["search"]["beam_size"] == 5
    assert not header.forced
    assert header.subwords == {"source": "sentencepiece", "target": "sentencepiece"}
    mixed = Tracer(str(make("mixed")))
    assert {k: v.normalizer for k, v in mixed.kinds.items()} == {
        "encoder": "softmax",
        "decoder": "softmax",
        "context": "sparsemax",
    }


def test_scores_are_the_models_log_probabilities(make: Make) -> None:
    tracer = Tracer(str(make("evsoftmax")))
    source, target = PAIRS[0]
    record = tracer.record(0, source, target)
    hidden = tracer.model.force([source], [target])
    table = torch.log_softmax(tracer.model.model.generator(hidden), -1)[0]
    vocabulary = tracer.model.vocabs["tgt"]
    for step, token in enumerate(record.target.tokens):
        assert record.scores[step] == pytest.approx(table[step, vocabulary[token]].item(), abs=1e-5)
    assert record.score == pytest.approx(sum(record.scores))
    assert record.target.tokens == (*target, "</s>")
    assert record.prefix.tokens == ("<s>", *target)


@pytest.mark.parametrize("name", ["evsoftmax", "learned"])
def test_without_a_target_it_traces_what_decoding_attended_to(make: Make, name: str) -> None:
    """Greedy decoding step by step, with its cache, saw the same attention."""
    tracer = Tracer(str(make(name)), beam_size=1, max_length=6)
    source = PAIRS[0][0]
    record = tracer.record(0, source)
    with record_attention(tracer.model.model) as calls:
        (output,) = tracer.model.decode([source])
    assert record.target.tokens == (*output, "</s>")
    for layer in range(2):
        steps = [c for c in calls if c.kind == "context" and c.layer == layer]
        stepwise = np.concatenate([step.probabilities[0].numpy() for step in steps], axis=1)
        rows = stepwise.shape[1]
        np.testing.assert_allclose(
            record.attention["context"].weights[layer, :, :rows], stepwise, atol=1e-5
        )
        for step, call in enumerate(c for c in calls if c.kind == "decoder" and c.layer == layer):
            np.testing.assert_allclose(
                record.attention["decoder"].weights[layer, :, step, : step + 1],
                call.probabilities[0, :, 0].numpy(),
                atol=1e-5,
            )


def test_unknown_words_keep_their_name(make: Make) -> None:
    record = Tracer(str(make("softmax"))).record(0, *PAIRS[3])
    assert record.source.tokens[-1] == "▁unseen"


def test_an_empty_line_is_an_empty_record(make: Make) -> None:
    tracer = Tracer(str(make("evsoftmax")))
    record = tracer.record(3, [], ["▁sie"])
    assert record.index == 3
    assert all(attention.shape == (2, 2, 0, 0) for attention in record.attention.values())
    # An empty target is only its end.
    record = tracer.record(0, ["▁you"], [])
    assert record.target.tokens == ("</s>",)
    assert record.attention["decoder"].shape == (2, 2, 1, 1)


def test_test_time_normalizer_overrules_the_checkpoint(make: Make) -> None:
    tracer = Tracer(str(make("softmax")), attention_normalizer="evsoftmax")
    assert tracer.kinds["context"].normalizer == "evsoftmax"
    attention = tracer.record(0, *PAIRS[0]).attention["context"]
    assert attention.support.mean() < 1


def test_kinds_can_be_chosen(make: Make) -> None:
    record = Tracer(str(make("softmax")), kinds=["context"]).record(0, *PAIRS[0])
    assert list(record.attention) == ["context"]
    lm = make("lm", models.LANGUAGE_MODEL)
    with pytest.raises(UserError, match="has no context attention, only decoder"):
        Tracer(str(lm), kinds=["context"])


def test_a_language_model_attends_to_its_own_past(make: Make) -> None:
    tracer = Tracer(str(make("lm", models.LANGUAGE_MODEL)))
    record = tracer.record(0, PAIRS[0][0])
    assert list(record.attention) == ["decoder"]
    assert record.source.tokens == ()
    assert record.target.tokens == (*PAIRS[0][0], "</s>")
    attention = record.attention["decoder"]
    assert attention.shape == (2, 2, 8, 8)
    np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-5)
    assert np.array_equal(attention.support[0, 0], available("decoder", 8, 8))
    assert all(math.isfinite(score) for score in record.scores)
    text = check_text(__file__)
    assert tracer.header(text, None).forced
    with pytest.raises(UserError, match="is a language model: it reads --src, without --tgt"):
        tracer.header(text, text)


@pytest.mark.parametrize("feeding", [True, False])
def test_an_rnn_has_context_attention_of_one_head(make: Make, feeding: bool) -> None:
    options = [*models.RNN, "-input_feed", str(int(feeding))]
    options += ["-global_attention_function", "sparsemax"]
    record = Tracer(str(make(f"rnn{feeding}", options))).record(0, *PAIRS[0])
    attention = record.attention["context"]
    assert list(record.attention) == ["context"]
    assert attention.shape == (1, 1, 6, 7)
    np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-5)


def test_copy_attention_is_traced_without_scores(make: Make) -> None:
    if onmt.__version__.startswith("3.5"):
        pytest.skip("OpenNMT-py 3.5 cannot load checkpoints with copy attention")
    record = Tracer(str(make("copy", [*models.TRANSFORMER, "-copy_attn"]))).record(0, *PAIRS[0])
    assert record.scores == ()
    assert record.attention["context"].shape == (2, 2, 6, 7)


def test_counts_of_a_model_equal_a_recount_over_its_modules(make: Make) -> None:
    tracer = Tracer(str(make("evsoftmax")))
    records: list[Record] = [tracer.record(i, s, t) for i, (s, t) in enumerate(PAIRS)]
    header = tracer.header(check_text(__file__), None)
    counts = Counts(header, specials=True)
    for record in records:
        counts.add(record)
    batch = modules_output(tracer.model, PAIRS)
    for kind, layers in batch.items():
        for layer, weights in enumerate(layers):
            for head in range(2):
                found = []
                for index, (source, target) in enumerate(PAIRS):
                    rows = len(source) if kind == "encoder" else len(target) + 1
                    found += [int((weights[index, head, row] > 0).sum()) for row in range(rows)]
                summary = counts.kinds[kind].measures["attended"].summary(layer, head)
                assert summary.rows == len(found)
                assert summary.mean == pytest.approx(np.mean(found))


def test_plain_text_can_be_split_first(tmp_path: Path) -> None:
    import sentencepiece

    corpus = tmp_path / "corpus"
    corpus.write_text("does that make you curious ?\nmacht sie das neugierig ?\n" * 50)
    prefix = str(tmp_path / "sp")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=prefix, vocab_size=40, minloglevel=2, hard_vocab_limit=False
    )
    pieces = splitter(prefix + ".model")("does that")
    assert "".join(pieces).replace("▁", " ").strip() == "does that"
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nd o\ndo e\n")
    assert splitter(str(codes))("does ox") == ["doe@@", "s", "o@@", "x"]
    (tmp_path / "no.model").write_text("not a model")
    for path, message in (
        (tmp_path / "no.model", "is not a subword model"),
        (tmp_path / "absent", "cannot read"),
    ):
        with pytest.raises(UserError, match=message):
            splitter(str(path))


def test_a_checkpoint_is_needed(tmp_path: Path) -> None:
    for content in (b"hello", b"", b"\x80\x04N."):
        (tmp_path / "text.pt").write_bytes(content)
        with pytest.raises(UserError, match=r"text\.pt"):
            Tracer(str(tmp_path / "text.pt"))
    with pytest.raises(UserError, match="cannot read"):
        Tracer(str(tmp_path / "absent.pt"))


def test_loaded_options_do_not_leak_into_the_next_model(make: Make) -> None:
    Tracer(str(make("softmax")), attention_normalizer="sparsemax")
    assert load_model(make("softmax")).settings.attention["context"] == "softmax"
    unset = {"attention_normalizer": None, "replace_unk": False}
    assert load_model(make("softmax"), **unset).settings.attention["context"] == "softmax"
