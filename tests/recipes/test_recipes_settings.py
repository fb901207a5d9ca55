"""Every YAML of the recipes, read by the installed OpenNMT-py; unknown keys are errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onmt_evsoftmax.corpora import runs, settings
from onmt_evsoftmax.corpora.fetch import listed
from onmt_evsoftmax.corpora.recipe import Recipe
from onmt_evsoftmax.report import yaml_file
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
    kinds = ("train", "finetune", "translate", "recipe")
    assert found >= {f"{corpus}/{kind}.yaml" for corpus in CORPORA for kind in kinds}
    assert {name.split("/")[0] for name in found} - {"study", "vae"} == set(CORPORA)


def written(tmp_path: Path, corpus: str, **more) -> Path:
    """The settings of one run in a file."""
    found = Recipe.read(RECIPES / corpus, {}, more.pop("study", False))
    path = tmp_path / "settings.yaml"
    made = settings.of_run(found, "run", "sparsemax", 7, **more)
    path.write_text("\n".join(settings.as_yaml(made, corpus)), encoding="utf-8")
    return path


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("more", [{}, {"study": True}, {"pretrained": "m.pt"}], ids=str)
def test_onmt_train_reads_it(corpus, more, tmp_path):
    from onmt.utils.parse import ArgumentParser

    path = written(tmp_path, corpus, **more)
    parser = train_parser()
    assert unknown(parser, "-config", str(path)) == []
    options = parser.parse_args(["-config", str(path)])
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    assert options.encoder_type == options.decoder_type == "transformer"
    assert options.self_attn_type == "scaled-dot", "3.5's default would bypass the normalizers"
    assert (options.seed, options.save_model) == (7, "run/model")
    assert options.train_from == more.get("pretrained", "")


def test_the_files_of_a_training_follow_the_languages():
    recipe = Recipe.read(RECIPES / "wmt16", {"source": "cs", "target": "ja"})
    data = settings.of_run(recipe, "run", "softmax", 1)["data"]
    assert data["europarl"]["path_src"] == "data/europarl.cs"
    assert {corpus["path_tgt"].rpartition(".")[2] for corpus in data.values()} == {"ja"}
    assert recipe.path(recipe.reference) == "text/test.ja"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sauce: en", "unknown key 'sauce' (did you mean source?)"),
        ("study: {seed: 1}", "unknown key 'seed' (did you mean seeds?)"),
        ("source: no", "source must be a language code; quote it"),
        ("target: en", "source and target are both en"),
        ("subwords: bpee", "unknown kind of subwords 'bpee' (did you mean bpe?)"),
        ("target:", "target must be a language code"),
        ("study: 3", "study must be `key: value` pairs, not 3"),
        ("study: {settings: [1]}", "settings must be `key: value` pairs, not [1]"),
        ("seeds: [1, x]", "seeds must be a whole number, not 'x'"),
        ("normalizers: 3", "normalizers must be text, not 3"),
        ("size: many", "size must be a whole number, not 'many'"),
        ("average: true", "average must be a whole number, not True"),
        ("truecased: 1", "truecased must be true or false, not 1"),
        ("average: 2020-99-99", "recipe.yaml, line 6: the value of average is not YAML"),
    ],
)
def test_a_recipe_with_a_mistake(tmp_path, line, said):
    text = "source: en\ntarget: de\nsubwords: bpe\nsize: 9\nreference: text/test.de\n"
    key = line.partition(":")[0]
    lines = [other for other in text.splitlines() if other.partition(":")[0] != key]
    (tmp_path / "recipe.yaml").write_text("\n".join([*lines, line]))
    with pytest.raises(UserError, match=re.escape(said)):
        Recipe.read(tmp_path, {})


def test_a_name_in_braces_that_there_is_none_of(tmp_path):
    text = "source: en\ntarget: de\nsubwords: bpe\nsize: 9\nreference: '{split}.de'\n"
    (tmp_path / "recipe.yaml").write_text(text + "pretrained: '{folder}/model.pt'\n")
    recipe = Recipe.read(tmp_path, {})
    with pytest.raises(UserError, match=r"'{split}.de' can have {source}, {target} in braces"):
        recipe.path(recipe.reference)
    with pytest.raises(UserError, match=r"'{folder}/model.pt' can have {output}, {seed} in braces"):
        runs.of_recipe(recipe)


@pytest.mark.parametrize(
    "text",
    ["lr: 3", "data: 3", "data: {a: 3}", "data: {a: {path_src: 3}}", "data: {a: {path_src: ''}}"],
)
def test_corpora_with_a_mistake(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(
        "{source: en, target: de, subwords: bpe, size: 9, reference: r}"
    )
    (tmp_path / "train.yaml").write_text(text)
    with pytest.raises(UserError, match=r"train\.yaml: data must be `name: {path_src: FILE"):
        settings.of_run(Recipe.read(tmp_path, {}), "run", "softmax", 1)


@pytest.mark.parametrize("value", ["[1", "2020-99-99", "!unknown 3"])
def test_a_setting_that_is_no_yaml(value):
    with pytest.raises(UserError, match=r"dropout: the value .* is not YAML"):
        yaml_file.setting(f"dropout={value}")
    with pytest.raises(UserError, match=r"dropout: the value .* is not YAML"):
        runs.changes({"dropout": value})


def test_what_has_changed_since_a_training(tmp_path):
    recipe = Recipe.read(RECIPES / "demo", {"settings": {"dropout": 0.3}})
    wanted = settings.of_run(recipe, "run", "sparsemax", 7)
    path = written(tmp_path, "demo")
    assert settings.change_since(path, wanted) == "dropout was [0.0] and is now 0.3"
    path.write_text("\n".join(settings.as_yaml(wanted, "demo")), encoding="utf-8")
    assert settings.change_since(path, wanted) is None
    assert settings.change_since(tmp_path / "none.yaml", wanted) is None


def test_runs_of_before_there_was_one_file_of_settings(tmp_path):
    """They had the recipe's YAML without its comments, and a line of what was changed."""
    text = (RECIPES / "demo" / "train.yaml").read_text(encoding="utf-8")
    (tmp_path / "settings.yaml").write_text(re.sub(r" *#.*", "", text), encoding="utf-8")
    (tmp_path / "choices").write_text("sparsemax, train.yaml -train_steps 1000 -decay_steps 40\n")
    changes = {"train_steps": 1000, "decay_steps": 40}
    for more, said in (({}, None), ({"heads": 8}, "heads was 4 and is now 8")):
        recipe = Recipe.read(RECIPES / "demo", {"settings": changes | more})
        wanted = settings.of_run(recipe, "sparsemax-seed7", "sparsemax", 7)
        assert settings.change_since(tmp_path / "settings.yaml", wanted) == said


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
    sorted(
        path
        for path in [*RECIPES.glob("*/*.yaml"), *RECIPES.glob("study/*/*/config.yaml")]
        if path.parent.name != "vae"
    ),
    ids=lambda p: f"{p.parent.name}-{p.stem}",
)
def test_every_key_is_commented_and_written_once(path):
    yaml_file.read(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    keys = [line for line in lines if re.match(r" *[\w-]+:", line)]  # nested ones too
    assert keys
    assert [line for line in keys if "  # " not in line] == []


@pytest.mark.parametrize("corpus", CORPORA)
def test_fine_tuning_states_only_what_differs(corpus):
    base = yaml_file.read(RECIPES / corpus / "train.yaml")
    for key, value in yaml_file.read(RECIPES / corpus / "finetune.yaml").items():
        assert base.get(key) != value, f"{key} is the same in train.yaml"


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_recipe_is_complete(corpus):
    recipe = Recipe.read(RECIPES / corpus, {}, study=True)
    names = {path.name for path in recipe.folder.iterdir()}
    assert {"README.md", "prepare.sh", "run.sh"} <= names
    sources = listed(recipe.archives)
    for source in sources:
        assert source.url.startswith(("http://", "https://"))
    script = (recipe.folder / "prepare.sh").read_text(encoding="utf-8")
    assert bool(sources) == ("corpora fetch" in script)


def test_shell_files_stay_short():
    lengths = [len(path.read_text().splitlines()) for path in RECIPES.rglob("*.sh")]
    assert max(lengths) <= 60
    assert sum(lengths) < 400


def test_the_papers_settings():
    for corpus, rate in (("iwslt14", 0.5), ("wmt16", 2.0)):
        found = yaml_file.read(RECIPES / corpus / "train.yaml")
        assert found["learning_rate"] == rate
        assert (found["enc_layers"], found["dec_layers"], found["hidden_size"]) == (6, 6, 512)
        assert (found["heads"], found["transformer_ff"]) == (8, 2048)
        assert found["batch_size"] * found["accum_count"][0] == 3072
        assert (found["adam_beta2"], found["average_decay"]) == (0.998, 0.0005)
    weights = [corpus.get("weight") for corpus in found["data"].values()]
    assert weights == [23, 19, 3, None]
