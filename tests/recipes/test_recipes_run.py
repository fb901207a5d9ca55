"""run.sh and the study from archives to tables, with the stock commands and a model of a minute."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import corpus_files as archives
import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PROGRAMS = ("onmt_train", "onmt_score", "onmt_count_attended", "onmt_plot_attention")
missing = [name for name in PROGRAMS if not (BIN / name).exists()]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing), reason=f"not beside this Python: {missing}; run make install"
    ),
]

TINY = [
    f"--set={setting}"
    for setting in ("train_steps=6", "valid_steps=3", "save_checkpoint_steps=2", "hidden_size=16",
                    "word_vec_size=16", "transformer_ff=16", "heads=2", "batch_size=512",
                    "bucket_size=200", "num_workers=0")
]  # fmt: skip


def call(command: list[object], folder: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    words = [str(word) for word in command]
    return subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=900, cwd=folder
    )


@pytest.fixture
def captions(tmp_path: Path) -> list[object]:
    """Options that make the multi30k recipe small."""
    (tmp_path / "in").mkdir()
    archives.multi30k(tmp_path / "in")
    sources = archives.unchecked(tmp_path, ROOT / "recipes" / "multi30k")
    return ["--data-dir", tmp_path / "in", "--sources", sources, "--size", 100, *TINY]


def test_two_normalizers_from_archives_to_table(tmp_path, captions):
    out = tmp_path / "out"
    command = [ROOT / "recipes" / "multi30k" / "run.sh", "-o", out, *captions,
               "--normalizer", "posthoc", "--normalizer", "softmax",
               "--normalizer", "evsoftmax"]  # fmt: skip
    done = call(command, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (out / "table.txt").read_text(encoding="utf-8") in done.stdout
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

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.pt")}
    again = call(command, tmp_path)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "[step] train" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.pt")} == before

    # Fine-tuning goes on from the softmax model with another normalizer.
    tuned = call([*command[:-6], "--normalizer", "sparsemax", "--pretrained",
                  out / "softmax-seed1" / "average.pt"], tmp_path)  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr[-3000:]
    (entry,) = json.loads((out / "sparsemax-finetuned-seed1" / "attended.json").read_text())
    assert entry["kinds"]["context"]["normalizer"] == "sparsemax"


def test_an_interrupted_training_goes_on(tmp_path, captions):
    out = tmp_path / "out"
    command = [ROOT / "recipes" / "multi30k" / "run.sh", "-o", out, *captions]
    assert call([*command, "--only", "prepare"], tmp_path).returncode == 0
    assert call([*command, "--only", "train"], tmp_path).returncode == 0
    run = out / "evsoftmax-seed1"
    (run / "trained").unlink()  # as if it had been stopped …
    (run / "model_step_6.pt").unlink()  # … before its last checkpoint
    done = call([*command, "--only", "train"], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "going on from" in done.stderr
    assert "model_step_4.pt" in done.stderr
    assert (run / "model_step_6.pt").exists()

    # Killed after its last step: there is nothing left to do, not even one step more.
    (run / "trained").unlink()
    assert call([*command, "--only", "train", "--dry-run"], tmp_path).returncode == 0
    assert not (run / "trained").exists()
    assert call([*command, "--only", "train"], tmp_path).returncode == 0
    assert (run / "trained").exists()
    assert not (run / "model_step_7.pt").exists()


@pytest.fixture
def fake_trainer(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Put a script in the place of onmt_train; returns the environment to call it in."""

    def make(script: str) -> dict[str, str]:
        program = tmp_path / "bin" / "onmt_train"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n" + script)
        program.chmod(0o755)
        return {**os.environ, "PATH": f"{program.parent}:{BIN}:{os.environ['PATH']}"}

    return make


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("parallel", [1, 2])
def test_ending_run_sh_ends_its_trainings(tmp_path, fake_trainer, parallel, number):
    """And all they have started; a bare `kill` reaches only run.sh itself."""
    environment = fake_trainer('sleep 300 &\necho $$ >>"$PIDS"; echo $! >>"$PIDS"; wait\n')
    pids = tmp_path / "pids"
    command = [ROOT / "recipes" / "multi30k" / "run.sh", "-o", tmp_path / "out", "--only", "train",
               "--normalizer", "softmax", "--normalizer", "evsoftmax",
               "--parallel", parallel]  # fmt: skip
    words = list(map(str, command))
    job = subprocess.Popen(
        words,
        env={**environment, "PIDS": str(pids)},
        stderr=subprocess.DEVNULL,
        # Tests that run in the background ignore SIGINT, and what they start would do so too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2 * parallel)

    # Meanwhile no other may train there.
    if shutil.which("flock"):
        other = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        assert other.returncode == 2
        assert "another process trains in" in other.stderr

    job.send_signal(number)
    assert job.wait(timeout=60) == 128 + number
    started = list(map(int, pids.read_text().split()))
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    assert not list((tmp_path / "out").rglob("trained"))


def test_ending_run_sh_ends_its_preparation(tmp_path):
    """A Python of our own that takes long to write the corpus."""
    pids, python = tmp_path / "pids", tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *make_corpus*) echo $$ >"{pids}"; exec sleep 300;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    command = [str(ROOT / "recipes" / "demo" / "run.sh"), "-o", str(tmp_path / "out")]
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHON": str(python)}
    job = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    wait_until(lambda: pids.exists() and bool(pids.read_text()))
    job.terminate()
    assert job.wait(timeout=60) == 143
    wait_until(lambda: not Path(f"/proc/{int(pids.read_text())}").exists())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_changed_yaml_is_refused_where_it_would_be_ignored(tmp_path, fake_trainer):
    environment = fake_trainer("exit 0\n")
    recipes = tmp_path / "recipes"
    shutil.copytree(ROOT / "recipes", recipes)
    command = [recipes / "demo" / "run.sh", "-o", tmp_path / "out", "--only", "train"]

    def run() -> subprocess.CompletedProcess:
        words = list(map(str, command))
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)

    assert run().returncode == 0
    yaml = recipes / "demo" / "train.yaml"
    yaml.write_text(yaml.read_text() + "# only a comment\n")
    assert run().returncode == 0
    yaml.write_text(yaml.read_text().replace("train_steps: 3000", "train_steps: 4000"))
    done = run()
    assert done.returncode == 2
    assert "train.yaml has changed since" in done.stderr
    assert "(train_steps: 3000); choose another -o, or delete it" in done.stderr


