"""The stock eole with normalizers of this package: options, attention, training, prediction."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from eole_runs import BIN, SIZE, eole, predict_config, program, settings

from onmt_evsoftmax.normalizers.registry import get_record, normalizer_names

FAST = {"optim": "adam", "learning_rate": 0.02, "dropout": [0.0], "attention_dropout": [0.0]}
SPARSE = [name for name in normalizer_names("attention") if name != "softmax"]


def model_config(**keys):
    from eole.config.models import TransformerModelConfig

    return TransformerModelConfig(**SIZE, **keys)


def test_keys():
    config = model_config(attention_normalizer="entmax", attention_alpha=1.3)
    for part in (config.encoder, config.decoder):
        assert (part.attention_normalizer, part.attention_alpha) == ("entmax", 1.3)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"attention_normalizer": "evsoftmx"}, "did you mean evsoftmax"),
        ({"attention_normaliser": "evsoftmax"}, "Extra inputs are not permitted"),
        ({"attention_normalizer": "posthoc"}, "posthoc is for test-time only"),
        ({"attention_normalizer": "entmax", "attention_alpha": "big"}, "alpha must be"),
        ({"attention_normalizer": "evsoftmax", "attention_alpha": "learn"}, "has no effect"),
        ({"max_relative_positions": 0}, "greater than 0"),
        (
            {
                "max_relative_positions": 4,
                "embeddings": {"position_encoding_type": "Relative", "n_positions": 4},
            },
            "max_relative_positions: position_encoding_type Relative has its own distances",
        ),
        (
            {"max_relative_positions": 4, "relative_positions_buckets": 8},
            "max_relative_positions: relative_positions_buckets has its own distances",
        ),
        ({"attention_normalizer": "sparsemax", "attention_alpha": 1.3}, "has no effect"),
    ],
)
def test_wrong_keys(keys, reason):
    with pytest.raises(Exception, match=reason):
        model_config(**keys)


def test_keys_for_what_the_model_has_not():
    from eole.config.models import RnnModelConfig, TransformerLMModelConfig

    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        RnnModelConfig(attention_normalizer="evsoftmax")
    TransformerLMModelConfig(**SIZE, decoder_attention_normalizer="evsoftmax")
    with pytest.raises(ValueError, match="context_attention_normalizer: the model has no encoder"):
        TransformerLMModelConfig(**SIZE, context_attention_normalizer="evsoftmax")


def attention(kind, name, running=None, **keys):
    from eole.modules.multi_headed_attn import ContextMHA, SelfMHA

    config = model_config(**{f"{kind}_attention_normalizer": name}, **keys)
    part = config.encoder if kind == "encoder" else config.decoder
    torch.manual_seed(3)
    if kind == "context":
        made = ContextMHA(part, running)
    else:
        made = SelfMHA(part, running, is_decoder=kind == "decoder")
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made.eval()


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("kind", ["encoder", "decoder", "context"])
def test_weights_are_those_of_the_definition(kind, name):
    layer = attention(kind, name)
    x = torch.randn(2, 5, 16)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1, ..., 3:] = False
    if kind == "decoder":
        mask = mask & torch.ones(5, 5, dtype=torch.bool).tril()
    given = (x, x, x) if kind == "context" else (x,)
    out, weights = layer(*given, attn_mask=mask, return_attn=True)
    plain, nothing = layer(*given, attn_mask=mask)
    assert nothing is None
    torch.testing.assert_close(out, plain)
    heads = [p(x).view(2, 5, 2, 8).transpose(1, 2) for p in (layer.linear_query, layer.linear_keys)]
    scores = (heads[0] @ heads[1].transpose(-1, -2)).double() * 8**-0.5
    wanted = get_record(name).function(scores, mask)
    torch.testing.assert_close(weights.double(), wanted, atol=1e-5, rtol=1e-4)
    # Padded is alone.
    alone = (x[1:, :3],) * len(given)
    single, _ = layer(*alone, attn_mask=mask[1:, :, :3, :3])
    torch.testing.assert_close(out[1:, :3], single, atol=1e-5, rtol=1e-4)


def test_softmax_stays_theirs():
    layer = attention("encoder", None)
    assert layer.normalizer is None
    x = torch.randn(1, 4, 16)
    _, weights = layer(x, return_attn=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 4))
    assert weights.min() > 0


@pytest.mark.parametrize(
    ("name", "positions", "keys"),
    [
        ("evsoftmax", "SinusoidalInterleaved", {}),
        ("evsoftmax", "Alibi", {}),
        ("evsoftmax", "Relative", {}),
        ("evsoftmax", "Relative", {"relative_positions_buckets": 4}),
        ("evsoftmax", "SinusoidalInterleaved", {"max_relative_positions": 2}),
        (None, "SinusoidalInterleaved", {"max_relative_positions": 2}),
    ],
)
def test_cached_steps_are_the_whole(name, positions, keys):
    """Empty slots of a cache take no part; position biases do, from where the query stands."""
    reach = 8 if "relative_positions_buckets" in keys else 2
    embeddings = {"word_vec_size": 16, "position_encoding_type": positions, "n_positions": reach}
    layer = attention("decoder", name, embeddings=embeddings, **keys)
    x = torch.randn(1, 4, 16)
    causal = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    whole, weights = layer(x, attn_mask=causal, return_attn=True)
    assert (weights[causal.expand_as(weights)] == 0).any() == (name is not None)
    layer.kcache, layer.vcache = torch.zeros(1, 9, 2, 8), torch.zeros(1, 9, 2, 8)
    for step in range(4):
        mask = (torch.arange(9) <= step).view(1, 1, 1, 9)
        at = torch.tensor([step])
        out, _ = layer(x[:, step : step + 1], mask, cache_seqlens=at, cache_slice=at)
        torch.testing.assert_close(out, whole[:, step : step + 1], atol=1e-5, rtol=1e-4)


def test_position_biases_are_added():
    """T5's bias by buckets is part of the scores, and of their mean."""
    layer = attention(
        "encoder",
        "evsoftmax",
        relative_positions_buckets=8,
        embeddings={"n_positions": 16, "position_encoding_type": "Relative"},
    )
    x = torch.randn(1, 6, 16)
    _, before = layer(x, return_attn=True)
    layer.relative_attention_bias.weight.data.mul_(5)
    _, after = layer(x, return_attn=True)
    assert ((before > 0) != (after > 0)).any()


