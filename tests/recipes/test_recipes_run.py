"""run.sh from archives to tables, with the stock commands and a model of seconds; and killed."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import corpus_files as archives
import psutil
import pytest

pytest.importorskip("snakemake", reason="the recipes run on Snakemake: pip install '.[study]'")

from recipe_runs import (
    BIN,
    RECIPES,
    SETTINGS,
    call,
    command,
    environment,
    kill_all,
    small,
    start,
    wait_until,
)

missing = [name for name in ("onmt_train", "onmt_evsoftmax") if not (BIN / name).exists()]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing), reason=f"not beside this Python: {missing}; make install"),
]
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/run.sh"))


def trained(out: Path) -> dict[Path, int]:
    """Checkpoints with the times of their making."""
    return {path: path.stat().st_mtime_ns for path in out.rglob("*.pt")}


@pytest.mark.parametrize("recipe", NAMES)
def test_killed_at_random_points_it_ends_with_the_same_table(recipe, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    began = time.monotonic()
    done = call(command(recipe, whole, "--normalizer", "evsoftmax"), whole)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr[-3000:]
    table = (whole / "out" / "table.txt").read_text(encoding="utf-8")
    assert table in done.stdout
    assert (whole / "out" / "attention.html").exists()

    words = command(recipe, broken, "--normalizer", "evsoftmax")
    draw = random.Random(recipe)
    for ending in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        process = start(words, broken)
        try:
            process.wait(timeout=took * draw.uniform(0.25, 0.6))
        except subprocess.TimeoutExpired:
            pass
        else:
            continue  # it was quicker than the uninterrupted one
        if ending == signal.SIGKILL:
            kill_all(process)
        else:
            process.send_signal(ending)
            assert process.wait(timeout=60) == 128 + ending
    done = call(words, broken)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (broken / "out" / "table.txt").read_text(encoding="utf-8") == table

    before = trained(broken / "out")
    again = call(words, broken)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "Nothing to be done" in again.stdout + again.stderr
    assert table in again.stdout
    assert trained(broken / "out") == before


def test_several_normalizers_and_fine_tuning(tmp_path):
    out = tmp_path / "out"
    words = command("multi30k", tmp_path)
    names = ["--normalizer=posthoc", "--normalizer=softmax", "--normalizer=evsoftmax"]
    done = call([*words, *names, "--parallel", "2"], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    kinds = {}
    for name in ("softmax", "evsoftmax", "posthoc"):
        run = out / f"{name}-seed1"
        assert len((run / "test.de").read_text(encoding="utf-8").splitlines()) == 8
        (entry,) = json.loads((run / "attended.json").read_text(encoding="utf-8"))
        kinds[name] = entry["kinds"]["context"]["all"]
    assert kinds["softmax"]["density"]["mean"] == pytest.approx(1.0)
    for name in ("evsoftmax", "posthoc"):
        assert kinds[name]["attended"]["mean"] < 0.9 * kinds["softmax"]["attended"]["mean"]
    models = [
        (out / f"{name}-seed1" / "average.pt").read_bytes() for name in ("softmax", "posthoc")
    ]
    assert models[0] == models[1]

    before = trained(out)
    tuned = call([*words, "--normalizer", "sparsemax", "--pretrained",
                  str(out / "softmax-seed1" / "average.pt")], tmp_path)  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr[-3000:]
    (entry,) = json.loads((out / "sparsemax-finetuned-seed1" / "attended.json").read_text())
    assert entry["kinds"]["context"]["normalizer"] == "sparsemax"
    assert before.items() <= trained(out).items(), "the others are not trained again"

    # Only the translations depend on how they are searched for.
    changed = call([*words, *names, "--set", "dropout=0.3"], tmp_path)
    assert changed.returncode == 2
    assert "was trained with other settings: dropout was 0.0 and is now 0.3" in changed.stderr
    assert before.items() <= trained(out).items()


def test_the_readme_takes_one_model_step_by_step(tmp_path):
    """Its lines, pasted into a shell; only the data are small."""
    text = (RECIPES / "README.md").read_text(encoding="utf-8")
    lines = text.partition("## One model, step by step")[2]
    lines = lines.split("```sh\n")[1].partition("```")[0]
    given = " ".join(small("multi30k", tmp_path))
    changes = " ".join(word.replace("--set=", "--set ") for word in SETTINGS)
    lines = lines.replace("prepare.sh -o runs/mine", f"prepare.sh -o runs/mine {given}")
    lines = lines.replace("--normalizer evsoftmax", f"--normalizer evsoftmax {changes}")
    if not version("OpenNMT-py").startswith("3.0."):
        lines = lines.replace("onmt_translate ", "onmt_translate -max_length_ratio 0 ")
    (tmp_path / "recipes").symlink_to(RECIPES)
    done = call(["bash", "-euo", "pipefail", "-c", lines], tmp_path)
    assert done.returncode in (0, 2), done.stderr[-3000:]
    if done.returncode == 2:  # a model of seconds may say nothing at all
        assert "has only blank lines" in done.stderr
    assert (tmp_path / "runs" / "mine" / "evsoftmax-seed1" / "test.de").exists()
    commands = [line.split()[0] for line in lines.strip().splitlines()]
    assert len(commands) <= 12


CYRILLIC = {
    "ru": ["кошка", "видит", "дом", "большой", "и", "белый", "снег", "читает", "книгу", "он"],
    "zh": ["猫", "看见", "房子", "大", "和", "白", "雪", "读", "书", "他"],
}


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("ru", "zh")])
@pytest.mark.parametrize("subwords", ["bpe", "sentencepiece"])
def test_other_languages_and_the_other_direction(source, target, subwords, tmp_path, monkeypatch):
    for language, words in CYRILLIC.items():
        monkeypatch.setitem(archives.WORDS, language, words)
    given = tmp_path / "in"
    given.mkdir()
    archives.multi30k(given, (source, target))
    sources = archives.unchecked(tmp_path, given)
    size = "120" if subwords == "sentencepiece" else "40"
    words = [str(RECIPES / "multi30k" / "run.sh"), "-o", str(tmp_path / "out"), *SETTINGS,
             "--data-dir", str(given), "--sources", str(sources), "--size", size,
             "--source", source, "--target", target, "--subwords", subwords]  # fmt: skip
    done = call(words, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    out = tmp_path / "out"
    assert "Nr200" in (out / "text" / f"test.{source}").read_text(encoding="utf-8")
    settings = (out / "evsoftmax-seed1" / "settings.yaml").read_text(encoding="utf-8")
    assert f"path_src: data/train.{source}" in settings
    assert f"path_tgt: data/train.{target}" in settings
    assert len((out / "evsoftmax-seed1" / f"test.{target}").read_text().splitlines()) == 8
    tokenizer = {"en": "tok:13a", "zh": "tok:zh"}[target]
    assert tokenizer in (out / "scores.json").read_text(encoding="utf-8")
    # In the other direction it is another training.
    other = [word if word not in (source, target) else {source: target, target: source}[word]
             for word in words]  # fmt: skip
    refused = call(other, tmp_path)
    assert refused.returncode == 2
    assert "was trained with other settings: data was" in refused.stderr


# ---------------------------------------------------------------- what the engine must hold


@pytest.fixture
def fake_trainer(tmp_path: Path) -> Callable[[str], str]:
    """Put a script in the place of onmt_train; returns the PATH to call it with."""

    def make(script: str) -> str:
        program = tmp_path / "bin" / "onmt_train"
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/bash\n" + script)
        program.chmod(0o755)
        return f"{program.parent}:{environment()['PATH']}"

    return make


SLOW = 'sleep 300 &\necho $$ >>"$PIDS"; echo $! >>"$PIDS"; wait\n'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("parallel", [1, 2])
def test_ending_run_sh_ends_its_trainings(tmp_path, fake_trainer, parallel, number):
    """And all they have started; a bare `kill` reaches only run.sh itself."""
    pids = tmp_path / "pids"
    path = fake_trainer(SLOW)
    words = command("multi30k", tmp_path, "--normalizer", "softmax", "--normalizer", "evsoftmax",
                    "--jobs", "2", "--parallel", str(parallel))  # fmt: skip
    job = start(words, tmp_path, PATH=path, PIDS=str(pids))
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2 * parallel)

    # Meanwhile no other may work there.
    other = call(words, tmp_path, PATH=path)
    assert other.returncode != 0
    assert "another run works in" in other.stderr

    job.send_signal(number)
    assert job.wait(timeout=60) == 128 + number
    started = list(map(int, pids.read_text().split()))
    assert len(started) == 2 * parallel, "the second run started nothing"
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    assert not list((tmp_path / "out").rglob("trained"))


def test_a_training_that_outlived_its_run_is_not_doubled(tmp_path, fake_trainer):
    """The run was killed without its training, which goes on."""
    pids = tmp_path / "pids"
    path = fake_trainer(SLOW)
    words = command("multi30k", tmp_path)
    job = start(words, tmp_path, PATH=path, PIDS=str(pids))
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    (engine,) = psutil.Process(job.pid).children()
    engine.kill()
    job.wait(timeout=60)
    training, sleeper = map(int, pids.read_text().split())
    try:
        other = call(words, tmp_path, PATH=path, PIDS=str(pids))
        assert other.returncode != 0
        assert "another process trains in evsoftmax-seed1" in other.stderr
        assert len(pids.read_text().split()) == 2
    finally:
        for pid in (sleeper, training):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()


WATCHED = """
echo "$OMP_NUM_THREADS" >>"$LOG/threads"
name=$(mktemp -p "$LOG" running.XXXX)
ls "$LOG"/running.* | wc -l >>"$LOG/together"
sleep 1
rm "$name"
config=$2
: >"$(dirname "$config")/model_step_6.pt"
"""


@pytest.mark.parametrize(("jobs", "parallel", "threads"), [(2, 2, 1), (2, 1, 2), (4, 2, 2)])
def test_no_more_threads_than_the_jobs_were_given(tmp_path, fake_trainer, jobs, parallel, threads):
    """After a job that was alone, too: Snakemake 9.10 to 9.16 then started twice as many."""
    path = fake_trainer(WATCHED)
    names = [f"--normalizer={name}" for name in ("softmax", "sparsemax", "entmax15", "evsoftmax")]
    words = command("multi30k", tmp_path, *names, "--jobs", str(jobs), "--parallel", str(parallel),
                    "--until", "train")  # fmt: skip
    done = call(words, tmp_path, PATH=path, LOG=str(tmp_path), OMP_NUM_THREADS="64")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "threads").read_text().split() == [str(threads)] * 4
    together = [int(count) for count in (tmp_path / "together").read_text().split()]
    assert len(together) == 4
    assert max(together) == parallel


def test_an_interrupted_training_goes_on_from_its_newest_checkpoint(tmp_path):
    words = command("multi30k", tmp_path, "--until", "train")
    assert call(words, tmp_path).returncode == 0
    run = tmp_path / "out" / "evsoftmax-seed1"
    (run / "trained").unlink()  # as if it had been stopped …
    (run / "model_step_6.pt").unlink()  # … before its last checkpoint
    done = call(words, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "model_step_4.pt" in (run / "study-train.log").read_text()
    assert (run / "model_step_6.pt").exists()

    # Killed after its last step: there is nothing left to do, not even one step more.
    (run / "trained").unlink()
    assert call([*words, "--dry-run"], tmp_path).returncode == 0
    assert not (run / "trained").exists()
    assert call(words, tmp_path).returncode == 0
    assert (run / "trained").exists()
    assert not (run / "model_step_7.pt").exists()


def test_killed_as_its_last_file_appears_a_step_is_not_the_only_one_done_again(tmp_path):
    """Snakemake does not know yet that the step is complete, though every file of it is there."""
    words = command("multi30k", tmp_path)
    vocabulary = tmp_path / "out" / "data" / "vocab.shared"
    process = start(words, tmp_path)
    wait_until(vocabulary.exists, every=0.001)
    kill_all(process)
    unsure = list((tmp_path / "out" / ".snakemake" / "incomplete").iterdir())
    assert unsure, "it was killed too late for this test to mean anything"
    before = vocabulary.stat().st_mtime_ns
    done = call(words, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "out" / "table.txt").exists()
    assert vocabulary.stat().st_mtime_ns == before, "a file that is there is whole"


def test_a_seed_that_fails_does_not_stop_the_others(tmp_path, fake_trainer):
    fails = 'case "$2" in evsoftmax-seed2/*) echo "Error: out of luck"; exit 1;; esac\n'
    path = fake_trainer(f'{fails}exec "{BIN}/onmt_train" "$@"\n')
    words = command("multi30k", tmp_path, "--normalizer", "softmax", "--normalizer", "evsoftmax",
                    "--seed", "1", "--seed", "2", "--parallel", "2")  # fmt: skip
    done = call(words, tmp_path, PATH=path)
    assert done.returncode == 1
    assert "out of luck" in done.stderr, "its log is shown"
    assert "the table lacks evsoftmax-seed2" in done.stderr
    text = (tmp_path / "out" / "table.txt").read_text(encoding="utf-8")
    assert text in done.stdout
    assert re.search(r"seeds +2 +1", text)

    # The next call tries that seed again, and only that.
    before = trained(tmp_path / "out")
    done = call(words, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"seeds +2 +2", (tmp_path / "out" / "table.txt").read_text(encoding="utf-8"))
    assert before.items() <= trained(tmp_path / "out").items()

    # To train a model again, delete its folder.
    shutil.rmtree(tmp_path / "out" / "evsoftmax-seed1")
    planned = call([*words, "--dry-run"], tmp_path)
    shown = planned.stdout + planned.stderr
    assert re.findall(r"onmt_train -config (\S+)/settings", shown) == ["evsoftmax-seed1"]


# ---------------------------------------------------------------- options


@pytest.mark.parametrize("recipe", NAMES)
def test_dry_run_shows_the_commands_and_makes_nothing(recipe, tmp_path):
    words = [str(RECIPES / recipe / "run.sh"), "--dry-run", "-o", str(tmp_path / "out"),
             "--normalizer", "sparsemax"]  # fmt: skip
    done = call(words, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = done.stdout + done.stderr
    for said in ("prepare.sh --output", "onmt_train -config sparsemax", "--normalizer sparsemax",
                 "onmt_average_models", "onmt_translate -config", "onmt_count_attended",
                 "onmt_score --hyp sparsemax=", "onmt_evsoftmax study"):  # fmt: skip
        assert said in shown, said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--colour", "red"], "unrecognized arguments: --colour red"),
        (["--pretrained", "/none.pt"], "--pretrained /none.pt does not exist"),
        (["--parallel", "0"], "argument --parallel: must be a whole number from 1 up, not 0"),
        (["--gpus", "-1"], "argument --gpus: must be a whole number from 0 up, not -1"),
        (["--set", "dropout"], "--set takes KEY=VALUE, not dropout"),
        (["--set", "dropuot=0.1"], "--set: the option -dropuot is unknown"),
        (["--set", "layers=many"], "--set: argument --layers/-layers: invalid int value: 'many'"),
        (["--normalizer", "softmax", "--normalizer", "softmax"], "softmax is given twice"),
        (["--normalizer", "evsoftmx"], "unknown normalizer 'evsoftmx' (did you mean evsoftmax?)"),
        (["--normalizer", "posthoc"], "add --normalizer softmax"),
        (["--gpus", "2", "--parallel", "2"], "would put all trainings on the same GPUs"),
        (["--until", "lunch"], "argument --until/--only: invalid choice: 'lunch'"),
    ],
)
def test_wrong_options(tmp_path, options, said):
    words = [str(RECIPES / "multi30k" / "run.sh"), "-o", str(tmp_path / "out"), *options]
    done = call(words, tmp_path)
    assert done.returncode == 2, done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert said in sentence
    assert not (tmp_path / "out").exists()


def test_small_data_are_those_of_the_recipe(tmp_path):
    """The helper of these tests gives every recipe what its prepare.sh reads."""
    for recipe in NAMES:
        (tmp_path / recipe).mkdir()
        assert "--size" in small(recipe, tmp_path / recipe)
