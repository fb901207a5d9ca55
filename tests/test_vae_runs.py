"""Whole experiments: configurations, jobs, resuming, tables, figures, and bad input at the door."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing import event_accumulator
from vae_data import write_mnist, write_tiny_imagenet

from onmt_evsoftmax.console import UserError
from onmt_evsoftmax.vae import __main__ as command
from onmt_evsoftmax.vae import configuration, cvae, figures, ssvae, training, vqvae
from onmt_evsoftmax.vae.table import Cell, Table

ROOT = Path(__file__).parents[1]
MODULES = {"cvae": cvae, "ssvae": ssvae, "vqvae": vqvae}
RECIPES = sorted((ROOT / "recipes" / "vae").glob("*.yaml"))

#: Every experiment in a few seconds.
SMALL = {
    "cvae": ["data=mnist", "epochs=2", "classifier_epochs=1", "evaluations=4", "seeds=[1,2]"],
    "ssvae": ["data=mnist", "epochs=1", "pretraining_epochs=1", "labelled=0.3", "seeds=[1]"],
    "vqvae": ["data=mnist", "epochs=1", "autoencoder_epochs=1", "wideresnet_epochs=1", "hidden=8"],
}
SMALL["vqvae"] += [
    "prior_hidden=8",
    "layers=2",
    "samples_per_class=5",
    "learning_rates=[1e-3,1e-2]",
]


def arguments(experiment: str, folder: Path, *extra: str) -> list[str]:
    data = folder / "data"
    if not data.exists():
        write_mnist(data)
    settings = [word for setting in SMALL[experiment] for word in ("--set", setting)]
    place = ["-o", str(folder / "out"), "--data-dir", str(data), "--no-tensorboard"]
    return [experiment, *place, *settings, *extra]


def program(*words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "onmt_evsoftmax.vae", *words],
        capture_output=True, text=True, check=False, cwd=ROOT, **options,
    )  # fmt: skip


# --- configurations -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_recipes_are_valid(path):
    kind = MODULES[path.stem.split("-")[0]].Configuration
    configuration.load(kind, path)


@pytest.mark.parametrize("experiment", MODULES)
def test_the_default_recipe_states_and_explains_every_default(experiment):
    path = ROOT / "recipes" / "vae" / f"{experiment}.yaml"
    defaults = MODULES[experiment].Configuration()
    assert configuration.load(type(defaults), path) == defaults
    text = path.read_text(encoding="utf-8")
    keys = [line for line in text.splitlines() if line[:1].isalpha()]
    assert {line.split(":")[0] for line in keys} == set(dataclasses.asdict(defaults))
    assert [line for line in keys if "#" not in line and "seeds" not in line] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "epochs: 3\nlearning_rat: 1",
            r"line 2: unknown key 'learning_rat' \(did you mean learn",
        ),
        ("epochs: 3\nepochs: 4", "line 2: epochs is given twice"),
        ("epochs: many", "line 1: epochs must be a whole number, not 'many'"),
        ("epochs: 0", "epochs must be positive, not 0"),
        ("seeds: []", "seeds must list at least one"),
        ("data: tiny-imagenet", "unknown data set 'tiny-imagenet'; known: digits, mnist"),
        ("normalizers: [softmax, evsofmax]", r"'evsofmax' \(did you mean evsoftmax"),
        ("- a\n- b", "must be a list of `key: value`"),
        ("a: [", "is not YAML"),
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


def test_overrides_and_yaml_numbers(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("learning_rate: 1e-3\nseeds: 4\n")
    loaded = configuration.load(cvae.Configuration, path, ["eps=1", "seeds=[1, 2]"])
    assert (loaded.learning_rate, loaded.eps, loaded.seeds) == (1e-3, 1.0, [1, 2])
    for bad in ("epochs", "epoch=3", "epochs=x"):
        with pytest.raises(UserError, match="--set"):
            configuration.load(cvae.Configuration, None, [bad])


# --- experiments end to end -----------------------------------------------------------------------


@pytest.mark.parametrize("experiment", MODULES)
def test_an_experiment_runs_tabulates_and_draws(experiment, tmp_path, capsys):
    assert command.main(arguments(experiment, tmp_path)) == 0
    table = capsys.readouterr().out
    chosen = configuration.load(MODULES[experiment].Configuration, None, SMALL[experiment])
    titles = ["softmax", "sparsemax", "entmax-1.5", "post-hoc evidential", "ev-softmax"]
    assert all(title in table for title in titles)
    out = tmp_path / "out"
    for name in chosen.normalizers:
        folder = out / f"{name}-seed1"
        results = json.loads((folder / "results.json").read_text())
        assert results["experiment"] == experiment
        assert yaml.safe_load((folder / "config.yaml").read_text()) == dataclasses.asdict(chosen)
    pictures = sorted(path.name for path in out.glob("*.png"))
    expected = {"cvae": ["figure2.png", "figure3.png"], "ssvae": ["accuracy.png"]}
    assert pictures == expected.get(experiment, ["figure5.png"])

    # A second call runs nothing again; the table as LaTeX and JSON; a figure as SVG.
    before = (out / "evsoftmax-seed1" / "results.json").stat().st_mtime_ns
    assert command.main(arguments(experiment, tmp_path, "--normalizer", "evsoftmax")) == 0
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


# --- resuming -------------------------------------------------------------------------------------


def state(path: Path) -> dict:
    return torch.load(path, weights_only=True)


#: (experiment, option, method, stage that is killed in its second epoch)
KILLED = [
    ("cvae", "--normalizer", "evsoftmax", "cvae"),
    ("ssvae", "--normalizer", "evsoftmax", "ssvae"),
    ("ssvae", "--estimator", "nvil", "ssvae"),
    ("vqvae", "--normalizer", "sparsemax", "prior-lr0.001"),
]


@pytest.mark.parametrize(("experiment", "option", "method", "stage"), KILLED)
def test_resuming_after_kill_9_ends_where_an_uninterrupted_run_ends(
    experiment, option, method, stage, tmp_path
):
    words = arguments(experiment, tmp_path, option, method, "--seed", "3", "--set", "epochs=3")
    words.remove("--no-tensorboard")
    words += ["--set", "evaluations=1000"] if experiment == "cvae" else []  # after every step
    folder = tmp_path / "out" / f"{method}-seed3"
    checkpoint = folder / f"{stage}.pt"
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW, str(checkpoint), *words],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.8)  # into the second epoch
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert state(checkpoint)["epoch"] == 1, "the run was not killed in its second epoch"
    assert not (folder / "results.json").exists()
    assert command.main(words) == 0

    whole = tmp_path / "whole"
    again = [str(whole) if word == str(tmp_path / "out") else word for word in words]
    assert command.main(again) == 0
    other = whole / folder.name
    killed, unbroken = (state(place / checkpoint.name) for place in (folder, other))
    assert killed["history"] == unbroken["history"]
    for name, tensor in unbroken["module"].items():
        assert torch.equal(tensor, killed["module"][name]), name
    results = [json.loads((p / "results.json").read_text())["methods"] for p in (folder, other)]
    for content in (content for methods in results for content in methods.values()):
        for key in training.SECONDS:
            del content["metrics"][key]
    assert results[0] == results[1]

    # What the killed run had written after its checkpoint is not counted twice.
    events = event_accumulator.EventAccumulator(str(folder / "tensorboard" / stage)).Reload()
    tag = next(tag for tag in events.Tags()["scalars"] if tag.endswith("loss"))
    steps = [entry["step"] for entry in killed["history"] if entry["step"]]
    assert [scalar.step for scalar in events.Scalars(tag)][-len(steps) :] == steps


#: The command, slow as soon as its first argument exists, so that it can be killed in an epoch.
_SLOW = """
import sys, time
from pathlib import Path
from onmt_evsoftmax.vae import distributed, __main__
share, checkpoint = distributed.share, Path(sys.argv.pop(1))
def slow_share(batch):
    time.sleep(0.3 if checkpoint.exists() else 0)
    return share(batch)
