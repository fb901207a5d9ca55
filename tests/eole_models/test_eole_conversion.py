"""OpenNMT-py's models in eole say what they said before, line by line."""

import importlib
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from ctranslate2.converters.eole_ct2 import EoleConverter
from eole.predict.beam_search import BeamSearchBase
from eole_runs import BIN, LEGACY, eole, program, settings

from onmt_evsoftmax.eole.convert import convert, main
from onmt_evsoftmax.opennmt.checkpoint import load
from onmt_evsoftmax.report.console import UserError

#: Options of onmt_train besides those of every model.
MODELS = {
    "evsoftmax": "-position_encoding -attention_normalizer evsoftmax -share_decoder_embeddings",
    "softmax": "-position_encoding -add_qkvbias -share_vocab -share_embeddings",
    "mixed": "-position_encoding -encoder_attention_normalizer sparsemax "
    "-pos_ffn_activation_fn gelu -context_attention_normalizer entmax -attention_alpha 1.3",
    # As in recipes/demo: sinusoids and distances. Sentences are longer than the limit.
    "evsoftmax-both": "-position_encoding -max_relative_positions 3 "
    "-attention_normalizer evsoftmax",
    "softmax-both": "-position_encoding -max_relative_positions 3 -add_qkvbias",
    "distances": "-max_relative_positions 3 -decoder_attention_normalizer evsoftmax",
    "learned": "-position_encoding -attention_normalizer entmax -attention_alpha learn",
}


def onmt(command, line):
    """A program of OpenNMT-py, of this environment's 3.0.4, in this process."""
    main = importlib.import_module(f"onmt.bin.{command}").main
    with mock.patch.object(sys, "argv", [f"onmt_{command}", *shlex.split(line)]):
        main()


def train(corpus, options, steps):
    """A small model that learns ten sentences of the demo's corpus; its checkpoint."""
    paths = f"{{path_src: {corpus}/test.en, path_tgt: {corpus}/test.de}}"
    Path("c.yaml").write_text(f"data: {{corpus: {paths}}}\nsave_data: run\n")
    vocabulary = f"-src_vocab {corpus}/v.src -tgt_vocab {corpus}/v.tgt"
    if "share_vocab" in options:
        Path("v").write_text("".join((corpus / f"v.{side}").read_text() for side in ("src", "tgt")))
        vocabulary = "-src_vocab v"
    onmt(
        "train",
        f"-config c.yaml -save_model model {vocabulary} {options} -seed 2 -num_workers 0 "
        "-encoder_type transformer -decoder_type transformer -enc_layers 2 -dec_layers 1 -heads 2 "
        "-hidden_size 32 -word_vec_size 32 -transformer_ff 48 -optim adam -learning_rate 0.005 "
        "-dropout 0 -attention_dropout 0 -bucket_size 200 -batch_size 8 -batch_type sents "
        f"-train_steps {steps} -save_checkpoint_steps {steps}",
    )
    return f"model_step_{steps}.pt"


def both(model, corpus, search):
    """What OpenNMT-py and eole say, with the same options."""
    onmt("translate", f"-model {model} -src {corpus}/test.en -output onmt {search}")
    eole(f"predict -model_path converted -src {corpus}/test.en -output eole {search}")
    return Path("onmt").read_text().splitlines(), Path("eole").read_text().splitlines()


@pytest.mark.parametrize("name", MODELS)
def test_trained_by_opennmt(name, corpus, tmp_path, monkeypatch):
    """Learned by heart, so that there is something to say."""
    monkeypatch.chdir(tmp_path)
    model = train(corpus, MODELS[name], 150)
    convert(model, "converted")
    for search in ("-beam_size 1 -max_length 12", "-beam_size 3 -max_length 12"):
        before, after = both(model, corpus, search)
        assert after == before
        assert len(set(after)) > 5


@pytest.mark.parametrize("name", ["evsoftmax-both", "softmax-both"])
def test_half_learned(name, corpus, tmp_path, monkeypatch):
    """So that beams end at different times and what ends last may be best."""
    monkeypatch.chdir(tmp_path)
    model = train(corpus, MODELS[name], 100)
    convert(model, "converted")
    for search in (
        "-beam_size 5 -max_length 30",
        "-beam_size 5 -n_best 3 -max_length 30",
        "-beam_size 5 -length_penalty none -max_length 30",
    ):
        before, after = both(model, corpus, search)
        assert after == before
        assert len(set(after)) > 3
    ruled = []
    update = BeamSearchBase.update_finished

    def update_and_look(self):
        ruled.append(hasattr(self, "best_ended"))
        update(self)

    monkeypatch.setattr(BeamSearchBase, "update_finished", update_and_look)
    both(model, corpus, "-beam_size 5 -max_length 30")
    assert all(ruled)
    assert ruled
    ruled.clear()
    eole(f"predict -model_path converted -src {corpus}/test.en -stop_search_after n_best")
    assert not any(ruled)
    assert ruled
    # Distances beside sinusoids are no more CTranslate2's than sparse attention is.
    with pytest.raises(ValueError, match="distances beside its positions"):
        EoleConverter("converted").convert("none")


