"""The benchmark measures what it says, in turns, and reports it as text, JSON and a plot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onmt_evsoftmax.bench import attention, rows, scaling
from onmt_evsoftmax.bench import results as report
from onmt_evsoftmax.bench import suite as command
from onmt_evsoftmax.bench.timing import Result, interleaved
from onmt_evsoftmax.report.console import UserError


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts but endtoend, on shapes that take no time."""
    monkeypatch.setattr(rows, "SHAPES", ((8, 32), (4, 1024)))
    monkeypatch.setattr(attention, "SHAPES", ((2, 2, 16),))
    monkeypatch.setattr(attention, "DENSITIES", (0.2,))
    monkeypatch.setattr(attention, "DENSITY_SHAPE", (1, 2, 64))
    monkeypatch.setattr(scaling, "LENGTHS", (1024, 2048))


def test_functions_take_turns():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in "abc"}
    medians = interleaved(functions, seconds=0.0, least=3)
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 4  # one to warm up comes first
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len(set(rounds)) > 1  # nobody always has the same predecessor
    assert medians.keys() == functions.keys()
    assert all(seconds >= 0 for seconds in medians.values())


def test_medians_tell_fast_from_slow():
    small, large = torch.randn(10), torch.randn(2_000_000)
    medians = interleaved({"small": small.exp, "large": large.exp}, seconds=0.0, least=7)
    assert medians["large"] > 5 * medians["small"]


def test_targets_are_bounds_from_the_right_side():
    def result(value: float, unit: str) -> Result:
        return Result("p", "c", "n", "peer", None, value, unit, target_both=0.98)

    assert result(1.0, "time").missed
    assert not result(0.9, "time").missed
    assert result(0.9, "tokens per second").missed
    assert not result(1.0, "tokens per second").missed
    assert not Result("p", "c", "n", "peer", 9.0, 9.0).missed


def test_growth_finds_the_power():
    lengths = [1024, 2048, 4096]
    assert scaling.exponent(lengths, [3e-9 * t**2 for t in lengths]) == pytest.approx(2)
    results = [
        Result("length", f"1,2,{t}", "evsoftmax", "torch SDPA", 1, 0.5, peer_both=t**2.0)
        for t in lengths
    ]
    (peer, ours) = report._growth(results)
    assert peer == "torch SDPA: seconds, both passes grow as T^2.00"
    assert ours == "evsoftmax: seconds, both passes grow as T^2.00 (2 expected)"


@pytest.mark.parametrize("density", attention.DENSITIES)
def test_densities_are_what_they_say(density):
    query, key, _ = attention.tensors(attention.Case((1, 1, 512), "no mask", density), seed=0)
    assert attention.density_of(query, key) == pytest.approx(density, rel=0.2)


