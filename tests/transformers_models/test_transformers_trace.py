"""Models of transformers in the tools: traced, counted, drawn, and shown in a browser."""

import browser
import numpy as np
import pytest
import small_models
import torch
import transformers as hf
from small_tokenizer import small_tokenizer

from onmt_evsoftmax.__main__ import main
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace import TraceReader
from onmt_evsoftmax.trace.tracer import Tracer
from onmt_evsoftmax.transformers.loading import LoadedModel

SOURCE = "das kleine Haus\n\nein Haus ist schön .\n"
TARGET = "the small house\n\na house is nice .\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tokenizer = small_tokenizer()
    for name in ("bart", "llama", "bert"):
        small_models.build(name).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    stock = small_models.build("bart", "sdpa")
    stock.save_pretrained(folder / "stock")
    tokenizer.save_pretrained(folder / "stock")
    (folder / "src").write_text(SOURCE)
    (folder / "tgt").write_text(TARGET)
    return folder


def traced(folder, model, tmp_path, *options):
    path = tmp_path / f"{model}.trace"
    arguments = ["--model", str(folder / model), "--src", str(folder / "src"), "--quiet"]
    assert main(["trace", *arguments, "-o", str(path), *options]) == 0
    return TraceReader(path)


def weights_of(model, **given):
    with torch.no_grad():
        return model(**given, output_attentions=True)


def stacked(layers):
    return torch.cat(list(layers)).numpy()


def test_encoder_decoder(folder, tmp_path):
    tokenizer = small_tokenizer()
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(folder / "bart").eval()
    with traced(folder, "bart", tmp_path, "--tgt", str(folder / "tgt")) as trace:
        assert len(trace) == 3
        assert set(trace.header.kinds) == {"encoder", "decoder", "context"}
        assert trace.header.kinds["context"].normalizer == "evsoftmax"
        assert trace.header.forced
        record = trace[2]
    assert record.source.tokens == ("▁ein", "▁Haus", "▁ist", "▁schön", "▁.", "</s>")
    assert record.source.words == (0, 1, 2, 3, 4, -1)
    assert record.target.tokens[-1] == "</s>"
    assert record.prefix.tokens[:2] == ("<s>", "▁a")
    source = tokenizer("ein Haus ist schön .", return_tensors="pt")["input_ids"]
    target = tokenizer(text_target="a house is nice .", return_tensors="pt")["input_ids"]
    read = torch.cat([torch.tensor([[1]]), target[:, :-1]], 1)
    out = weights_of(model, input_ids=source, decoder_input_ids=read)
    for kind, layers in (
        ("encoder", out.encoder_attentions),
        ("decoder", out.decoder_attentions),
        ("context", out.cross_attentions),
    ):
        np.testing.assert_array_equal(record.attention[kind].weights, stacked(layers))
        assert (~record.attention[kind].support).any()
    scores = out.logits[0].log_softmax(-1).gather(-1, target[0][:, None])[:, 0]
    np.testing.assert_allclose(record.scores, scores, atol=1e-5)


def test_the_models_own_output(folder, tmp_path):
    options = ("--beam-size", "2", "--max-length", "6")
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(folder / "bart").eval()
    with traced(folder, "bart", tmp_path, *options) as trace:
        record = trace[0]
        assert not trace[1].source.tokens  # an empty line
        assert trace.header.target == {"search": {"beam_size": 2, "max_length": 6}}
    given = small_tokenizer()("das kleine Haus", return_tensors="pt")
    made = model.generate(given["input_ids"], num_beams=2, max_new_tokens=6)[0, 1:].tolist()
    made = made[: made.index(2)] if 2 in made else made
    words = small_tokenizer().convert_ids_to_tokens(made)
    assert any(words)  # the model has more tokens than the tokenizer
    wanted = [word or f"<{n}>" for word, n in zip(words, made, strict=True)]
    assert list(record.target.tokens[:-1]) == wanted


def test_language_model(folder, tmp_path):
    model = hf.AutoModelForCausalLM.from_pretrained(folder / "llama").eval()
    with traced(folder, "llama", tmp_path) as trace:
        assert set(trace.header.kinds) == {"decoder"}
        record = trace[0]
    assert not record.source.tokens
    assert record.target.tokens == ("▁das", "▁kleine", "▁Haus", "</s>")
    assert record.prefix.tokens == ("<s>", "▁das", "▁kleine", "▁Haus")
    text = small_tokenizer()("das kleine Haus", add_special_tokens=False)["input_ids"]
    out = weights_of(model, input_ids=torch.tensor([[1, *text]]))
    np.testing.assert_array_equal(record.attention["decoder"].weights, stacked(out.attentions))