def test_softmax_without_this_package(tmp_path):
    """Where the search is left to eole, a plain model is one that every eole can load."""
    checkpoint = load(LEGACY / "evsoftmax_step_30.pt")
    checkpoint["opt"].attention_normalizer = "softmax"
    torch.save(checkpoint, tmp_path / "plain.pt")
    for search in ("eole", "opennmt"):
        main([str(tmp_path / "plain.pt"), "-o", str(tmp_path / search), "--search", search])
    predict = f"predict -src {LEGACY}/t.en -max_length 9 -output out -model_path ".split()
    off = {"cwd": tmp_path, "ONMT_EVSOFTMAX": "off"}
    program(BIN / "eole", *predict, "eole", **off)
    assert len((tmp_path / "out").read_text().splitlines()) == 20
    assert "stop_search_after" in program(BIN / "eole", *predict, "opennmt", fails=True, **off)


@pytest.mark.parametrize("name", ["onmt35_step_400", "onmt35_distances_step_200"])
def test_trained_by_opennmt_35(name, tmp_path, monkeypatch):
    """tests/legacy has models of 3.5.1, which is not in this environment, and what they said."""
    monkeypatch.chdir(tmp_path)
    convert(LEGACY / f"{name}.pt", "converted")
    assert "stop_search_after" not in Path("converted/config.json").read_text()
    eole(
        f"predict -model_path converted -src {LEGACY}/t.en -output eole -beam_size 3 -max_length 30"
    )
    assert (tmp_path / "eole").read_text() == (LEGACY / f"{name}.translations").read_text()


def test_resume_in_eole(toy, tmp_path, monkeypatch):
    """What was converted can be trained on."""
    monkeypatch.chdir(tmp_path)
    convert(LEGACY / "evsoftmax_step_30.pt", "converted")
    settings(toy, "evsoftmax", train_steps=5, train_from="converted", reset_optim="all")
    eole("train -config c.yaml -log_file log")
    assert "encoder attention: evsoftmax" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("entmax", "its generator is sparse"), ("rnn", "it is not a transformer for translation")],
)
def test_what_cannot_be_converted(name, reason, tmp_path):
    with pytest.raises(UserError, match=f"cannot be converted to eole: {reason}"):
        convert(LEGACY / f"{name}_step_30.pt", tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("max_relative_positions", -1, "its positions are rotary"),
        ("max_relative_positions", -2, "its positions are ALiBi's"),
        ("relative_positions_buckets", 8, "its distances are in buckets"),
        ("copy_attn", True, "it copies from the source"),
        ("num_kv", 1, "its heads share keys"),
        ("layer_norm", "rms", "its layer norm is not standard"),
    ],
)
def test_options_that_differ(option, value, reason, tmp_path):
    checkpoint = load(LEGACY / "evsoftmax_step_30.pt")
    setattr(checkpoint["opt"], option, value)
    torch.save(checkpoint, tmp_path / "other.pt")
    with pytest.raises(UserError, match=reason):
        convert(tmp_path / "other.pt", tmp_path / "converted")


def test_the_command(tmp_path):
    """It works where OpenNMT-py is not installed, and overwrites nothing."""
    model = str(LEGACY / "evsoftmax_step_30.pt")
    command = (
        "import sys; sys.modules['onmt'] = None; "
        "from onmt_evsoftmax.__main__ import main; sys.exit(main())"
    )
    line = ["to-eole", model, "-o", "new"]
    program(sys.executable, "-c", command, *line, cwd=tmp_path)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "config.json",
        "vocab.json",
        "model.00.safetensors",
    }
    with pytest.raises(UserError, match="is not empty"):
        main([model, "-o", str(tmp_path / "new")])
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        main([str(tmp_path / "none.pt"), "-o", str(tmp_path / "x")])
    assert not (tmp_path / "x").exists()
