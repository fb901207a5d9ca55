"""Every YAML of the recipes, read by the installed OpenNMT-py; unknown keys are errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onmt_evsoftmax.corpora import settings
from onmt_evsoftmax.report.console import UserError

pytest.importorskip("onmt", reason="the recipes' settings are OpenNMT-py's: pip install OpenNMT-py")

RECIPES = Path(__file__).parents[2] / "recipes"
CORPORA = ["demo", "iwslt14", "multi30k", "tatoeba-multi30k", "wmt16"]


def unknown(parser, *arguments: str) -> list[str]:
    return parser.parse_known_args(list(arguments))[1]


def train_parser():
    from onmt.bin.train import _get_parser

    return _get_parser()


def translate_parser():
    from onmt.bin.translate import _get_parser

    return _get_parser()


def test_no_yaml_is_left_out():
    found = {path.relative_to(RECIPES).as_posix() for path in RECIPES.glob("*/*.yaml")}
    kinds = ("train", "finetune", "translate")
    assert found >= {f"{corpus}/{kind}.yaml" for corpus in CORPORA for kind in kinds}
    assert {name.split("/")[0] for name in found} - {"study", "vae"} == set(CORPORA)


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("kind", ["train", "finetune"])
def test_onmt_train_reads_it(corpus, kind, tmp_path):
    from onmt.utils.parse import ArgumentParser

    path = RECIPES / corpus / "train.yaml"
    if kind == "finetune":
        lines = settings.merged([path, RECIPES / corpus / "finetune.yaml"])
        path = tmp_path / "finetune.yaml"
        path.write_text("\n".join(lines), encoding="utf-8")
    parser = train_parser()
    assert unknown(parser, "-config", str(path), "-save_model", "m") == []
    options = parser.parse_args(["-config", str(path), "-save_model", "m"])
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    assert options.encoder_type == options.decoder_type == "transformer"
    assert options.self_attn_type == "scaled-dot", "3.5's default would bypass the normalizers"


@pytest.mark.parametrize("corpus", CORPORA)
def test_onmt_translate_reads_it(corpus):
    path = RECIPES / corpus / "translate.yaml"
    arguments = ("-config", str(path), "-model", "m.pt", "-src", "s")
    assert unknown(translate_parser(), *arguments) == []
    assert translate_parser().parse_args(arguments).beam_size == 5


def test_a_misspelt_key_would_be_found(tmp_path):
    path = tmp_path / "train.yaml"
    text = (RECIPES / "demo" / "train.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("\nheads:", "\nhaeds:"), encoding="utf-8")
    try:
        found = " ".join(unknown(train_parser(), "-config", str(path), "-save_model", "m"))
    except UserError as error:  # with the plugin installed it is an error already
        found = str(error)
    assert "haeds" in found


@pytest.mark.parametrize(
    "path",
    sorted(path for path in RECIPES.glob("*/*.yaml") if path.parent.name != "vae"),
    ids=lambda p: f"{p.parent.name}-{p.stem}",
)
def test_every_key_is_commented_and_written_once(path):
    settings.read(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    keys = [line for line in lines if re.match(r" *[\w-]+:", line)]  # nested ones too
    assert keys
    assert [line for line in keys if "  # " not in line] == []


@pytest.mark.parametrize("corpus", CORPORA)
def test_fine_tuning_states_only_what_differs(corpus):
    base = settings.read(RECIPES / corpus / "train.yaml")
    for key, value in settings.read(RECIPES / corpus / "finetune.yaml").items():
        assert base.get(key) != value, f"{key} is the same in train.yaml"


def test_the_papers_settings():
    for corpus, rate in (("iwslt14", 0.5), ("wmt16", 2.0)):
        found = settings.read(RECIPES / corpus / "train.yaml")
        assert found["learning_rate"] == rate
        assert (found["enc_layers"], found["dec_layers"], found["hidden_size"]) == (6, 6, 512)
        assert (found["heads"], found["transformer_ff"]) == (8, 2048)
        assert found["batch_size"] * found["accum_count"][0] == 3072
        assert (found["adam_beta2"], found["average_decay"]) == (0.998, 0.0005)
    weights = [corpus.get("weight") for corpus in found["data"].values()]
    assert weights == [23, 19, 3, None]
