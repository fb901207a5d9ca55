"""onmt_train, onmt_average_models and onmt_release_model with every normalizer."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from workbench import SPARSE, Workbench, settings_of, supports

from onmt_evsoftmax.opennmt.checkpoint import SparseOptions, load
from onmt_evsoftmax.opennmt.resuming import learned


@pytest.mark.parametrize("name", SPARSE)
def test_every_normalizer_trains_and_translates(bench: Workbench, name: str) -> None:
    checkpoint = bench.train(name, **SPARSE[name])
    log = bench.log(name)
    assert len(re.findall("onmt_evsoftmax [0-9.]+: ", log)) == 1
    assert "FutureWarning" not in log
    loss = [float(value) for value in re.findall(r"xent: *([0-9.]+)", log)]
    assert loss[-1] < loss[0]
    stored = load(checkpoint)["opt"]
    assert type(stored) is SparseOptions
    kinds = supports(checkpoint)
    sparse = ["context"] if name == "mixed" else ["encoder", "decoder", "context"]
    assert all(kinds[kind] < 0.95 for kind in sparse), kinds
    assert all(kinds[kind] == 1.0 for kind in kinds if kind not in sparse)
    lines = bench.translate(checkpoint)
    assert len(lines) == 32
    assert len(set(lines)) > 8


def test_one_line_says_what_took_effect(bench: Workbench) -> None:
    bench.train("mixed", **SPARSE["mixed"])
    (line,) = [line for line in bench.log("mixed").splitlines() if "onmt_evsoftmax" in line]
    assert "encoder attention softmax, decoder attention softmax" in line
    assert "context attention sparsemax, generator sparsemax" in line
    assert "2 attention modules replaced; backend: " in line


class TestTrainingGoesOn:
    """Resuming and fine-tuning: what is not written is inherited, the optimizer's state, too."""

    def test_resume(self, bench: Workbench) -> None:
        start = bench.train("entmax", **SPARSE["entmax"])
        end = bench.train("resumed", train_from=str(start), train_steps=70)
        assert "wins over" not in bench.log("resumed")
        assert settings_of(end) == settings_of(start)
        before, after = load(start), load(end)
        assert (before["optim"]["training_step"], after["optim"]["training_step"]) == (61, 71)
        state = after["optim"]["optimizer"]["state"]
        assert {float(entry["step"]) for entry in state.values()} == {70.0}
        names = learned(after["model"])
        assert len(names) == 6
        moved = [(after["model"][n] - before["model"][n]).abs().max().item() for n in names]
        assert all(0 < distance < 0.5 for distance in moved), moved

    def test_softmax_to_sparse_with_the_optimizers_state(self, bench: Workbench) -> None:
        start = bench.train("softmax")
        end = bench.train(
            "tuned", train_from=str(start), train_steps=65, attention_normalizer="evsoftmax"
        )
        assert "what is written wins over the checkpoint" in bench.log("tuned")
        assert "encoder attention softmax → evsoftmax" in bench.log("tuned")
        assert set(settings_of(end).attention.values()) == {"evsoftmax"}
        state = load(end)["optim"]["optimizer"]["state"]
        assert {float(entry["step"]) for entry in state.values()} == {65.0}

    def test_softmax_to_learned_alphas_with_the_optimizers_state(self, bench: Workbench) -> None:
        start = bench.train("softmax")
        end = bench.train("learned", train_from=str(start), train_steps=65, **SPARSE["entmax"])
        state = load(end)["optim"]["optimizer"]["state"]
        assert sorted({float(entry["step"]) for entry in state.values()}) == [5.0, 65.0]

    def test_softmax_to_sparse_with_a_new_vocabulary(self, bench: Workbench) -> None:
        start = bench.train("softmax")
        for side in ("src", "tgt"):
            words = (bench.folder / "vocab" / side).read_text()
            (bench.folder / "vocab" / f"more.{side}").write_text(words + "neu\t9\nnoch\t8\n")
        end = bench.train(
            "renewed",
            train_from=str(start),
            train_steps=70,
            update_vocab=True,
            reset_optim="states",
            attention_normalizer="sparsemax",
            src_vocab="vocab/more.src",
            tgt_vocab="vocab/more.tgt",
            vocab_size_multiple=1,
        )
        assert "2 new tokens" in bench.log("renewed")
        assert "neu" in load(end)["vocab"]["src"]
        assert set(settings_of(end).attention.values()) == {"sparsemax"}
        assert len(bench.translate(end, "-beam_size", "2")) == 32


def test_averaging_and_release_keep_alphas_and_the_lock(bench: Workbench, averaged: Path) -> None:
    last = bench.train("entmax", **SPARSE["entmax"])
    first = last.with_name("model_step_30.pt")
    weights = [load(path)["model"] for path in (first, last, averaged)]
    names = learned(weights[0])
    assert len(names) == 6
    for name in names:
        assert torch.allclose(weights[2][name], (weights[0][name] + weights[1][name]) / 2)
    released = averaged.with_name(f"released-{os.getpid()}.pt")
    bench.run("release_model", "--model", averaged, "--output", released)
    assert load(released)["optim"] is None
    for path in (averaged, released):
        assert type(load(path)["opt"]) is SparseOptions
    bench.translate(released, "-beam_size", "1")


def test_softmax_training_is_bit_identical_without_the_plugin(bench: Workbench) -> None:
    with_plugin = bench.train("softmax")
    without = bench.train("stock", env={"ONMT_EVSOFTMAX": "off"})
    curves = [re.findall(r"acc: .*?xent: *[0-9.]+", bench.log(n)) for n in ("softmax", "stock")]
    assert curves[0] == curves[1]
    assert curves[0]
    one, other = load(with_plugin), load(without)
    for part in ("model", "generator"):
        assert list(one[part]) == list(other[part])
        for name, value in one[part].items():
            assert torch.equal(value, other[part][name]), name
    states = [checkpoint["optim"]["optimizer"]["state"] for checkpoint in (one, other)]
    assert states[0].keys() == states[1].keys()
    for index, entry in states[0].items():
        assert all(torch.equal(value, states[1][index][key]) for key, value in entry.items())
    mine, theirs = vars(one["opt"]), vars(other["opt"])
    different = {key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)}
    assert different <= {"config", "save_model"}
