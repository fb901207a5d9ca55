"""VAE experiments that are killed and resumed, and that several processes share."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator
from vae_commands import ROOT, arguments

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.vae import __main__ as command
from onmt_evsoftmax.vae import training

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
    # The killed run's entries as if written by a machine whose clock is ahead: TensorBoard reads
    # files in the order of the times in their names, so nothing may depend on that order.
    (events,) = (folder / "tensorboard" / stage).iterdir()
    events.rename(events.with_name("events.out.tfevents.9999999999.other.1.0"))
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
    assert [scalar.step for scalar in events.Scalars(tag) if scalar.step] == steps


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


@pytest.mark.parametrize("killed_after", [None, 1, 2, 3])
def test_the_epoch_with_the_lowest_number_is_kept_also_when_resumed(tmp_path, killed_after):
    """Four epochs that add 1 to a weight, of which the second has the lowest number."""
    numbers = {0.0: 5.0, 1.0: 4.0, 2.0: 3.0, 3.0: 6.0, 4.0: 7.0}

    def fit(epochs: int) -> tuple[float, training.Trained]:
        run = training.Run(tmp_path, 0, torch.device("cpu"), tensorboard=False)
        module = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(module.weight)
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        trained = training.train(
            run, "x", module, optimizer, training.Schedule(1, 1, epochs, select="number"),
            lambda batch: (-module(torch.ones(1, 1)).sum(), {}),
            lambda: {"number": numbers[module.weight.item()]},
        )  # fmt: skip
        return module.weight.item(), trained

    if killed_after:
        fit(killed_after)
    weight, trained = fit(4)
    assert weight == 2.0
    assert [entry["number"] for entry in trained.history] == list(numbers.values())
    assert trained.final["epoch"] == 2


#: Where (step, from 1, of two epochs of four) what goes wrong, and what is said then.
SPOILED = [
    (1, "loss", "loss is not a number in epoch 1; lower learning_rate in another output folder"),
    (5, "loss", "loss is not a number in epoch 2"),
    (8, "loss", "loss is not a number in epoch 2"),
    (4, "gradient", "weights are not finite in epoch 1"),
    (8, "gradient", "weights are not finite in epoch 2"),
]


@pytest.mark.parametrize("evaluate_every", [0, 3, 100])
@pytest.mark.parametrize(("bad", "kind", "says"), SPOILED)
def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path, bad, kind, says, evaluate_every):
    run = training.Run(tmp_path, 0, torch.device("cpu"), tensorboard=False)
    module = torch.nn.Linear(1, 1)
    step = itertools.count(1)

    def loss(batch):
        error = module(torch.ones(1, 1)).square().sum()
        if next(step) == bad:
            # The square root's gradient at 0 is infinite, though its value is not.
            error = error + ((module.bias * 0).sqrt().sum() if kind == "gradient" else torch.nan)
        return error, {}

    checkpoint = tmp_path / "x.pt"
    schedule = training.Schedule(8, 2, 2, evaluate_every)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UserError, match=says) as told:
        training.train(run, "x", module, optimizer, schedule, loss, dict)
    assert checkpoint.exists() == (bad > 4) == (f"good state is {checkpoint}" in str(told.value))
    if checkpoint.exists():
        saved = state(checkpoint)
        assert saved["epoch"] == 1
        assert all(tensor.isfinite().all() for tensor in saved["module"].values())


# --- several processes ----------------------------------------------------------------------------


def test_two_processes_under_torchrun_train_the_model_that_one_trains(tmp_path):
    words = arguments("vqvae", tmp_path, "--shared-only", "--set", "autoencoder_epochs=1")
    assert command.main(words) == 0
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