@pytest.mark.parametrize("kind", ["decoder", "context"])
def test_faster_backends_are_shut_and_said(kind, monkeypatch, caplog):
    """A machine with flash attention, and a device that is not the CPU."""
    from types import SimpleNamespace

    import eole.ops
    from eole.modules import multi_headed_attn
    from eole.utils.logging import logger

    def taken(*args, **kwargs):
        raise AssertionError("softmax was used")

    monkeypatch.setattr(eole.ops, "_FLASH_ATTN_AVAILABLE", True)
    monkeypatch.setattr(eole.ops, "flash_attn_kvcache", taken)
    monkeypatch.setitem(
        multi_headed_attn.MultiHeadedAttention._compute_attention.__wrapped__.__globals__,
        "_sdpa",
        taken,
    )
    monkeypatch.setattr(logger, "propagate", True)
    running = SimpleNamespace(self_attn_backend="flash")
    with caplog.at_level("INFO", logger="eole"):
        layer = attention(kind, "evsoftmax", running)
    assert running.self_attn_backend == "pytorch"
    assert not hasattr(layer, "flash_attn_with_kvcache")
    assert (
        f"{kind} attention: evsoftmax; flash attention and torch's fused attention" in caplog.text
    )
    x = torch.randn(1, 3, 16, device="meta")
    layer.to("meta")(*(x, x, x) if kind == "context" else (x,))
    stock = attention(kind, None, SimpleNamespace(self_attn_backend="flash"))
    assert hasattr(stock, "flash_attn_with_kvcache")  # softmax models keep both
    with pytest.raises(AssertionError, match="softmax was used"):
        stock.to("meta")(*(x, x, x) if kind == "context" else (x,))


