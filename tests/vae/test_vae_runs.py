"""Whole VAE experiments, from data to tables and figures, and bad input at the door."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing import event_accumulator
from vae_commands import EXPERIMENTS, SMALL, arguments, program
from vae_data import write_mnist, write_tiny_imagenet

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.vae import __main__ as command
from onmt_evsoftmax.vae import configuration, experiment, figures
from onmt_evsoftmax.vae import experiments as package
from onmt_evsoftmax.vae.experiments import cvae
from onmt_evsoftmax.vae.results import table_of

# --- experiments end to end -----------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_tabulates_and_draws(name, tmp_path, capsys):
    assert command.main(arguments(name, tmp_path)) == 0
    table = capsys.readouterr().out
    chosen = configuration.load(EXPERIMENTS[name].configuration, None, SMALL[name])
    titles = ["softmax", "sparsemax", "entmax-1.5", "post-hoc evidential", "ev-softmax"]
    assert all(title in table for title in titles)
    out = tmp_path / "out"
    for method in chosen.normalizers:
        folder = out / f"{method}-seed1"
        results = json.loads((folder / "results.json").read_text())
        assert results["experiment"] == name
        assert results["command"].startswith(f"onmt_evsoftmax vae {name} -o ")
        assert yaml.safe_load((folder / "config.yaml").read_text()) == dataclasses.asdict(chosen)
    pictures = sorted(path.name for path in out.glob("*.png"))
    expected = {"cvae": ["figure2.png", "figure3.png"], "ssvae": ["accuracy.png"]}
    assert pictures == expected.get(name, ["figure5.png"])

    # A second call runs nothing again; the table as LaTeX and JSON; a figure as SVG.
    before = (out / "evsoftmax-seed1" / "results.json").stat().st_mtime_ns
    assert command.main(arguments(name, tmp_path, "--normalizer", "evsoftmax")) == 0
    assert (out / "evsoftmax-seed1" / "results.json").stat().st_mtime_ns == before
    capsys.readouterr()
    assert command.main(["table", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert "posthoc" in rows
    assert command.main(["table", str(out), "-o", str(tmp_path / "t.tex")]) == 0
    assert r"\toprule" in (tmp_path / "t.tex").read_text()
    assert command.main(["figures", str(out), "-o", str(tmp_path / "f"), "--format", "svg"]) == 0
    assert len(list((tmp_path / "f").glob("*.svg"))) == len(pictures)


def test_vqvae_on_tiny_imagenet(tmp_path):
    write_tiny_imagenet(tmp_path, classes=3, train=6)
    settings = [s for s in SMALL["vqvae"] if "data" not in s and "rates" not in s]
    settings += ["data=tiny-imagenet", "image_size=16", "downsamplings=2", "mirror=true"]
    words = [word for setting in settings for word in ("--set", setting)]
    place = ["-o", str(tmp_path / "out"), "--data-dir", str(tmp_path), "--no-tensorboard"]
    job = ["--normalizer", "evsoftmax", "--seed", "4"]
    assert command.main(["vqvae", *place, *words, *job]) == 0
    results = json.loads((tmp_path / "out" / "evsoftmax-seed4" / "results.json").read_text())
    content = results["methods"]["evsoftmax"]
    assert content["classes"] == ["thing 0", "thing 1", "thing 2"]
    assert torch.tensor(content["samples"]).shape == (3, 5, 3, 16, 16)
    assert 1 <= content["metrics"]["support"] < 64


def figure_2(methods: list[str]):
    """Of uniform priors over classes whose images are black."""
    prior, support = [[0.1] * 10] * 2, [[True] * 10] * 2
    images = torch.full((10, 1, 8, 8), 255).tolist()
    content = {"prior": prior, "support": support, "images": images}
    return figures.digits_and_priors([{"seed": 1, "methods": dict.fromkeys(methods, content)}])


@pytest.mark.parametrize("methods", [["evsoftmax"], ["softmax", "posthoc"]])
def test_the_title_of_figure_2_is_clear_of_the_columns_titles(methods):
    figure = figure_2(methods)
    figure.canvas.draw()
    title = figure._suptitle.get_window_extent()
    assert title.y0 > max(axes.title.get_window_extent().y1 for axes in figure.axes)


def test_sampled_images_are_named_by_class_and_method():
    samples = torch.zeros(2, 5, 1, 4, 4, dtype=torch.int).tolist()
    content = {"classes": ["goldfish", "bee"], "samples": samples}
    methods = {"evsoftmax": content, "softmax": content}
    figure = figures.sampled_images([{"seed": 1, "methods": methods}])
    assert [axes.get_title() for axes in figure.axes] == ["goldfish", "bee", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes[::2]] == ["softmax", "ev-softmax"]


def test_a_run_is_deterministic_and_seeds_differ(tmp_path):
    def prior(folder: str, seed: int) -> list:
        path = tmp_path / folder
        job = ["--normalizer", "evsoftmax", "--seed", str(seed)]
        command.main(arguments("cvae", path, *job))
        results = json.loads((path / "out" / f"evsoftmax-seed{seed}" / "results.json").read_text())
        return results["methods"]["evsoftmax"]["prior"]

    assert prior("a", 1) == prior("b", 1)
    assert prior("a", 1) != prior("a", 2)


def test_a_configuration_of_one_job_gets_its_table_and_a_job_asked_for_does_not(tmp_path, capsys):
    one = arguments("cvae", tmp_path, "--set", "normalizers=evsoftmax", "--set", "seeds=[1]")
    command.main([*one, "--normalizer", "evsoftmax", "--seed", "1"])
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "out" / "figure2.png").exists()
    command.main(one)
    assert "ev-softmax" in capsys.readouterr().out
    assert (tmp_path / "out" / "figure2.png").exists()


def test_shared_models_can_be_trained_alone(tmp_path):
    command.main(arguments("vqvae", tmp_path, "--shared-only"))
    shared = tmp_path / "out" / "shared"
    stages = {path: path.stat().st_mtime_ns for path in shared.glob("*.pt")}
    assert {path.stem for path in stages} == {"autoencoder", "wideresnet"}
    command.main(arguments("vqvae", tmp_path, "--normalizer", "softmax"))
    assert {path: path.stat().st_mtime_ns for path in shared.glob("*.pt")} == stages


def test_tensorboard_gets_the_numbers(tmp_path):
    words = [w for w in arguments("cvae", tmp_path) if w != "--no-tensorboard"]
    command.main([*words, "--normalizer", "softmax", "--seed", "1"])
    folder = tmp_path / "out" / "softmax-seed1" / "tensorboard" / "cvae"
    events = event_accumulator.EventAccumulator(str(folder)).Reload()
    scalars = events.Scalars("cvae/posthoc w1")
    assert len(scalars) == 5
    assert scalars[0].step == 0


TOY = """
from dataclasses import dataclass
from typing import ClassVar