def test_encoder(folder, tmp_path):
    model = hf.AutoModelForMaskedLM.from_pretrained(folder / "bert").eval()
    with traced(folder, "bert", tmp_path) as trace:
        assert set(trace.header.kinds) == {"encoder"}
        assert trace.header.model["type"] == "encoder"
        record = trace[0]
    assert not record.target.tokens
    given = small_tokenizer()("das kleine Haus", return_tensors="pt")["input_ids"]
    out = weights_of(model, input_ids=given)
    np.testing.assert_array_equal(record.attention["encoder"].weights, stacked(out.attentions))
    with pytest.raises(UserError, match="is an encoder: it reads --src, without --tgt"):
        traced(folder, "bert", tmp_path, "--restart", "--tgt", str(folder / "tgt"))


def test_normalizers_at_test_time(folder, tmp_path):
    forced = ("--tgt", str(folder / "tgt"))
    with traced(folder, "bart", tmp_path, *forced) as trace:
        sparse = trace[0].attention["context"].weights
    options = (*forced, "--attention-normalizer", "evsoftmax")
    with traced(folder, "stock", tmp_path, *options) as trace:
        assert trace.header.kinds["encoder"].normalizer == "evsoftmax"
        np.testing.assert_array_equal(trace[0].attention["context"].weights, sparse)
    with traced(folder, "stock", tmp_path, *forced, "--restart") as trace:
        assert trace.header.kinds["encoder"].normalizer == "softmax"
        assert trace[0].attention["context"].support.all()


def test_wordpiece_and_bytes():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.decoders import ByteLevel

    pieces = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "play": 3, "##ing": 4, "we": 5}
    wordpiece = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    wordpiece.pre_tokenizer = pre_tokenizers.Whitespace()
    letters = {"ö": 0, "Ã": 1, "¶": 2, "Ġ": 3, "a": 4, "b": 5, "Ġa": 6, "Ã¶": 7, "</s>": 8}
    merges = [("Ġ", "a"), ("Ã", "¶")]
    bytewise = Tokenizer(models.BPE(letters, merges))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = ByteLevel()
    for tokenizer, end, text, shown in (
        (wordpiece, "[SEP]", "we playing", ["▁we", "▁play", "ing"]),
        (bytewise, "</s>", "böb ab", ["▁b", "ö", "b", "▁a", "b"]),
    ):
        fast = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
        model = small_models.build("llama", "softmax")
        loaded = LoadedModel(model, fast, 1, 5)
        tokens = loaded.split(text, "source")
        assert tokens == shown
        assert loaded.tokens("source") == ["▁"]
        assert loaded._numbers(tokens) == fast(text, add_special_tokens=False)["input_ids"]


def test_what_cannot_be_used_is_said(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "config.json").write_text('{"model_type": "bart", "architectures": ["X"]}')
    small_models.build("whisper").save_pretrained(tmp_path / "whisper")
    small_tokenizer().save_pretrained(tmp_path / "whisper")
    for name, reason in (("text", "architecture"), ("whisper", "not text"), ("empty", "")):
        with pytest.raises(UserError, match=rf"{name}: .*{reason}|cannot read"):
            Tracer(str(tmp_path / name))
    with pytest.raises(UserError, match="evsoftmx"):
        Tracer(str(folder / "bart"), attention_normalizer="evsoftmx")


def test_count_plot_and_page(folder, tmp_path, capsys):
    forced = ("--tgt", str(folder / "tgt"))
    with (
        traced(folder, "stock", tmp_path, *forced) as soft,
        traced(folder, "bart", tmp_path, *forced) as sparse,
    ):
        files = [str(soft.path), str(sparse.path)]
    assert main(["count", *files, "--by", "kind", "derived", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "ev-softmax" in said
    assert "rollout" in said
    for output, options in (("heads.svg", ["--head", "1,mean,rollout"]), ("page.html", [])):
        out = str(tmp_path / output)
        assert main(["plot", *files, *options, "-o", out, "--quiet"]) == 0
    with (
        browser.launched() as chromium,
        browser.opened(chromium, tmp_path / "page.html", "#line=3&kind=context&layer=2") as page,
    ):
        page.wait_for_selector('body[data-shown="2"]')
        names = page.locator(".panel h2").all_inner_texts()
        assert names == ["softmax", "ev-softmax"]
        rows = page.locator(".panel").nth(1).locator(".queries button").all_inner_texts()
        assert rows[:2] == ["a", "house"]
        assert "ein Haus ist schön ." in page.locator("#source").inner_text()
        full, part = (
            page.locator(".panel").nth(n).locator(".numbers dd").first.inner_text() for n in (0, 1)
        )
        assert full == "6.0 of 6.0"
        assert float(part.split()[0]) < 6
