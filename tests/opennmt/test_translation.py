"""onmt_translate and onmt_server with sparse models: searches, ensembles, attention, alignment."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from workbench import BIN, IS_35, SPARSE, Workbench, supports

from onmt_evsoftmax.opennmt import load_model, record_attention


def scored(lines: list[str]) -> list[tuple[str, float]]:
    pairs = [line.split("\t") for line in lines]
    return [(text, float(score)) for text, score in pairs]


class TestTranslation:
    def test_batch_size_changes_nothing(self, bench: Workbench) -> None:
        model = bench.train("evsoftmax", **SPARSE["evsoftmax"])
        options = ("-beam_size", "4") if IS_35 else ("-beam_size", "4", "-with_score")
        alone = bench.translate(model, *options, "-batch_size", "1")
        together = bench.translate(model, *options, "-batch_size", "32")
        if IS_35:  # its -with_score fails by itself
            assert alone == together
        else:
            for (text, score), (other, other_score) in zip(
                scored(alone), scored(together), strict=True
            ):
                assert text == other
                assert score == pytest.approx(other_score, abs=1e-4)

    def test_greedy_is_a_beam_of_one(self, bench: Workbench) -> None:
        model = bench.train("evsoftmax", **SPARSE["evsoftmax"])
        greedy = bench.translate(model, "-random_sampling_topk", "1", "-beam_size", "1")
        assert greedy == bench.translate(model, "-beam_size", "1")

    def test_an_ensemble_of_two_normalizers(self, bench: Workbench) -> None:
        models = [bench.train(name, **SPARSE[name]) for name in ("evsoftmax", "sparsemax")]
        both = bench.translate(models)
        single = [bench.translate(model) for model in models]
        assert len(both) == 32
        assert both not in single

    def test_an_ensemble_with_zeros_says_what_it_needs(self, bench: Workbench) -> None:
        models = [bench.train(name, **SPARSE[name]) for name in ("mixed", "evsoftmax")]
        arguments = ("-model", *models, "-src", "test.src", "-output", "none.out")
        done = bench.run("translate", *arguments, code=2)
        assert "add -avg_raw_probs" in done.stderr.splitlines()[-1]
        assert len(bench.translate(models, "-avg_raw_probs")) == 32

    def test_int8(self, bench: Workbench) -> None:
        model = bench.train("mixed", **SPARSE["mixed"])
        flag = ("-precision", "int8") if IS_35 else ("-int8",)
        assert len(bench.translate(model, *flag)) == 32

    def test_posthoc_a_softmax_model_decodes_with_evsoftmax(self, bench: Workbench) -> None:
        model = bench.train("softmax")
        output = f"posthoc-{os.getpid()}.out"
        arguments = ("-model", model, "-src", "test.src", "-output", output)
        done = bench.run("translate", *arguments, "-attention_normalizer", "evsoftmax")
        assert "encoder attention softmax → evsoftmax" in done.stderr
        assert "6 attention modules replaced" in done.stderr
        assert (bench.folder / output).read_text().splitlines() != bench.translate(model)
        assert all(share == 1.0 for share in supports(model).values())
        posthoc = supports(model, attention_normalizer="evsoftmax")
        assert all(share < 0.9 for share in posthoc.values())

    def test_alphas_are_not_chosen_at_translation(self, bench: Workbench) -> None:
        model = bench.train("softmax")
        arguments = ("-model", model, "-src", "test.src", "-attention_alpha", "learn")
        done = bench.run("translate", *arguments, code=2)
        assert "attention_alpha learn is for training" in done.stderr.splitlines()[-1]


def matrices(text: str) -> list[list[list[float]]]:
    """The attention matrices that ``-attn_debug`` prints: one row per target word."""
    found: list[list[list[float]]] = []
    for line in text.splitlines():
        if re.match(r"\[.*INFO\] +w\d", line):
            found.append([])
        elif found and re.match(r" +\S+ +[*0-9]", line):
            found[-1].append([float(value) for value in re.findall(r"\d\.\d{7}", line)])
    return found


@pytest.mark.parametrize(
    "options", ["-beam_size 3", "-beam_size 1", "-beam_size 1 -random_sampling_topk 1"]
)
def test_attn_debug_shows_what_was_computed(bench: Workbench, options: str) -> None:
    """Sentences of all lengths in one batch; the matrix is head 0 of the last context attention."""
    model = bench.train("evsoftmax", **SPARSE["evsoftmax"])
    output = f"debug-{os.getpid()}.out"
    arguments = ("-model", model, "-src", "test.src", "-output", output, "-batch_size", "32")
    limit = ("-max_length", "12")
    done = bench.run("translate", *arguments, *limit, "-attn_debug", *options.split())
    shown = matrices(done.stderr + done.stdout)
    lines = (bench.folder / output).read_text().splitlines()
    sources = [line.split() for line in (bench.folder / "test.src").read_text().splitlines()]
    assert len(shown) == len(lines) == 32
    loaded = load_model(model)
    zeros = 0
    for source, line, matrix in zip(sources, lines, shown, strict=True):
        with record_attention(loaded.model) as records:
            loaded.force([source], [line.split()])
        # A translation that was cut off has no row for the end of the sentence.
        expected = records[-1].probabilities[0, 0, : len(matrix)]
        assert records[-1].kind == "context"
        assert len(matrix) in (len(line.split()), len(line.split()) + 1)
        assert torch.allclose(torch.tensor(matrix), expected, atol=1e-4), (source, line)
        zeros += (expected == 0).sum().item()
    assert zeros > 100


class TestAlignment:
    def test_a_layer_that_does_not_exist_is_told(self, bench: Workbench) -> None:
        model = bench.train("evsoftmax", **SPARSE["evsoftmax"])
        arguments = ("-model", model, "-src", "test.src", "-output", "none.out", "-report_align")
        done = bench.run("translate", *arguments, code=2)
        assert "reads decoder layer -3 but there are 2" in done.stderr.splitlines()[-1]
        assert "-alignment_layer" in done.stderr.splitlines()[-1]

    def test_alignments_are_reported(self, bench: Workbench) -> None:
        model = bench.train("evsoftmax", **SPARSE["evsoftmax"])
        lines = bench.translate(model, "-report_align", "-alignment_layer", "-1")
        plain = bench.translate(model)
        for line, text in zip(lines, plain, strict=True):
            translation, _, pairs = line.partition(" ||| ")
            assert translation.strip() == text.strip()
            assert all(re.fullmatch(r"\d+-\d+", pair) for pair in pairs.split())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(address: str, question: str) -> Any:
    """What the server answers: JSON, also if something is wrong."""
    request = urllib.request.Request(f"{address}/translate", data=question.encode())
    try:
        with urllib.request.urlopen(request, timeout=25) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


def test_the_server_translates_and_answers_mistakes_over_http(bench: Workbench) -> None:
    model = bench.train("evsoftmax", **SPARSE["evsoftmax"])
    config = bench.folder / f"server-{os.getpid()}.json"
    bad = str(bench.folder / "test.src")
    options = {"timeout": -1, "opt": {"gpu": -1, "beam_size": 5}}
    entries = [
        {"id": 1, "model": str(model), "models": [str(model)], "load": True, **options},
        {"id": 2, "model": bad, "models": [bad], "load": False, **options},
    ]
    config.write_text(json.dumps({"models_root": "/", "models": entries}))
    port = free_port()
    with (bench.folder / f"server-{os.getpid()}.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(BIN / "onmt_server", "--ip", "127.0.0.1", "--port", str(port)),
                *("--model_config" if IS_35 else "--config", config),
            ],
            cwd=bench.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        address = f"http://127.0.0.1:{port}/translator"
        deadline = time.monotonic() + 200
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).read()
                break
            except OSError:
                assert server.poll() is None, Path(log.name).read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
        sentences = (bench.folder / "test.src").read_text().splitlines()[:4]
        # A lazily loaded model that is none, twice; one that is not there; not even JSON.
        for _ in range(2):
            answer = ask(address, json.dumps([{"src": "w1", "id": 2}]))
            assert answer["status"] == "error"
            assert "test.src is not a checkpoint" in answer["error"]
        assert "No such model '7'" in ask(address, json.dumps([{"src": "w1", "id": 7}]))["error"]
        assert ask(address, "what?")["status"] == "error"
        (translations,) = ask(address, json.dumps([{"src": s, "id": 1} for s in sentences]))
    finally:
        server.kill()
        server.wait()
    found = [entry["tgt"] for entry in translations]
    assert found == bench.translate(model, "-beam_size", "5")[:4]
    assert "encoder attention evsoftmax" in Path(log.name).read_text()
