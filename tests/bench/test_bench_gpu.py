"""The benchmark for GPUs, with the CPU standing in for one: what it checks, times and reports."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from onmt_evsoftmax.bench import endtoend, gpu
from onmt_evsoftmax.bench import suite as command
from onmt_evsoftmax.kernels.triton import available
from onmt_evsoftmax.report.console import UserError


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small shapes, on the CPU, which is called an A100.

    torch's flash attention of bfloat16 for CPUs ends the process on machines whose AMX is announced
    but not granted, as in some virtual ones.
    """
    for name, value in {
        "DEVICE": "cpu",
        "ENTRIES": 4096,
        "QUERIES": 64,
        "COLUMNS": (("bf16", 64), ("fp32", 1024)),
        "LENGTHS": (16, 32),
        "check": lambda: None,
        "device_name": lambda: "NVIDIA A100-SXM4-80GB",
    }.items():
        monkeypatch.setattr(gpu, name, value)
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.mark.usefixtures("stand_in")
def test_one_file_has_everything(tmp_path):
    path, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    parts = ["rows", "attention", "memory"]
    arguments = ["--device", "cuda", "--only", *parts, "--seconds", "0"]
    assert command.main([*arguments, "-o", str(path), "-o", str(page)]) == 0
    stored = json.loads(path.read_text())
    assert stored["machine"]["GPU"] == "NVIDIA A100-SXM4-80GB"
    assert {"CUDA", "triton", "torch", "kernels"} <= stored["machine"].keys()
    found = {part: [r for r in stored["results"] if r["part"] == part] for part in parts}
    rows = {r["name"] for r in found["rows"]}
    assert {"evsoftmax", "sparsemax", "entmax", "entmax library: entmax15"} <= rows
    attention = {(r["case"], r["name"]) for r in found["attention"]}
    assert {("1,4,16", "entmax15"), ("1,2,32 dropout 0.1", "evsoftmax")} <= attention
    assert {r["case"] for r in found["memory"]} == {"1,4,16", "1,2,32"}
    for result in stored["results"]:
        assert result["forward"] > 0, result["note"]
        assert result["both"] > 0
        ours = result["name"] in ("evsoftmax", "sparsemax", "entmax15", "entmax")
        predicted = available() and ours and result["part"] != "memory"
        assert bool(result["predicted"]) == predicted
    assert ("(predicted 1." in page.read_text()) == available()


@pytest.mark.usefixtures("stand_in")
def test_a_wrong_result_is_told_and_not_timed(monkeypatch):
    real = gpu.row_variants

    def variants():
        softmax = torch.softmax
        return {
            **real(),
            "careless": gpu.Variant(lambda x: softmax(x * 1.1, -1), lambda x: softmax(x, -1)),
            "lost": gpu.Variant(lambda x: softmax(x, -1) * torch.nan, lambda x: softmax(x, -1)),
            "broken": gpu.Variant(lambda x: 1 / 0, lambda x: softmax(x, -1)),
            # Its result is right, its gradient is not.
            "detached": gpu.Variant(
                lambda x: softmax(x, -1).detach() + 0 * x, lambda x: softmax(x, -1)
            ),
        }

    monkeypatch.setattr(gpu, "row_variants", variants)
    found = {r.name: r for r in gpu.measure_rows(("fp32", 64), 0, 0)}
    for name, says in (
        ("careless", "WRONG by"),
        ("lost", "WRONG by inf"),
        ("broken", "failed: ZeroDivisionError"),
        ("detached", "WRONG by"),
    ):
        assert found[name].note.startswith(says)
        assert found[name].forward is None
    assert found["evsoftmax"].note == ""


@pytest.mark.usefixtures("stand_in")
def test_adasplash_is_measured_if_it_is_there(monkeypatch):
    def theirs(query, key, value, alpha, is_causal):
        assert (alpha, is_causal) == (1.5, True)
        return gpu.sparse_attention(query, key, value, normalizer="entmax15", is_causal=True)

    package = types.SimpleNamespace(adasplash=theirs)
    real = gpu._installed
    monkeypatch.setattr(gpu, "_installed", lambda name: package if "ada" in name else real(name))
    found = {r.name: r for r in gpu.measure_attention((16, 0.0), 0, 0)}
    assert found["AdaSplash: entmax-1.5"].both > 0


def test_stock_commands_get_the_gpu(monkeypatch):
    commands = []

    def run(named, folder):
        commands.extend(named.values())
        raise InterruptedError

    monkeypatch.setattr(endtoend, "run_in_turns", run)
    for on_gpu in (False, True):
        with pytest.raises(InterruptedError):
            list(endtoend.measure("train", 0.1, 0, on_gpu=on_gpu))
    programs = len(endtoend.OURS) + 1
    found = ["-gpu_ranks" in command for command in commands]
    assert found == [False] * programs + [True] * programs


def test_refusals(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch sees no GPU"):
        command.main(["--device", "cuda"])
    with pytest.raises(UserError, match="density is not measured on a GPU"):
        command.main(["--device", "cuda", "--only", "density"])
