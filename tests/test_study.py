"""The study's table: means and errors as numpy's, stars as onmt_score's, errors that help."""

from __future__ import annotations

import json

import numpy as np
import pytest

from onmt_evsoftmax import study
from onmt_evsoftmax.console import UserError

pytest.importorskip(
    "onmt_evsoftmax.support.tables", reason="needs the tables of onmt_count_attended"
)

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
        assert "evsoftmax" in text
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
    assert told.rows["BLEU"]["softmax"].text(1) == "30.0"
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