@pytest.mark.parametrize("normalizer", ["softmax", *SPARSE])
def test_train_predict_resume(normalizer, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings(corpus, normalizer, train_steps=50)
    eole("train -config c.yaml -log_file log")
    log = (tmp_path / "log").read_text()
    for kind in ("encoder", "decoder", "context"):
        said = log.count(f"{kind} attention: {normalizer}; flash attention")
        assert said == (normalizer != "softmax")
    saved = json.loads((tmp_path / "model" / "config.json").read_text())["model"]
    assert saved["attention_normalizer"] == normalizer
    assert ("needs_package" in saved["decoder"]) == (normalizer != "softmax")

    # Padded is alone; longer than the model would say, so that there is something to compare.
    predict = (
        f"predict -model_path model -src {corpus}/test.en -min_length 8 -max_length 12 -n_best 2"
    )
    for name, batch in (("together", 10), ("alone", 1)):
        eole(f"{predict} -beam_size 3 -output {name} -batch_size {batch} -with_score")
    together, alone = ((tmp_path / name).read_text().splitlines() for name in ("together", "alone"))
    assert len(together) == 20
    assert len(set(together)) > 5
    for one, other in zip(together, alone, strict=True):
        (words, score, _), (alone_words, alone_score, _) = one.split("\t"), other.split("\t")
        assert words == alone_words
        assert float(score) == pytest.approx(float(alone_score), abs=1e-4)

    settings(corpus, normalizer, train_steps=60, train_from="model")
    eole("train -config c.yaml -log_file log2")
    resumed = (tmp_path / "log2").read_text()
    assert (f"encoder attention: {normalizer}" in resumed) == (normalizer != "softmax")
    steps = torch.load(tmp_path / "model" / "step_60" / "optimizer.pt", weights_only=False)
    assert (tmp_path / "model" / "step_60").is_dir()
    assert steps


def greedy_without_cache(model, vocabs, line, length):
    """The likeliest words, every step computed from the whole prefix."""
    words = vocabs["tgt"].ids_to_tokens
    source = torch.tensor([vocabs["src"](line.split())])
    target = vocabs["tgt"]([vocabs["decoder_start_token"]])
    end = vocabs["specials"]["eos_token"]
    while len(target) <= length and words[target[-1]] != end:
        padded = torch.tensor([[*target, 0, 0]])  # what follows is hidden; one position is too few
        out, *_ = model(source, padded, torch.tensor([source.size(1)]))
        target.append(int(model.generator(out[:, len(target) - 1]).argmax()))
    return " ".join(words[index] for index in target[1:] if words[index] != end)


@pytest.fixture(scope="module")
def trained(toy, tmp_path_factory):
    """The folder of a model that has learned to say something else to every sentence."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings(toy, "evsoftmax", train_steps=200, **FAST)
        eole("train -config c.yaml")
    return folder


def check_cache(toy):
    """The model in this folder says the same with its cache and without."""
    from eole.models.model import get_model_class

    eole(f"predict -model_path model -src {toy}/test.en -output cached -beam_size 1 -max_length 9")
    cached = Path("cached").read_text().splitlines()
    assert len(set(cached)) > 3
    config = predict_config(model_path="model", src="none")
    model, vocabs, _ = get_model_class(config.model).for_inference(config)
    model.eval()
    for line, said in zip((toy / "test.en").read_text().splitlines(), cached, strict=True):
        with torch.no_grad():
            assert greedy_without_cache(model, vocabs, line, 9) == said


def test_cached_is_uncached(trained, toy, monkeypatch):
    monkeypatch.chdir(trained)
    check_cache(toy)


def test_distances_and_learned_alpha(toy, tmp_path, monkeypatch):
    """OpenNMT-py's two: distances beside sinusoids, and an alpha for every head."""
    from eole.models.model import BaseModel
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    started = []
    prepare = BaseModel._prepare_for_training

    def prepare_and_look(self, *arguments):
        prepare(self, *arguments)
        started.extend(p for name, p in self.named_parameters() if name.endswith("pre_alpha"))
        assert all((p == 0).all() for p in started)  # alpha 1.5, whatever eole initialises with

    monkeypatch.setattr(BaseModel, "_prepare_for_training", prepare_and_look)
    keys = {"attention_alpha": "learn", "max_relative_positions": 2}
    settings(toy, "entmax", keys, train_steps=200, **FAST)
    eole("train -config c.yaml -log_file log")
    assert len(started) == 3
    log = Path("log").read_text()
    assert "encoder attention: entmax(alpha=learn) with distances up to 2; flash" in log
    assert "context attention: entmax(alpha=learn); flash" in log
    saved = json.loads(Path("model/config.json").read_text())["model"]["decoder"]
    assert saved["max_relative_positions"] == 2
    assert saved["needs_package"] == "onmt_evsoftmax"
    weights = load_file("model/model.00.safetensors")
    learned = [tensor for name, tensor in weights.items() if name.endswith("normalizer.pre_alpha")]
    assert [tensor.shape for tensor in learned] == [(2, 1, 1)] * 3
    assert all((tensor != 0).all() for tensor in learned)
    distances = [n for n in weights if n.endswith("self_attn.relative_positions_embeddings.weight")]
    assert [weights[name].shape for name in distances] == [(5, 8)] * 2
    check_cache(toy)


def test_key_in_prediction(trained, toy, monkeypatch):
    """A key of eole predict wins over the model's, and the log says so."""
    monkeypatch.chdir(trained)
    predict = f"predict -model_path model -src {toy}/test.en -max_length 9 -with_score"
    eole(f"{predict} -output own")
    eole(f"{predict} -output same -attention_normalizer evsoftmax")
    eole(f"{predict} -output other -attention_normalizer softmax -log_file log")
    own, same, other = ((trained / name).read_text() for name in ("own", "same", "other"))
    assert own == same
    assert own != other
    assert "encoder attention evsoftmax → softmax" in (trained / "log").read_text()
    (trained / "p.yaml").write_text("attention_normalizer: softmax\n")
    eole(f"{predict} -output yaml -config p.yaml")
    assert (trained / "yaml").read_text() == other
    eole(f"{predict} -output posthoc -context_attention_normalizer posthoc")
    for keys, reason in (
        ({"attention_normalizer": "evsoftmx"}, "did you mean evsoftmax"),
        ({"attention_normaliser": "evsoftmax"}, "Extra inputs are not permitted"),
        ({"model": {"attention_normalizer": "softmax"}}, "beside model_path"),
        ({"attention_normalizer": "entmax", "attention_alpha": "learn"}, "learn is for training"),
        ({"stop_search_after": "beam"}, "Input should be 'n_best' or 'beam_size'"),
        ({"attention_normalizer": "softmax", "engine": "ct2"}, "CTranslate2"),
    ):
        with pytest.raises(ValueError, match=reason):
            predict_config(model_path="model", src="none", **keys)


def test_resuming_with_another_normalizer(trained, toy, tmp_path, monkeypatch):
    import shutil

    shutil.copytree(trained / "model", tmp_path / "model", symlinks=True)
    monkeypatch.chdir(tmp_path)
    settings(toy, "sparsemax", train_steps=202, train_from="model")
    eole("train -config c.yaml -log_file log")
    assert "decoder attention: sparsemax" in (tmp_path / "log").read_text()
    saved = json.loads((tmp_path / "model" / "config.json").read_text())["model"]
    assert saved["decoder"]["attention_normalizer"] == "sparsemax"


def test_the_programs(trained, toy, tmp_path):
    """The stock program, and the same without this package."""
    predict = f"predict -model_path {trained}/model -src {toy}/test.en -max_length 9 -output "
    said = program(BIN / "eole", *predict.split(), "out", cwd=tmp_path)
    assert "encoder attention: evsoftmax; flash attention" in said
    off = {"fails": True, "ONMT_EVSOFTMAX": "off"}
    said = program(BIN / "eole", *predict.split(), "none", cwd=tmp_path, **off)
    assert "needs_package" in said
    assert "onmt_evsoftmax" in said
    assert not (tmp_path / "none").exists()


def test_ctranslate2_refuses_a_sparse_model(trained, tmp_path):
    from ctranslate2.converters.eole_ct2 import EoleConverter

    with pytest.raises(ValueError, match="has sparse attention or distances"):
        EoleConverter(str(trained / "model")).convert(str(tmp_path / "converted"))
    assert not (tmp_path / "converted").exists()


def test_a_row_without_entries_is_zero():
    layer = attention("encoder", "evsoftmax")
    mask = torch.zeros(1, 1, 2, 2, dtype=torch.bool)
    x = torch.randn(1, 2, 16, requires_grad=True)
    out, weights = layer(x, attn_mask=mask, return_attn=True)
    out.sum().backward()
    assert weights.abs().sum() == 0
    assert math.isfinite(x.grad.abs().sum())


def test_nobody_else_imports_eole():
    """Neither toolkit is loaded unless asked for, and eole does not load the other one."""
    check = (
        "import sys, onmt_evsoftmax, onmt_evsoftmax.normalizers.registry, onmt_evsoftmax_hook\n"
        "onmt_evsoftmax_hook.start()\n"
        "assert 'eole' not in sys.modules and 'onmt_evsoftmax.eole' not in sys.modules\n"
        "import eole.config.run, eole.modules.multi_headed_attn\n"
        "assert 'onmt' not in sys.modules and 'onmt_evsoftmax.eole' in sys.modules\n"
    )
    program(sys.executable, "-c", check, cwd=".")