@pytest.mark.usefixtures("tiny")
def test_the_command_measures_prints_and_writes(tmp_path, capsys):
    data, plot, page = tmp_path / "bench.json", tmp_path / "growth.png", tmp_path / "bench.md"
    parts = ["rows", "attention", "density", "length"]
    outputs = [word for path in (data, plot, page) for word in ("-o", str(path))]
    assert command.main(["--only", *parts, "--seconds", "0", *outputs]) == 0
    assert capsys.readouterr().out == ""
    assert "as a ratio to torch.softmax, forward / both passes" in page.read_text()
    assert "grow as T^" in page.read_text()
    stored = json.loads(data.read_text())
    assert stored["machine"]["torch"] == torch.__version__
    assert {record["part"] for record in stored["results"]} == set(parts)
    names = {record["name"] for record in stored["results"] if record["part"] == "rows"}
    assert names >= {"evsoftmax", "evsoftmax, masked", "sparsemax", "entmax15", *rows.LIBRARY}
    cases = [record["case"] for record in stored["results"] if record["part"] == "attention"]
    assert {case.split(" ", 1)[1] for case in cases} == set(attention.MASKS)
    densities = [record for record in stored["results"] if record["part"] == "density"]
    assert {"evsoftmax", "sparsemax", "entmax"} <= {record["name"] for record in densities}
    for density in densities:
        assert density["case"] == "1,2,64 no mask, density 0.2"
        assert density["note"].startswith("keeps 0.")
    for record in stored["results"]:
        assert record["forward"] > 0
        assert record["both"] > 0
        assert record["peer_both"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tiny")
def test_the_command_prints_text_or_json(capsys):
    assert command.main(["--only", "rows", "--seconds", "0"]) == 0
    assert "rows: normalizers against torch.softmax" in capsys.readouterr().out
    assert command.main(["--only", "rows", "--seconds", "0", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 20


@pytest.mark.usefixtures("tiny")
def test_json_is_printed_beside_files_that_are_written(tmp_path, capsys):
    page = tmp_path / "bench.md"
    assert command.main(["--only", "rows", "--seconds", "0", "--json", "-o", str(page)]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 20
    assert "as a ratio to torch.softmax" in page.read_text()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_what_was_measured_before_an_interruption_is_reported(tmp_path, monkeypatch, error):
    def interrupted(*_):
        raise error

    monkeypatch.setitem(
        command.PARTS, "length", command.PARTS["length"]._replace(measure=interrupted)
    )
    data, plot = tmp_path / "bench.json", tmp_path / "growth.png"
    arguments = ["--only", "density", "length", "--seconds", "0", "-o", str(data), "-o", str(plot)]
    with pytest.raises(error):
        command.main(arguments)
    assert {r["part"] for r in json.loads(data.read_text())["results"]} == {"density"}
    assert not plot.exists()


def test_processes_take_the_threads_that_are_asked_for(monkeypatch):
    seen = []

    def run(arguments, env, **_):
        seen.append(env["OMP_NUM_THREADS"])
        return subprocess.CompletedProcess(arguments, 0, "[2, 4]", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert len(list(scaling.measure_memory(512, 0.0, 0))) == len(scaling.VARIANTS) - 1
    assert seen == ["3"] * len(scaling.VARIANTS)


def test_markdown_has_a_line_per_case_and_shows_what_is_missed():
    results = [
        Result("rows", "8×32", "evsoftmax", "torch.softmax", 0.7, 0.81),
        Result("rows", "8×32", "sparsemax", "torch.softmax", 0.9, 1.23, target_forward=0.8),
        Result("rows", "8×64", "evsoftmax", "torch.softmax", 0.5, 0.6, target_both=0.7),
    ]
    (table,) = report.tables(results, {"cores": 2}, {"rows": "normalizers"}, ".md")
    lines = table.markdown().splitlines()
    assert lines[0].startswith("### rows: normalizers; time as a ratio to torch.softmax")
    assert lines[2:6] == [
        "|  | evsoftmax | sparsemax |",
        "|---|---:|---:|",
        "| 8×32 | 0.70 / 0.81 | **0.90 / 1.23** (target 0.8 / –) |",
        "| 8×64 | 0.50 / 0.60 | – |",
    ]
    assert lines[7].strip() == "cores 2"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
def test_peak_memory_is_that_of_the_matrix():
    """The explicit way holds several matrices of scores at once, the fused one none."""
    (explicit,) = (
        r for r in scaling.measure_memory(2048, 0.0, 0) if r.name == "evsoftmax, explicit"
    )
    matrix = scaling.HEADS * 2048 * 2048 * 4
    assert explicit.both * explicit.peer_both > 2 * matrix
    assert explicit.peer_both < matrix


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "rows", "-o", "plot.png"], "nothing to plot"),
        (["-o", "plot.xls"], "the ending must be one of"),
        (["--threads", "0"], "a whole number from 1 to 1024"),
        (["--seconds", "inf"], "a number from 0 to 3600"),
        (["--seconds", "nan"], "a number from 0 to 3600"),
        (["--seconds", "-1"], "a number from 0 to 3600"),
        (["--seed", "-1"], "a whole number from 0 to"),
        ([], "install OpenNMT-py"),
        ([], "needs Linux's /proc"),
    ],
)
def test_refusals_come_before_the_measuring(arguments, says, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "measure", None)
    if "OpenNMT" in says:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    if "/proc" in says:
        monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match=says):
        command.main(arguments)


def test_help_names_the_parts():
    done = subprocess.run(
        [sys.executable, "-m", "onmt_evsoftmax", "bench", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for part in command.PARTS:
        assert f"  {part}" in done.stdout
