"""The study's table: means and errors as numpy's, stars as onmt_score's, errors that help."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onmt_evsoftmax.paper import study
from onmt_evsoftmax.report.console import UserError

ROOT = Path(__file__).parents[2]
SNAKEMAKE = shutil.which("snakemake", path=str(Path(sys.executable).parent))
with_snakemake = pytest.mark.skipif(SNAKEMAKE is None, reason="pip install '.[study]'")
RNG = np.random.default_rng(0)


def counts(context: float, paper: float, aer: list[list[float]] | None = None) -> list[dict]:
    attended, available = {"mean": context}, {"mean": 15.0}
    entry = {
        "kinds": {"context": {"all": {"attended": attended, "available": available}}},
        "paper": {"mean": paper},
    }
    if aer:
        entry["alignment"] = {"argmax": {"aer": aer}}
    return [entry]


@pytest.fixture
def files(tmp_path):
    """Two systems with three runs each, and the values behind them."""
    values = {name: RNG.uniform(2, 9, size=3) for name in ("softmax", "evsoftmax")}
    bleu = {name: RNG.uniform(30, 40, size=3) for name in values}
    systems = {
        name: {"mean": runs.mean(), "standard_error": runs.std(ddof=1) / np.sqrt(3)}
        for name, runs in bleu.items()
    }
    systems["softmax"]["comparison"] = {"stars": "**"}
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps({
        "systems": {name: ["a", "b", "c"] for name in values},
        "baseline": "evsoftmax",
        "metrics": [{"name": "BLEU", "systems": systems}],
    }))  # fmt: skip
    attended = []
    for name, runs in values.items():
        for seed, value in enumerate(runs):
            path = tmp_path / f"{name}{seed}.json"
            path.write_text(
                json.dumps(counts(value, value / 2, [[0.9, 0.5], [0.2, 0.3 + seed / 10]]))
            )
            attended.append(f"{name}={path}")
    return tmp_path, scores, attended, values, bleu


def test_values_are_numpys(files):
    folder, scores, attended, values, bleu = files
    out = folder / "t.json"
    study.main(["--scores", str(scores), "--attended", *attended, "-o", str(out)])
    told = json.loads(out.read_text())
    for label, known in (("attended, all context heads", values), ("BLEU", bleu)):
        for name, runs in known.items():
            assert told[label][name]["mean"] == pytest.approx(runs.mean())
            error = runs.std(ddof=1) / np.sqrt(len(runs))
            assert told[label][name]["standard_error"] == pytest.approx(error)
    assert told["BLEU"]["softmax"]["stars"] == "**"
    # The best layer by the mean of its heads: 0.3, 0.4 and then 0.5, which the first has too.
    assert told["alignment error %, layer chosen on test"]["softmax"]["mean"] == pytest.approx(40.0)


def test_tables_and_figures_have_every_system(files):
    folder, scores, attended, *_ = files
    outputs = [folder / f"t{ending}" for ending in (".txt", ".md", ".tex", ".png", ".svg", ".pdf")]
    options = [word for path in outputs for word in ("-o", str(path))]
    study.main(["--scores", str(scores), "--attended", *attended, *options])
    for path in outputs[:3]:
        text = path.read_text(encoding="utf-8")
        assert "softmax" in text
        assert "ev-softmax" in text
        assert "**" in text.replace("\\", "")
        assert "±" in text or "pm" in text
    assert all(path.stat().st_size > 1000 for path in outputs[3:])


def test_one_run_has_no_error_and_no_gold_no_alignment(tmp_path):
    scores = tmp_path / "s.json"
    found = {"softmax": {"mean": 30.0, "standard_error": None}}
    metrics = [{"name": "BLEU", "systems": found}]
    scores.write_text(json.dumps({"systems": {"softmax": ["a"]}, "metrics": metrics}))
    (tmp_path / "a.json").write_text(json.dumps(counts(7.0, 3.0)))
    told = study.read(scores, [("softmax", tmp_path / "a.json")])
    assert told.rows["BLEU"]["softmax"].mean.text(1) == "30.0"
    assert "alignment error %, layer chosen on test" not in told.rows


def test_wrong_files_are_named(files, tmp_path):
    folder, scores, attended, *_ = files
    bad = tmp_path / "bad.json"
    bad.write_text("[{}]")
    with pytest.raises(UserError, match=r"bad\.json is not the JSON of onmt_count_attended"):
        study.read(scores, [("softmax", bad)])
    with pytest.raises(UserError, match=r"is not the JSON of onmt_score"):
        study.read(bad, [])
    with pytest.raises(UserError, match=r"evsoftmax: not in both --scores and --attended"):
        study.read(scores, [("softmax", folder / "softmax0.json")])
    with pytest.raises(UserError, match=r"t\.doc: the ending must be one of"):
        study.main(["--scores", str(scores), "--attended", *attended, "-o", "t.doc"])


def test_columns_are_called_as_in_the_paper(tmp_path):
    scores = tmp_path / "s.json"
    systems = {name: {"mean": 30.0} for name in ("posthoc", "evsoftmax")}
    metrics = [{"name": "BLEU", "systems": systems}]
    runs = {name: ["a"] for name in systems}
    scores.write_text(json.dumps({"systems": runs, "baseline": "evsoftmax", "metrics": metrics}))
    (tmp_path / "a.json").write_text(json.dumps(counts(7.0, 3.0)))
    attended = [f"{name}={tmp_path / 'a.json'}" for name in systems]
    out = tmp_path / "t.md"
    study.main(["--scores", str(scores), "--attended", *attended, "-o", str(out)])
    assert "| post-hoc evidential | ev-softmax |" in re.sub(" +", " ", out.read_text())
    assert "against ev-softmax" in out.read_text()


def plan(folder: Path, *words: str) -> tuple[int, str]:
    """What the workflow would do, with nothing of this environment on the PATH."""
    done = subprocess.run(
        [str(SNAKEMAKE), "-s", str(ROOT / "recipes" / "study" / "Snakefile"), "-n", "-p", *words],
        capture_output=True, text=True, check=False, cwd=folder, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def asked(text: str, stage: str) -> list[str]:
    """The runs, ``<normalizer>-<seed>``, for which the plan calls this stage of run.sh."""
    return sorted(
        f"{name}-{seed}"
        for name, seed in re.findall(rf"--only {stage} --normalizer (\w+) --seed (\d+)", text)
    )


def runs(normalizers: str, seeds: str) -> list[str]:
    return sorted(f"{name}-{seed}" for name in normalizers.split() for seed in seeds.split())


@with_snakemake
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "trained", "seeds", "processes"),
    [
        (["--cores", "2", "--config", "corpus=demo"], "softmax evsoftmax", "1 2", 2),
        (["--cores", "8", "--config", "corpus=wmt16"],
         "softmax sparsemax entmax15 evsoftmax", "1", 4),
        # The command line overrules what the corpus has of its own, and what it has not.
        (["--cores", "2", "--config", "corpus=demo", "normalizers=[entmax15,sparsemax,evsoftmax]",
          "seeds=[3]"], "entmax15 sparsemax evsoftmax", "3", 2),
        (["--cores", "2", "--config", "corpus=wmt16", "normalizers=evsoftmax", "seeds=[7,8]"],
         "evsoftmax", "7 8", 2),
    ],
)  # fmt: skip
def test_the_plan_is_what_was_asked_for(tmp_path, words, trained, seeds, processes):
    code, text = plan(tmp_path, *words)
    assert code == 0, text[-3000:]
    assert asked(text, "train") == runs(trained, seeds)
    # Post-hoc evidential is translated and counted, but not trained.
    columns = f"{trained} posthoc" if "softmax" in trained.split() else trained
    for stage in ("average", "translate", "attended"):
        assert asked(text, stage) == runs(columns, seeds)
    assert f"--only prepare $STUDY_NORMALIZERS --jobs {processes} " in text


@with_snakemake
@pytest.mark.slow
def test_post_hoc_evidential_needs_softmax(tmp_path):
    code, text = plan(tmp_path, "--cores", "1", "--config", "normalizers=[posthoc,evsoftmax]")
    assert code != 0
    assert "add softmax to normalizers" in text
