"""Configurations of the VAE experiments: recipes, defaults, what is refused."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
from vae_commands import EXPERIMENTS, RECIPES, ROOT

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.vae import __main__ as command
from onmt_evsoftmax.vae import configuration
from onmt_evsoftmax.vae.experiments import cvae, ssvae, vqvae


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_recipes_are_valid(path):
    kind = EXPERIMENTS[path.stem.split("-")[0]].configuration
    configuration.load(kind, path)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_default_recipe_states_and_explains_every_default(experiment):
    path = ROOT / "recipes" / "vae" / f"{experiment}.yaml"
    defaults = EXPERIMENTS[experiment].configuration()
    assert configuration.load(type(defaults), path) == defaults
    text = path.read_text(encoding="utf-8")
    keys = [line for line in text.splitlines() if line[:1].isalpha()]
    assert {line.split(":")[0] for line in keys} == set(dataclasses.asdict(defaults))
    assert [line for line in keys if "#" not in line] == []


def test_the_readme_runs_the_cvae_of_the_published_code():
    readme = (ROOT / "recipes" / "vae" / "README.md").read_text(encoding="utf-8")
    lines = readme.replace("\\\n", "").splitlines()
    [line] = [line for line in lines if line.startswith("onmt_") and "double_eps" in line]
    words = command._parser().parse_args(shlex.split(line)[2:])
    chosen = configuration.load(cvae.Configuration, ROOT / words.config, words.set)
    # The published loss is a sum over the batch of 64 and 0.01 times the mean of the KL over it.
    assert (chosen.data, chosen.batch_size) == ("mnist", 64)
    assert chosen.kl_weight * chosen.batch_size == pytest.approx(0.01)
    assert words.output != command._parser().parse_args(["cvae"]).output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "epochs: 3\nlearning_rat: 1",
            r"line 2: unknown key 'learning_rat' \(did you mean learn",
        ),
        ("epochs: 3\nepochs: 4", "line 2: the key 'epochs' is already in line 1"),
        ("epochs: many", "line 1: epochs must be a whole number, not 'many'"),
        ("epochs: 0", "epochs must be positive, not 0"),
        ("seeds: []", "seeds must list at least one"),
        ("data: tiny-imagenet", "unknown data set 'tiny-imagenet'; known: digits, mnist"),
        ("normalizers: [softmax, evsofmax]", r"'evsofmax' \(did you mean evsoftmax"),
        ("data: mnist\nepochs: !foo 3", "line 2: the value of epochs is not YAML: .*!foo"),
        (f"seeds: [1, {2**70}]", "seeds: 1180591620717411303424 is too large for a seed"),
    ],
)
def test_bad_configurations_are_told(tmp_path, text, says):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as error:
        configuration.load(cvae.Configuration, path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("learning_rates=[1e-3, 0]", "learning_rates must be positive, not 0.0"),
        ("wideresnet_depth=12", r"6 n \+ 4 and at least 10, not 12"),
        ("data=cifar", "unknown data set 'cifar'"),
    ],
)
def test_bad_numbers_are_told(setting, says):
    with pytest.raises(UserError, match=says):
        configuration.load(vqvae.Configuration, None, [setting])


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("learning_rate_of=[1]", "learning_rate_of must be `key: value` pairs, not"),
        ("learning_rate_of={sfe: fast}", "learning_rate_of, sfe must be a number, not 'fast'"),
        ("learning_rate_of={sfe: 0}", "learning_rate_of must be positive, not 0.0"),
        ("learning_rate_of={sparsmax: 1}", r"unknown normalizer 'sparsmax' \(did you mean spars"),
    ],
)
def test_bad_mappings_are_told(setting, says):
    with pytest.raises(UserError, match=says):
        configuration.load(ssvae.Configuration, None, [setting])


def test_the_semi_supervised_recipes_are_the_public_code_and_the_papers_text():
    recipes = ROOT / "recipes" / "vae"
    code = configuration.load(ssvae.Configuration, recipes / "ssvae-mnist.yaml")
    text = configuration.load(ssvae.Configuration, recipes / "ssvae-mnist-paper.yaml")
    assert (code.hidden_layers, text.hidden_layers) == (2, 1)
    assert (code.validation_images, text.validation_images) == (10_000, 0)
    rates = [code.learning_rate_of.get(name, code.learning_rate) for name in ("nvil", "sparsemax")]
    assert rates == [1e-3, 5e-4]
    assert (text.learning_rate, text.learning_rate_of, text.weight_decay) == (5e-4, {}, 0.0)


def test_overrides_and_yaml_numbers(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("learning_rate: 1e-3\nseeds: 4\n")
    loaded = configuration.load(cvae.Configuration, path, ["eps=1", "seeds=[1, 2]"])
    assert (loaded.learning_rate, loaded.eps, loaded.seeds) == (1e-3, 1.0, [1, 2])
    for bad in ("epochs", "epoch=3", "epochs=x"):
        with pytest.raises(UserError, match="--set"):
            configuration.load(cvae.Configuration, None, [bad])