from matplotlib.figure import Figure

from onmt_evsoftmax.vae import experiment, latent

@dataclass
class Configuration(experiment.Configuration):
    sharpness: float = 2.0

class Toy(experiment.Experiment[Configuration]):
    help = "the support of the pixels of one image"
    configuration = Configuration
    metrics: ClassVar = {"support": ("support", 1)}
    figures: ClassVar = {"empty": lambda results: Figure()}

    def prepare(self, shared, c, images):
        pass

    def job(self, run, shared, c, images, method):
        scores = c.sharpness * images.train.unit()[run.seed].flatten()
        sizes = {name: latent.exact(name, scores)[1].sum() for name in latent.methods_of(method)}
        return {name: experiment.Outcome({"support": float(s)}) for name, s in sizes.items()}

EXPERIMENT = Toy()
"""


def test_a_new_experiment_is_one_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    experiment.experiments.cache_clear()
    write_mnist(tmp_path / "data")
    words = ["-o", str(tmp_path / "out"), "--data-dir", str(tmp_path / "data")]
    try:
        assert command.main(["toy", *words, "--set", "data=mnist", "--set", "sharpness=5"]) == 0
    finally:
        experiment.experiments.cache_clear()
    printed = capsys.readouterr().out
    assert "ev-softmax" in printed
    assert "post-hoc evidential" in printed
    assert (tmp_path / "out" / "empty.png").exists()


# --- tables and the door --------------------------------------------------------------------------


def test_tables_carry_their_signature_and_the_registrys_order():
    values = {"gumbel": 0, "evsoftmax": 1, "softmax": 2}
    common = {"experiment": "cvae", "data": "mnist", "epochs": 2, "commit": "abc"}
    results = [
        {**common, "seed": n, "methods": {m: {"metrics": {"w1": v + n}} for m, v in values.items()}}
        for n in (1, 2)
    ]
    table = table_of(results)
    assert [row[0] for row in table.rows] == ["softmax", "ev-softmax", "Gumbel"]
    assert "| ev-softmax | 2.500 ± 0.500 |" in table.markdown()
    assert "seeds:1,2|commit:abc" in table.text()


def test_a_table_of_another_format_is_refused(tmp_path):
    write_result(tmp_path / "a")
    with pytest.raises(UserError, match=r"-o x\.docx: the ending must be one of \.txt"):
        command.main(["table", str(tmp_path), "-o", "x.docx"])


def write_result(folder: Path, settings: dict | None = None, **changes) -> Path:
    """The results of a job with the configuration that they were made with."""
    chosen = cvae.Configuration(**(settings or {}))
    content = {"experiment": "cvae", "data": chosen.data, "epochs": chosen.epochs, "seed": 1}
    methods = {"softmax": {"metrics": {"w1": 1.0}}, "posthoc": {"metrics": {"w1": 2.0}}}
    folder.mkdir(parents=True)
    path = folder / "results.json"
    path.write_text(json.dumps({**content, "methods": methods, **changes}))
    configuration.save(chosen, folder / "config.yaml")
    return path


def test_a_folder_given_twice_counts_once(tmp_path, capsys):
    write_result(tmp_path / "out" / "softmax-seed1")
    write_result(tmp_path / "out" / "softmax-seed2", seed=2)
    folders = [tmp_path / "out", tmp_path / "out" / "softmax-seed1", tmp_path / "x" / ".." / "out"]
    (tmp_path / "x").mkdir()
    assert command.main(["table", *map(str, folders), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["softmax"]["w1"]["count"] == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "are both softmax with seed 1; give only one"),
        ({"settings": {"epochs": 3}}, "has epochs: 40 but .* has epochs: 3"),
        ({"settings": {"data": "mnist"}}, "has data: digits but .* has data: mnist"),
        ({"settings": {"kl_weight": 1.0}}, r"has kl_weight: 0\.0625 but .* has kl_weight: 1\.0"),
        ({"settings": {"evaluations": 7}}, "has evaluations: 30 but .* has evaluations: 7"),
        ({"seed": 2, "experiment": "ssvae"}, "has experiment: cvae but .* has experiment: ssvae"),
    ],
)
@pytest.mark.parametrize("verb", ["table", "figures"])
def test_results_that_do_not_belong_together_are_not_averaged(verb, changes, says, tmp_path):
    one = write_result(tmp_path / "a" / "softmax-seed1")
    other = write_result(tmp_path / "b" / "softmax-seed1", **changes)
    with pytest.raises(UserError, match=says) as error:
        command.main([verb, str(tmp_path / "a"), str(tmp_path / "b")])
    assert str(one) in str(error.value)
    assert str(other) in str(error.value)


def test_a_table_is_written_to_files_and_printed_as_json(tmp_path, capsys):
    write_result(tmp_path / "a")
    target = tmp_path / "table.md"
    assert command.main(["table", str(tmp_path), "-o", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["softmax"]["w1"]["mean"] == 1.0
    assert "| softmax | 1.000 |" in target.read_text()


def test_jobs_chosen_by_different_lists_belong_together(tmp_path, capsys):
    write_result(tmp_path / "a", {"seeds": [1]})
    write_result(tmp_path / "b", {"seeds": [2, 3], "normalizers": ["softmax"]}, seed=2)
    assert command.main(["table", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["softmax"]["w1"]["count"] == 2


def test_results_without_a_readable_configuration_are_averaged_with_no_others(tmp_path, capsys):
    one = write_result(tmp_path / "a")
    (tmp_path / "a" / "config.yaml").unlink()
    assert command.main(["table", str(tmp_path)]) == 0
    write_result(tmp_path / "b", seed=2)
    for write in (None, "- a", "epochs: ["):
        if write is not None:
            (tmp_path / "a" / "config.yaml").write_text(write)
        with pytest.raises(UserError, match=r"config\.yaml cannot be read, so nothing") as error:
            command.main(["table", str(tmp_path)])
        assert str(one) in str(error.value)


def test_results_of_a_configuration_with_a_key_more_are_not_averaged_with_others(tmp_path):
    write_result(tmp_path / "a")
    write_result(tmp_path / "b", seed=2)
    path = tmp_path / "a" / "config.yaml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("eps:")))
    with pytest.raises(UserError, match=r"a/results\.json has no eps but .* has eps: 1e-06"):
        command.main(["table", str(tmp_path)])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"experiment": "cvea"}, r"unknown experiment 'cvea' \(did you mean cvae"),
        ({"methods": []}, "is not the results of a job"),
        ({"methods": {"softmax": []}}, "is not the results of a job"),
        ({"methods": {"softmax": {"metrics": {"w1": "low"}}}}, "could not convert"),
        ({"seed": "one"}, "seed 'one' is not a whole number"),
    ],
)
@pytest.mark.parametrize("verb", ["table", "figures"])
def test_files_that_are_no_results_are_told(verb, changes, says, tmp_path):
    path = write_result(tmp_path / "softmax-seed1", **changes)
    with pytest.raises(UserError, match=says) as error:
        command.main([verb, str(tmp_path)])
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cvae", "--set", "data=mnist", "--data-dir", "nowhere"], "neither train-images"),
        (["table", "nowhere"], "no results.json below nowhere"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(words, says, tmp_path):
    place = [] if words[0] == "table" else ["-o", str(tmp_path / "out")]
    done = program(*words, *place)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cvae", "--normalizer", "evsofmax"], "did you mean evsoftmax"),
        (["ssvae", "--estimator", "gumble"], "did you mean gumbel"),
        (["cvae", "--set", "data=mnist"], "needs --data-dir"),
        (["cvae", "--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["cvae", "--device", "gpu7"], "--device gpu7: no such device"),
        (["ssvae", "--set", "normalizers=[sparsehourglass]"], "has no loss of its own"),
        (["ssvae", "--normalizer", "sparsehourglass"], "has no loss of its own"),
        (["vqvae", "--normalizer", "sparsehourglass"], "has no loss of its own"),
        (["cvae", "--normalizer", "posthoc"], "the jobs of softmax give it"),
        (["ssvae", "--set", "labelled=0.9999"], "of 1437 training images leaves none unlabelled"),
        (["ssvae", "--set", "validation_images=1437"], "leaves none to train on; lower it"),
        (["vqvae", "--set", "downsamplings=4"], "8 × 8 cannot be halved 4 times"),
        (["vqvae", "--set", "image_size=16"], "image_size scales tiny-imagenet's images"),
        (["vqvae", "--set", "classes=300"], "classes: 300 is more than the 10 of digits"),
        (["ssvae", "--shared-only", "--normalizer", "softmax"], "leave out method and seed"),
        (["ssvae", "--shared-only", "--estimator", "sfe"], "leave out method and seed"),
        (["cvae", "--shared-only", "--seed", "1"], "leave out method and seed"),
        (["vqvae", "--seed", str(2**70)], "too large for a seed"),
        (["ssvae", "--set", f"shared_seed={2**70}"], "too large for a seed"),
        (["cvae", "--threads", "-1"], "--threads: must be a whole number from 1 up, not -1"),
        (["cvae", "--data-dir", "."], "digits is embedded and reads no files; leave out --data-d"),
        (["ssvae", "--download"], "digits is embedded and reads no files; leave out --data-dir"),
        (["cvae", "--shared-only", "--json"], "--json prints the table, and one job or --shared"),
        (["vqvae", "--normalizer", "softmax", "--seed", "1", "--json"], "--json prints the table"),
        (["cvae", "--device", "meta"], "--device meta: the experiments run on cpu and cuda only"),
        (["cvae", "--device", "mps"], "--device mps: "),
        (["cvae", "--set", "epochs=2020-13-45"], "'2020-13-45' is not YAML"),
        (["cvae", "--set", "epochs=!foo 3"], "'!foo 3' is not YAML"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(words, says, tmp_path):
    with pytest.raises(UserError, match=says):
        command.main([*words, "-o", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["", "epochs: [", "- a", "epochs: 2020-13-45"])
def test_a_folder_whose_configuration_is_broken_is_not_continued(content, tmp_path):
    path = tmp_path / "out" / "softmax-seed1" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(UserError, match=r"config\.yaml cannot be read .* choose another output"):
        command.main(["cvae", "-o", str(tmp_path / "out")])
    assert path.read_text() == content


def test_a_refused_run_leaves_no_trace_that_has_the_next_one_refused(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="needs --data-dir"):
        command.main(["cvae", "-o", str(out), "--set", "data=mnist"])
    assert not out.exists()
    command.main(arguments("cvae", tmp_path, "--normalizer", "softmax", "--seed", "1"))
    before = sorted(out.rglob("*"))
    other = arguments("cvae", tmp_path, "--normalizer", "sparsemax", "--seed", "1")
    with pytest.raises(UserError, match=r"shared/config\.yaml was written with epochs: 2"):
        command.main([*other, "--set", "epochs=3"])
    assert sorted(out.rglob("*")) == before
    assert command.main(other) == 0


def test_damaged_data_get_one_sentence_and_exit_code_2(tmp_path):
    root = write_tiny_imagenet(tmp_path / "data")
    (root / "val" / "images" / "val_3.JPEG").write_bytes(b"\xff\xd8 not much of a JPEG")
    place = ["-o", str(tmp_path / "out"), "--data-dir", str(tmp_path / "data")]
    done = program("vqvae", *place, "--set", "data=tiny-imagenet")
    assert done.returncode == 2, done.stderr
    told = done.stderr.strip().splitlines()[-1]
    assert ": error: " in told
    assert "val/images/val_3.JPEG is not a readable image" in told
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("name", [*EXPERIMENTS, "table", "figures"])
def test_help_has_an_example(name, capsys):
    with pytest.raises(SystemExit):
        command.main([name, "--help"])
    text = capsys.readouterr().out
    assert "example" in text
    assert f"\n  onmt_evsoftmax vae {name}" in text  # on a line of its own


def test_results_without_what_a_figure_shows_are_told(tmp_path):
    metrics = {"softmax": {"metrics": {"w1": 1.5}}}
    (tmp_path / "results.json").write_text(
        json.dumps({"experiment": "cvae", "seed": 1, "methods": metrics})
    )
    with pytest.raises(UserError, match="the results lack what figure2 shows"):
        command.main(["figures", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