def test_other_settings_in_the_same_folder_are_refused(tmp_path, captions):
    command = [ROOT / "recipes" / "multi30k" / "run.sh", "-o", tmp_path / "out", *captions]
    assert call([*command, "--only", "prepare"], tmp_path).returncode == 0
    assert call([*command, "--only", "train"], tmp_path).returncode == 0
    done = call([*command, "--only", "train", "--set", "dropout=0.3"], tmp_path)
    assert done.returncode == 2
    assert "evsoftmax-seed1 was made with" in done.stderr
    assert "-dropout 0.3'; choose another -o, or delete it" in done.stderr


def test_if_one_training_fails_the_other_is_waited_for(tmp_path, captions, fake_trainer):
    """Softmax fails at once, evsoftmax takes two seconds."""
    fake = fake_trainer('case "$*" in *"normalizer softmax"*) exit 1;; esac\nsleep 2\n')
    command = [ROOT / "recipes" / "multi30k" / "run.sh", "-o", tmp_path / "out", *captions,
               "--normalizer", "softmax", "--normalizer", "evsoftmax", "--parallel", 2]  # fmt: skip
    assert call([*command, "--only", "prepare"], tmp_path).returncode == 0
    done = call(["env", f"PATH={fake['PATH']}", *command], tmp_path)
    assert done.returncode == 2
    assert "softmax: multi30k/run.sh: error: the command for" in done.stderr
    assert "softmax-seed1/trained failed with exit code 1" in done.stderr
    assert (tmp_path / "out" / "evsoftmax-seed1" / "trained").exists()
    assert not (tmp_path / "out" / "softmax-seed1" / "trained").exists()


@pytest.mark.skipif(
    shutil.which("snakemake", path=str(BIN)) is None, reason="pip install '.[study]'"
)
def test_the_study_is_complete_and_redoes_nothing(tmp_path, captions):
    settings = "{" + ",".join(option[6:].replace("=", ": ") for option in TINY) + "}"
    options = f"{{size: 100, sources: {captions[3]}}}"
    config = tmp_path / "config.yaml"
    config.write_text(
        "corpus: multi30k\nnormalizers: [posthoc, softmax]\nseeds: [1, 2]\nbaseline: softmax\n"
        f"metrics: [bleu]\noutput: {tmp_path}/out\ndata_dir: {tmp_path}/in\ncorpora:\n"
        f"  multi30k: {{reference: text/test.de, options: {options}, settings: {settings}}}\n"
    )
    command = [BIN / "snakemake", "-s", ROOT / "recipes" / "study" / "Snakefile", "--cores", 2,
               "--configfile", config]  # fmt: skip
    done = call(command, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads((tmp_path / "out" / "study" / "table.json").read_text(encoding="utf-8"))
    assert set(told["BLEU"]) == {"softmax", "posthoc"}
    attended = told["attended, all context heads"]
    assert attended["posthoc"]["standard_error"] is not None
    assert attended["posthoc"]["mean"] < 0.9 * attended["softmax"]["mean"]
    again = call(command, tmp_path)
    assert "Nothing to be done" in again.stderr + again.stdout
    elsewhere = call([*command, "--config", "data_dir=", "seeds=[1]"], tmp_path)
    assert elsewhere.returncode == 0, elsewhere.stderr[-3000:]
    jobs = re.findall(r"^rule (\w+):|^localrule (\w+):", elsewhere.stderr, re.MULTILINE)
    assert {a or b for a, b in jobs} <= {"score", "table", "all"}, elsewhere.stderr[-3000:]

    wrong = call([*command, "--config", "normalizers=[softmax,evsofmax]", f"output={tmp_path}/b"],
                 tmp_path)  # fmt: skip
    assert wrong.returncode != 0
    log = (tmp_path / "b" / "study" / "prepare.log").read_text(encoding="utf-8")
    assert "unknown normalizer 'evsofmax' (did you mean evsoftmax?)" in log
