"""The stock commands, in processes of their own, on a small corpus: what a user does and gets."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import onmt
import pytest
import torch
from conftest import BIN, Workbench
from test_checkpoint import Payload, without_the_package

from onmt_evsoftmax.opennmt import load_model, record_attention
from onmt_evsoftmax.opennmt.building import alphas
from onmt_evsoftmax.opennmt.checkpoint import SparseOptions, load
from onmt_evsoftmax.opennmt.settings import Settings

IS_35 = onmt.__version__.startswith("3.5")

SPARSE: dict[str, dict[str, Any]] = {
    "evsoftmax": {"attention_normalizer": "evsoftmax"},
    "sparsemax": {"attention_normalizer": "sparsemax"},
    "entmax15": {"attention_normalizer": "entmax15"},
    "entmax": {"attention_normalizer": "entmax", "attention_alpha": "learn"},
    "sparsehourglass": {"attention_normalizer": "sparsehourglass"},
    "eps": {"attention_normalizer": "evsoftmax", "attention_eps": 1e-6},
    "mixed": {"context_attention_normalizer": "sparsemax", "generator_function": "sparsemax"},
}


def supports(checkpoint: Path, **options: object) -> dict[str, float]:
    """Share of the valid keys that each kind of attention leaves non-zero on the test set."""
    loaded = load_model(checkpoint, **options)
    sources = [line.split() for line in (checkpoint.parents[1] / "test.src").open()]
    targets = [line.split() for line in (checkpoint.parents[1] / "test.tgt").open()]
    with record_attention(loaded.model) as records:
        loaded.force(sources, targets)
    return {record.kind: (record.support.sum() / record.mask.sum()).item() for record in records}


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


def settings_of(checkpoint: Path) -> Settings:
    return Settings.of(load(checkpoint)["opt"])


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
        names = alphas(after["model"])
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


@pytest.fixture(scope="session")
def averaged(bench: Workbench) -> Path:
    """The mean of two checkpoints with learned alphas."""
    last = bench.train("entmax", **SPARSE["entmax"])
    path = bench.folder / f"averaged-{os.getpid()}.pt"
    bench.run("average_models", "-models", last.with_name("model_step_30.pt"), last, "-o", path)
    return path


def test_averaging_and_release_keep_alphas_and_the_lock(bench: Workbench, averaged: Path) -> None:
    last = bench.train("entmax", **SPARSE["entmax"])
    first = last.with_name("model_step_30.pt")
    weights = [load(path)["model"] for path in (first, last, averaged)]
    names = alphas(weights[0])
    assert len(names) == 6
    for name in names:
        assert torch.allclose(weights[2][name], (weights[0][name] + weights[1][name]) / 2)
    released = averaged.with_name(f"released-{os.getpid()}.pt")
    bench.run("release_model", "--model", averaged, "--output", released)
    assert load(released)["optim"] is None
    for path in (averaged, released):
        assert type(load(path)["opt"]) is SparseOptions
    bench.translate(released, "-beam_size", "1")


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


def test_the_server_translates_over_http(bench: Workbench) -> None:
    model = bench.train("evsoftmax", **SPARSE["evsoftmax"])
    config = bench.folder / f"server-{os.getpid()}.json"
    entry = {"id": 1, "model": str(model), "models": [str(model)], "load": True}
    options = {"gpu": -1, "beam_size": 5}
    config.write_text(
        json.dumps({"models_root": "/", "models": [{**entry, "timeout": -1, "opt": options}]})
    )
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
        question = json.dumps([{"src": text, "id": 1} for text in sentences]).encode()
        request = urllib.request.Request(f"{address}/translate", data=question)
        with urllib.request.urlopen(request, timeout=120) as answer:
            (translations,) = json.loads(answer.read())
    finally:
        server.kill()
        server.wait()
    found = [entry["tgt"] for entry in translations]
    assert found == bench.translate(model, "-beam_size", "5")[:4]
    assert "encoder attention evsoftmax" in Path(log.name).read_text()


KINDS_OF_MODEL: dict[str, dict[str, Any]] = {
    "relative": {
        "position_encoding": None,
        "max_relative_positions": 4,
        "num_workers": 2,
        "generator_function": "entmax15",
    },
    **(
        {"rotary": {"position_encoding": None, "max_relative_positions": -1, "num_workers": 2}}
        if IS_35
        else {}
    ),
    "copy": {"copy_attn": True},
}


@pytest.mark.parametrize("name", KINDS_OF_MODEL)
def test_other_transformers(bench: Workbench, name: str) -> None:
    options = {"attention_normalizer": "evsoftmax", **KINDS_OF_MODEL[name]}
    model = bench.train(name, **options)
    kinds = supports(model)
    assert all(share < 0.9 for share in kinds.values()), kinds
    assert len(bench.translate(model, "-beam_size", "3")) == 32


RNN_MODELS: dict[str, dict[str, Any]] = {
    "rnn": {"generator_function": "evsoftmax"},
    "rnn-copy": {"copy_attn": True},
}


@pytest.mark.parametrize("name", RNN_MODELS)
def test_rnn_models(bench: Workbench, name: str) -> None:
    model = bench.train(
        name,
        encoder_type="brnn",
        decoder_type="rnn",
        position_encoding=None,
        global_attention_function="evsoftmax",
        **RNN_MODELS[name],
    )
    assert "global attention evsoftmax" in bench.log(name)
    assert len(bench.translate(model, "-beam_size", "3")) == 32
    assert type(load(model)["opt"]) is SparseOptions


def test_a_language_model(bench: Workbench) -> None:
    data = {"corpus": {"path_src": "train.src"}, "valid": {"path_src": "valid.src"}}
    model = bench.train(
        "lm",
        data=data,
        model_task="lm",
        encoder_type="transformer_lm",
        decoder_type="transformer_lm",
        share_vocab=True,
        tgt_vocab=None,
        position_encoding=None if IS_35 else True,
        max_relative_positions=-1 if IS_35 else 4,
        attention_normalizer="evsoftmax",
    )
    loaded = load_model(model)
    sources = [line.split() for line in (bench.folder / "test.src").open()]
    with record_attention(loaded.model) as records:
        loaded.force(sources)
    assert {record.kind for record in records} == {"decoder"}
    assert all(record.support.sum() < 0.9 * record.mask.sum() for record in records)
    options = ("-beam_size", "2", "-max_length", "8")
    assert len(bench.translate(model, *options, "-batch_size", "1")) == 32


class TestMistakes:
    """One sentence on stderr, exit code 2, nothing written."""

    def check(self, bench: Workbench, message: str, **options: Any) -> None:
        name = f"mistake-{os.getpid()}"
        config = bench.config(name, **options)
        done = bench.run("train", "-config", config.name, code=2)
        last = done.stderr.splitlines()[-1]
        assert last.startswith("onmt_train: error: ")
        assert re.search(message, last), last
        assert "Traceback" not in done.stderr
        assert not (bench.folder / name).exists()

    def test_a_misspelt_key(self, bench: Workbench) -> None:
        message = r"\.yaml: the key 'attention_normalizr' .* did you mean 'attention_normalizer'"
        self.check(bench, message, attention_normalizr="evsoftmax")

    def test_a_model_without_a_normalizer(self, bench: Workbench) -> None:
        self.check(
            bench,
            "cannot act on self_attn_type: average",
            attention_normalizer="evsoftmax",
            self_attn_type="average",
        )

    def test_the_vocabulary_command_checks_keys_as_well(self, bench: Workbench) -> None:
        config = bench.config(f"mistake-{os.getpid()}", layerz=3)
        done = bench.run("build_vocab", "-config", config.name, code=2)
        assert done.stderr.splitlines()[-1].endswith("did you mean 'layers'?")


def test_a_malicious_checkpoint_is_refused_by_every_command(bench: Workbench) -> None:
    bad, mark = bench.folder / f"bad-{os.getpid()}.pt", bench.folder / f"mark-{os.getpid()}"
    checkpoint = load(bench.train("softmax"))
    checkpoint["opt"].data = Payload(mark)
    torch.save(checkpoint, bad)
    config = bench.config(f"victim-{os.getpid()}", train_from=str(bad))
    commands: dict[str, tuple[object, ...]] = {
        "translate": ("-model", bad, "-src", "test.src", "-output", "none.out"),
        "train": ("-config", config.name),
        "average_models": ("-models", bad, bad, "-o", "none.pt"),
        "release_model": ("--model", bad, "--output", "none.pt"),
    }
    for command, arguments in commands.items():
        done = bench.run(command, *arguments, code=2)
        assert "was refused and nothing in it was run" in done.stderr.splitlines()[-1]
    assert not mark.exists()
    assert not (bench.folder / "none.pt").exists()


class TestWithoutThePlugin:
    """A sparse checkpoint never decodes with softmax by accident."""

    def test_switched_off(self, bench: Workbench, averaged: Path) -> None:
        arguments = ("-model", averaged, "-src", "test.src", "-output", "none.out")
        done = bench.run("translate", *arguments, code=1, env={"ONMT_EVSOFTMAX": "off"})
        assert "onmt_evsoftmax.opennmt.checkpoint.SparseOptions" in done.stderr

    def test_not_installed_and_old_torch(self, bench: Workbench) -> None:
        model = bench.train("evsoftmax", **SPARSE["evsoftmax"])
        code = (
            "import sys, os; os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'\n"
            f"sys.argv = ['onmt_translate', '-model', {str(model)!r}, '-src', "
            f"{str(bench.folder / 'test.src')!r}, '-output', {os.devnull!r}]\n"
            "from onmt.bin.translate import main; main()"
        )
        done = without_the_package(code)
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert last == "ModuleNotFoundError: No module named 'onmt_evsoftmax'"


def test_ctranslate2_converts_softmax_and_refuses_the_rest(bench: Workbench) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    dense, sparse = bench.train("softmax"), bench.train("evsoftmax", **SPARSE["evsoftmax"])
    for model, code in ((sparse, 2), (dense, 0)):
        folder = bench.folder / f"ct2-{model.parent.name}-{os.getpid()}"
        arguments = ("--model", model, "--output", folder, "--format", "ctranslate2")
        done = bench.run("release_model", *arguments, code=code)
        if code:
            assert "CTranslate2 does not have" in done.stderr.splitlines()[-1]
        assert (folder / "model.bin").exists() == (code == 0)
    # The converter's own command, where OpenNMT-py is never imported.
    converter = [BIN / "ct2-opennmt-py-converter", "--model_path"]
    for model in (sparse, dense):
        folder = bench.folder / f"ct2-own-{model.parent.name}-{os.getpid()}"
        done = subprocess.run(
            [*converter, model, "--output_dir", folder], capture_output=True, text=True
        )
        assert (done.returncode == 0) == (model == dense), done.stderr
        assert ("CTranslate2 does not have" in done.stderr) == (model == sparse)


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


def test_the_doctor_is_content(bench: Workbench) -> None:
    code = "import sys; from onmt_evsoftmax.doctor import main; sys.exit(main(['--json']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout
    found = {finding["what"]: finding["found"] for finding in json.loads(done.stdout)}
    assert found["OpenNMT-py"] == onmt.__version__
    assert found["start-up hook"].startswith("live")


def test_the_doctor_says_what_is_wrong(bench: Workbench) -> None:
    code = "import sys; from onmt_evsoftmax.doctor import main; sys.exit(main([]))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "ONMT_EVSOFTMAX": "off"},
    )
    assert done.returncode == 1
    assert "unset the environment variable ONMT_EVSOFTMAX" in done.stdout
