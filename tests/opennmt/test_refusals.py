"""What the commands refuse, and how: mistakes, malice, a missing plugin, CTranslate2."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onmt
import pytest
import torch
from test_checkpoint import Payload, without_the_package
from workbench import BIN, SPARSE, Workbench

from onmt_evsoftmax.opennmt.checkpoint import load

LEGACY = Path(__file__).parents[1] / "legacy"


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

    def test_a_word_that_belongs_to_no_option(self, bench: Workbench) -> None:
        config = bench.config(f"mistake-{os.getpid()}")
        done = bench.run("train", "-config", config.name, "evsoftmax", code=2)
        assert "'evsoftmax' belongs to no option" in done.stderr.splitlines()[-1]

    def test_a_missing_corpus(self, bench: Workbench) -> None:
        data = {"corpus": {"path_src": "absent", "path_tgt": "train.tgt"}}
        self.check(bench, "corpus/path_src", data=data)

    def test_a_file_where_a_folder_should_be(self, bench: Workbench) -> None:
        self.check(bench, "cannot use .*train.src: File exists", save_model="train.src/model")

    def test_a_missing_source_and_a_vocabulary_that_exists(self, bench: Workbench) -> None:
        model = bench.train("softmax")
        done = bench.run("translate", "-model", model, "-src", "absent", code=2)
        last = done.stderr.splitlines()[-1]
        assert last == "onmt_translate: error: cannot use absent: No such file or directory"
        done = bench.run("build_vocab", "-config", bench.config("vocabulary").name, code=2)
        assert done.stderr.splitlines()[-1].endswith(
            "vocab/src exists; remove it, or say -overwrite"
        )

    def test_a_source_without_lines_and_a_target_of_another_length(self, bench: Workbench) -> None:
        model = bench.train("softmax")
        (bench.folder / "no-lines").write_text("")
        (bench.folder / "two-lines").write_text("W1\nW2\n")
        for texts, message in (
            (("-src", "no-lines"), "no-lines is empty; it must have at least one line"),
            (
                ("-src", "test.src", "-tgt", "two-lines"),
                "test.src has 32 lines but two-lines has 2; they must be parallel, line by line",
            ),
        ):
            done = bench.run("translate", "-model", model, *texts, "-output", "no.out", code=2)
            assert done.stderr.splitlines()[-1] == f"onmt_translate: error: {message}"
            assert not (bench.folder / "no.out").exists()

    def test_vocabularies_are_all_made_or_none(self, bench: Workbench) -> None:
        name = f"half-{os.getpid()}"
        config = bench.config(name, src_vocab=name, tgt_vocab="vocab/tgt")
        done = bench.run("build_vocab", "-config", config.name, code=2)
        assert done.stderr.splitlines()[-1].endswith(
            "vocab/tgt exists; remove it, or say -overwrite"
        )
        assert not (bench.folder / name).exists()

    def test_a_vocabulary_does_not_replace_the_corpus(self, bench: Workbench) -> None:
        text = (bench.folder / "train.src").read_bytes()
        config = bench.config(f"lost-{os.getpid()}", src_vocab="./train.src", overwrite=True)
        done = bench.run("build_vocab", "-config", config.name, code=2)
        assert "./train.src is the input train.src, which would be lost" in done.stderr
        assert (bench.folder / "train.src").read_bytes() == text

    def test_configurations_and_numbers_without_end(self, bench: Workbench) -> None:
        deep = bench.folder / f"deep-{os.getpid()}.yaml"
        for text in ("[" * 20000, "data: &all\n  corpus: *all\n"):
            deep.write_text(text)
            done = bench.run("build_vocab", "-config", deep.name, code=2)
            last = done.stderr.splitlines()[-1]
            assert last.endswith("nested without end; give a YAML file of keys"), last
        config = bench.config(f"long-{os.getpid()}").name
        done = bench.run("build_vocab", "-config", config, "-n_sample", "9" * 5000, code=2)
        assert len(done.stderr.splitlines()[-1]) < 400

    def test_a_vocabulary_in_the_current_folder(self, bench: Workbench) -> None:
        names = {f"{side}_vocab": f"here-{os.getpid()}.{side}" for side in ("src", "tgt")}
        config = bench.config(f"here-{os.getpid()}", **names)
        bench.run("build_vocab", "-config", config.name, "-n_sample", "-1")
        assert len((bench.folder / names["src_vocab"]).read_text().splitlines()) == 24

    def test_a_text_as_a_model(self, bench: Workbench) -> None:
        arguments = ("-model", "test.src", "-src", "test.src", "-output", "none.out")
        done = bench.run("translate", *arguments, code=2)
        assert done.stderr.splitlines()[-1].startswith("onmt_translate: error: test.src is not a")

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
        assert done.returncode == (0 if model == dense else 2), done.stderr
        assert ("CTranslate2 does not have" in done.stderr) == (model == sparse)
        assert "Traceback" not in done.stderr


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


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("average_models", ["-models", "in.pt", "copy.pt", "-output", "link.pt"]),
        ("release_model", ["--model", "in.pt", "--output", "./in.pt"]),
        ("translate", ["-model", "in.pt", "-src", "in.src", "-output", "in.pt"]),
        ("translate", ["-model", "in.pt", "-src", "in.src", "-output", "in.src"]),
    ],
)
def test_what_is_read_is_not_replaced(
    bench: Workbench, command: str, arguments: list[str], tmp_path: Path
) -> None:
    for name in ("in.pt", "copy.pt"):
        shutil.copy(LEGACY / "evsoftmax_step_30.pt", tmp_path / name)
    shutil.copy(LEGACY / "t.en", tmp_path / "in.src")
    (tmp_path / "link.pt").symlink_to("copy.pt")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    words = [str(tmp_path / word) if "." in word else word for word in arguments]
    result = bench.run(command, *words, code=2)
    assert "which would be lost" in result.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_text_that_is_no_text(bench: Workbench, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("ein Hund\nein Bär\n".encode("latin-1"))
    model = LEGACY / "evsoftmax_step_30.pt"
    done = bench.run("translate", "-model", model, "-src", latin, code=2)
    assert f"{latin}, line 2: not valid UTF-8" in done.stderr
    done = bench.run("train", "-config", latin, code=2)
    assert f"{latin} is not a text in UTF-8; give a YAML file" in done.stderr
    config = bench.config("latin", src_vocab=str(latin))
    done = bench.run("train", "-config", config, code=2)
    assert f"the vocabulary {latin} is not a list of words in UTF-8" in done.stderr