distributed.share = slow_share
__main__.main(sys.argv[1:])
"""


def test_a_broken_checkpoint_and_another_configuration_are_told(tmp_path):
    words = arguments("cvae", tmp_path, "--normalizer", "softmax", "--seed", "1")
    command.main(words)
    with pytest.raises(UserError, match=r"written with epochs: 2, now it is 3; choose another"):
        command.main([*words, "--set", "epochs=3"])
    (tmp_path / "out" / "softmax-seed1" / "results.json").unlink()
    (tmp_path / "out" / "softmax-seed1" / "cvae.pt").write_bytes(b"half a checkpoint")
    with pytest.raises(UserError, match=r"cvae\.pt is not a checkpoint of this model"):
        command.main(words)


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    run = training.Run(tmp_path, 0, torch.device("cpu"), tensorboard=False)
    module = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UserError, match="not a number in epoch 1; lower learning_rate"):
        training.train(
            run, "x", module, optimizer, training.Schedule(4, 2, 2),
            lambda batch: (module(torch.full((1, 1), torch.nan)).sum(), {}), dict,
        )  # fmt: skip


# --- several processes ----------------------------------------------------------------------------


def test_two_processes_under_torchrun_train_the_model_that_one_trains(tmp_path):
    words = arguments("vqvae", tmp_path, "--shared-only", "--set", "autoencoder_epochs=1")
    assert program(*words).returncode == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    two = [str(tmp_path / "two") if word == str(tmp_path / "out") else word for word in words]
    done = subprocess.run(
        [*launcher, f"--master_port={port}", "-m", "onmt_evsoftmax.vae", *two],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    one, both = (state(tmp_path / n / "shared" / "autoencoder.pt") for n in ("out", "two"))
    assert one["epoch"] == both["epoch"] == 1
    # Batch statistics are each process's own, so the weights agree only roughly.
    error, start = both["history"][-1]["test_mse"], one["history"][0]["test_mse"]
    assert error < start
    assert error == pytest.approx(one["history"][-1]["test_mse"], rel=0.3)


# --- tables and the door --------------------------------------------------------------------------


def test_cells_are_mean_and_standard_error():
    cell = Cell.of([1.0, 2.0, 3.0])
    assert (cell.mean, cell.error) == (2.0, pytest.approx(1 / 3**0.5))
    assert cell.show(2) == "2.00 ± 0.58"
    assert Cell.of([4.0]).show(1) == "4.0"


def test_tables_carry_their_signature_and_the_papers_order():
    values = {"evsoftmax": 1, "softmax": 2}
    common = {"experiment": "cvae", "data": "mnist", "epochs": 2, "commit": "abc"}
    results = [
        {**common, "seed": n, "methods": {m: {"metrics": {"w1": v + n}} for m, v in values.items()}}
        for n in (1, 2)
    ]
    table = Table.of(results, {"w1": ("W1", 2), "absent": ("none", 1)})
    assert list(table.rows) == ["softmax", "evsoftmax"]
    assert "| ev-softmax | 2.50 ± 0.50 |" in table.markdown()
    assert "seeds:1,2|commit:abc" in table.text()
    with pytest.raises(UserError, match=r"write \.md"):
        table.write("x.docx")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cvae", "--normalizer", "evsofmax"], "did you mean evsoftmax"),
        (["ssvae", "--estimator", "gumble"], "did you mean gumbel"),
        (["cvae", "--set", "data=mnist"], "needs --data-dir"),
        (["cvae", "--set", "data=mnist", "--data-dir", "nowhere"], "neither train-images"),
        (["cvae", "--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["table", "nowhere"], "no results.json below nowhere"),
        (["cvae", "--device", "gpu7"], "--device gpu7: no such device"),
        (["ssvae", "--set", "normalizers=[sparsehourglass]"], "has no loss of its own"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(words, says, tmp_path):
    place = [] if words[0] == "table" else ["-o", str(tmp_path / "out")]
    done = program(*words, *place)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.json"))


def _truncate(folder: Path) -> tuple[str, str]:
    path = write_mnist(folder, 20, 20) / "train-images-idx3-ubyte"
    path.write_bytes(gzip.decompress(path.with_suffix(".gz").read_bytes())[:-5])
    return "mnist", f"{path} is truncated"


def _wrong_magic(folder: Path) -> tuple[str, str]:
    write_mnist(folder, 20, 20)
    shutil.copy(folder / "train-labels-idx1-ubyte.gz", folder / "train-images-idx3-ubyte.gz")
    return (
        "mnist",
        "train-images-idx3-ubyte.gz is not the idx file expected: it begins with 0000080",
    )


def _corrupt_image(folder: Path) -> tuple[str, str]:
    root = write_tiny_imagenet(folder)
    (root / "val" / "images" / "val_3.JPEG").write_bytes(b"\xff\xd8 not much of a JPEG")
    return "tiny-imagenet", "val/images/val_3.JPEG is not a readable image"


@pytest.mark.parametrize("damage", [_truncate, _wrong_magic, _corrupt_image])
def test_damaged_data_get_one_sentence_and_exit_code_2(damage, tmp_path):
    name, says = damage(tmp_path / "data")
    place = ["-o", str(tmp_path / "out"), "--data-dir", str(tmp_path / "data")]
    done = program("vqvae", *place, "--set", f"data={name}")
    assert done.returncode == 2, done.stderr
    told = done.stderr.strip().splitlines()[-1]
    assert ": error: " in told
    assert says in told
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("name", [*MODULES, "table", "figures"])
def test_help_has_an_example(name, capsys):
    with pytest.raises(SystemExit):
        command.main([name, "--help"])
    assert "example" in capsys.readouterr().out
