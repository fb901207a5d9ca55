"""The stock eole with normalizers of this package: options, attention, training, conversion."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from onmt_evsoftmax.eole.convert import convert
from onmt_evsoftmax.normalizers.registry import get_record
from onmt_evsoftmax.report.console import UserError

ROOT = Path(__file__).parents[2]
LEGACY = ROOT / "tests" / "legacy"
BIN = Path(sys.executable).parent
SIZE = {"layers": 1, "heads": 2, "hidden_size": 16, "transformer_ff": 16}


def eole(*arguments, cwd, fails=False, **environment):
    done = subprocess.run(
        [BIN / "eole", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def model_config(**keys):
    from eole.config.models import TransformerModelConfig

    return TransformerModelConfig(**SIZE, **keys)


def test_keys():
    config = model_config(attention_normalizer="sparsemax")
    assert config.encoder.attention_normalizer == config.decoder.attention_normalizer == "sparsemax"
    with pytest.raises(ValueError, match="did you mean evsoftmax"):
        model_config(attention_normalizer="evsoftmx")
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        model_config(attention_normaliser="evsoftmax")


def attention(kind, name, **keys):
    from eole.modules.multi_headed_attn import ContextMHA, SelfMHA

    config = model_config(**{f"{kind}_attention_normalizer": name}, **keys)
    part = config.encoder if kind == "encoder" else config.decoder
    torch.manual_seed(3)
    if kind == "context":
        made = ContextMHA(part)
    else:
        made = SelfMHA(part, is_decoder=kind == "decoder")
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made.eval()


@pytest.mark.parametrize("name", ["evsoftmax", "sparsemax", "entmax15"])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "context"])
def test_weights_are_those_of_the_definition(kind, name):
    layer = attention(kind, name)
    assert layer.normalizer == name
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
    assert layer.normalizer == "softmax"


def test_cached_steps_are_the_whole():
    """Empty slots of a cache take no part."""
    layer = attention("decoder", "evsoftmax")
    x = torch.randn(1, 4, 16)
    causal = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    whole, _ = layer(x, attn_mask=causal)
    layer.kcache, layer.vcache = torch.zeros(1, 9, 2, 8), torch.zeros(1, 9, 2, 8)
    for step in range(4):
        mask = (torch.arange(9) <= step).view(1, 1, 1, 9)
        at = torch.tensor([step])
        out, _ = layer(x[:, step : step + 1], mask, cache_seqlens=at, cache_slice=at)
        torch.testing.assert_close(out, whole[:, step : step + 1], atol=1e-5, rtol=1e-4)


def test_flash_is_shut_and_said(caplog):
    from types import SimpleNamespace

    from eole.modules.multi_headed_attn import SelfMHA

    running = SimpleNamespace(self_attn_backend="flash")
    config = model_config(attention_normalizer="evsoftmax")
    with caplog.at_level("WARNING"):
        SelfMHA(config.decoder, running)
    assert running.self_attn_backend == "pytorch"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    program = ROOT / "data" / "make_corpus.py"
    sizes = ["--train", "200", "--valid", "10", "--test", "10", "--test-hard", "2"]
    subprocess.run([sys.executable, program, "-o", folder, *sizes], check=True, capture_output=True)
    return folder


def settings(corpus, folder, normalizer, **training):
    paths = {"path_src": str(corpus / "train.en"), "path_tgt": str(corpus / "train.de")}
    config = {
        "data": {"corpus": paths},
        "src_vocab": "v.src",
        "tgt_vocab": "v.tgt",
        "save_data": "run",
        "n_sample": 0,
        "seed": 1,
        "model": {
            "architecture": "transformer",
            **SIZE,
            "attention_normalizer": normalizer,
            "embeddings": {
                "word_vec_size": 16,
                "position_encoding_type": "SinusoidalInterleaved",
            },
        },
        "training": {
            "model_path": "model",
            "batch_size": 8,
            "batch_type": "sents",
            "num_workers": 0,
            "bucket_size": 200,
            "save_checkpoint_steps": 25,
            **training,
        },
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("normalizer", ["evsoftmax", "sparsemax", "entmax15"])
def test_train_predict_resume(normalizer, corpus, tmp_path):
    settings(corpus, tmp_path, normalizer, train_steps=50)
    eole("build_vocab", "-config", "c.yaml", "-n_sample", "-1", cwd=tmp_path)
    eole("train", "-config", "c.yaml", cwd=tmp_path)
    saved = json.loads((tmp_path / "model" / "config.json").read_text())["model"]
    assert saved["attention_normalizer"] == normalizer
    assert saved["decoder"]["needs_package"] == "onmt_evsoftmax"
    predict = ("predict", "-model_path", "model", "-src", corpus / "test.en")
    for name, batch in (("together", 8), ("alone", 1)):
        eole(*predict, "-output", name, "-batch_size", batch, "-max_length", 20, cwd=tmp_path)
    assert (tmp_path / "together").read_text() == (tmp_path / "alone").read_text()
    settings(corpus, tmp_path, normalizer, train_steps=60, train_from="model")
    eole("train", "-config", "c.yaml", cwd=tmp_path)
    assert (tmp_path / "model" / "step_60").is_dir()
    if normalizer == "evsoftmax":
        said = eole(*predict, "-output", "x", cwd=tmp_path, fails=True, ONMT_EVSOFTMAX="off")
        assert "needs_package" in said
        assert "onmt_evsoftmax" in said


@pytest.mark.parametrize("name", ["evsoftmax", "mixed"])
def test_conversion(name, tmp_path):
    """tests/legacy has what onmt_translate said, made by OpenNMT-py 3.0.4."""
    convert(LEGACY / f"{name}_step_30.pt", tmp_path / "model")
    options = ("-beam_size", 3, "-max_length", 30)
    eole(
        "predict",
        "-model_path",
        "model",
        "-src",
        LEGACY / "t.en",
        "-output",
        "out",
        *options,
        cwd=tmp_path,
    )
    wanted = subprocess.run(
        [
            sys.executable, "-m", "onmt.bin.translate", "-model", LEGACY / f"{name}_step_30.pt",
            "-src", LEGACY / "t.en", "-output", tmp_path / "onmt", *map(str, options),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert wanted.returncode == 0, wanted.stderr
    assert (tmp_path / "out").read_text() == (tmp_path / "onmt").read_text()


def test_what_cannot_be_converted(tmp_path):
    for name, reason in (("entmax", "its generator is sparse"), ("rnn", "not a transformer")):
        with pytest.raises(UserError, match=reason):
            convert(LEGACY / f"{name}_step_30.pt", tmp_path / name)
        assert not (tmp_path / name).exists()
