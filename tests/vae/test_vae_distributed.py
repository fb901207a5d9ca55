"""Two processes that share every batch train what one process trains."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import nn
from vae_data import write_mnist

from onmt_evsoftmax.report import download
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.vae import __main__ as command
from onmt_evsoftmax.vae import data, distributed, latent, training
from onmt_evsoftmax.vae.experiments import cvae


def regression(folder: Path, reduction: str) -> dict:
    """Two epochs without noise in batches of 3, 3 and 1, which do not divide evenly by two."""
    run = training.Run(folder / reduction, 0, torch.device("cpu"), tensorboard=False)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(7, width, generator=generator) for width in (3, 2))
    run.seed_stage("regression")
    model = nn.Linear(3, 2)
    # Like the statistics of batch normalisation: each process's own while it trains.
    model.register_buffer("average", torch.zeros(()))
    model.register_buffer("started", torch.tensor(False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(batch: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.average.copy_((model.average + x[batch].mean()) / 2)
        error = F.mse_loss(model(x[batch]), y[batch], reduction="none").sum(-1)
        return getattr(error, reduction)(), {"error": error.detach().mean()}

    schedule = training.Schedule(len(x), 3, epochs=2)
    summed = reduction == "sum"
    trained = training.train(run, "x", model, optimizer, schedule, loss, dict, summed=summed)
    return {"weights": model.state_dict(), "history": trained.history}


def digits(folder: Path) -> dict:
    """The CVAE's weights after an epoch with the mean in place of its Gumbel noise."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8, generator=generator)
    images = data.Images(pixels, torch.arange(20) % 10)
    digits = data.DataSet(images, images, list("0123456789"))
    c = cvae.Configuration(epochs=1, classifier_epochs=1, batch_size=8)
    run, shared = (
        training.Run(folder / name, 1, torch.device("cpu"), tensorboard=False)
        for name in ("job", "shared")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latent, "gumbel_softmax", lambda log_q, t: (log_q / t).softmax(-1))
        cvae.EXPERIMENT.job(run, shared, c, digits, "evsoftmax")
    saved = torch.load(run.folder / "cvae.pt", weights_only=True)
    return {"weights": saved["module"], "history": saved["history"]}


def everything(folder: Path) -> dict:
    kinds = {kind: regression(folder, kind) for kind in ("mean", "sum")}
    return {**kinds, "cvae": digits(folder)}


def slow_download(rank: int, url: str, target: Path, checksums: list, otherwise: str) -> None:
    """In place of a download: the data set's files after a while, and a record of who asked."""
    time.sleep(0.3)
    write_mnist(target.parent)
    with open(target.parent / "asked", "a", encoding="utf-8") as file:
        file.write(f"{rank}\n")


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/join", rank=rank, world_size=2)
    torch.save(everything(folder), folder / f"rank{rank}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "download", partial(slow_download, rank))
        patch.setattr(download, "check", lambda *_: None)
        data.load("mnist", folder / "fetched", fetch=True)
    distributed.stop()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What one process ends with, then what each of two does; and which of them downloaded."""
    folder = tmp_path_factory.mktemp("distributed")
    torch.multiprocessing.spawn(process, (folder,), nprocs=2)
    asked = (folder / "fetched" / "asked").read_text(encoding="utf-8").split()
    both = [torch.load(folder / f"rank{rank}", weights_only=True) for rank in range(2)]
    return [everything(folder / "alone"), *both, asked]


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_every_process_ends_with_the_same_weights(trained, kind):
    _, first, second = (result[kind] for result in trained[:3])
    for name, tensor in first["weights"].items():
        assert torch.equal(tensor, second["weights"][name]), name
    assert first["history"] == second["history"]


@pytest.mark.parametrize("kind", ["mean", "sum", "cvae"])
def test_two_processes_end_where_one_ends_and_report_the_same_losses(trained, kind):
    alone, first = (result[kind] for result in trained[:2])
    for name, parameter in alone["weights"].items():
        if name != "average":  # it is of the first process's share
            torch.testing.assert_close(first["weights"][name], parameter, rtol=1e-4, atol=1e-5)
    for one, other in zip(alone["history"], first["history"], strict=True):
        for number in one.keys() & {"loss", "error", "reconstruction", "kl"}:
            assert other[number] == pytest.approx(one[number], rel=1e-4), (number, one["step"])


def test_only_the_first_process_downloads_and_the_others_wait(trained):
    assert trained[3] == ["0"] * len(data.SOURCES["mnist"][1])


def test_a_world_without_torchrun_is_told(monkeypatch):
    for name in ("LOCAL_RANK", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"LOCAL_RANK.* is not set; start it with torchrun"):
        distributed.start()


@pytest.fixture
def second_of_two(monkeypatch):
    """What torchrun tells the second of two processes on one machine."""
    told = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": "1", "MASTER_ADDR": "localhost"}
    for name, value in {**told, "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def test_more_processes_than_gpus_are_told(second_of_two, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"GPU 1, but torch finds only 1 .*--nproc_per_node=1"):
        distributed.start()


def test_a_device_cannot_be_chosen_under_torchrun(second_of_two, tmp_path):
    with pytest.raises(UserError, match="--device cpu: under torchrun each process takes a GPU"):
        command.main(["cvae", "--device", "cpu", "-o", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
