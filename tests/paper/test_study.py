"""The study's table: means and errors as numpy's, stars as onmt_score's, errors that help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from onmt_evsoftmax.paper import study
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.statistics import detectable_difference

RNG = np.random.default_rng(0)


def counts(context: float, paper: float, aer: list[list[float]] | None = None) -> list[dict]:
    def kind(mean: float) -> dict:
        heads = [{"histogram": [0, 3, 1]}, {"histogram": [0, 1, 2, 3]}]
        means = {"attended": {"mean": mean}, "available": {"mean": 15.0}}
        return {"all": means, "layers": [{"heads": heads}]}

    kinds = {"context": kind(context), "encoder": kind(context + 1), "decoder": kind(context + 2)}
    entry = {"kinds": kinds, "paper": {"mean": paper}}
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


def test_self_attention_has_its_rows_where_there_is_any(files):
    folder, scores, attended, values, _ = files
    pairs = [(name, Path(path)) for name, path in (word.split("=") for word in attended)]
    rows = study.read(scores, pairs).rows
    for label, more in (("encoder self-attention", 1), ("decoder self-attention", 2)):
        for name, runs in values.items():
            found = rows[f"attended, {label}"][name].mean.mean
            assert found == pytest.approx(runs.mean() + more)
    for path in folder.glob("softmax*.json"):  # a model that has context attention only
        (entry,) = json.loads(path.read_text())
        del entry["kinds"]["encoder"]
        path.write_text(json.dumps([entry]))
    rows = study.read(scores, pairs).rows
    assert set(rows["attended, encoder self-attention"]) == {"evsoftmax"}


def test_histograms_are_added_up_over_heads_and_seeds(files):
    _, scores, attended, *_ = files
    pairs = [(name, Path(path)) for name, path in (word.split("=") for word in attended)]
    assert study.read(scores, pairs).histograms["softmax"] == [0, 12, 9, 9]


def test_the_difference_that_so_many_seeds_would_show_is_found_that_often():
    """A t test of made runs with that difference finds it in four of five cases."""
    rng = np.random.default_rng(1)
    spread, seeds = 0.3, 4
    columns = [rng.normal(30, spread, 100_000) for _ in range(2)]  # so that the spread is known
    known = detectable_difference([list(column) for column in columns])
    assert known == pytest.approx((1.96 + 0.8416) * spread * np.sqrt(2 / 100_000), rel=0.02)
    runs = [[29.5, 30.1, 30.0, 29.7], [31.0, 31.5, 30.8, 31.2]]
    deviation = np.sqrt(np.mean([np.var(column, ddof=1) for column in runs]))
    difference = detectable_difference(runs)
    made = rng.normal(0, deviation, (20_000, 2, seeds))
    made[:, 1] += difference
    found = stats.ttest_ind(made[:, 0], made[:, 1], axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.02)
    assert detectable_difference([[30.0], [31.0]]) is None


def test_the_table_says_what_its_seeds_would_show(files, tmp_path):
    _, scores, attended, _, bleu = files
    told = json.loads(scores.read_text())
    for name, runs in bleu.items():
        told["metrics"][0]["systems"][name]["runs"] = list(runs)
    scores.write_text(json.dumps(told))
    out = tmp_path / "t.txt"
    study.main(["--scores", str(scores), "--attended", *attended, "-o", str(out)])
    known = detectable_difference([list(runs) for runs in bleu.values()])
    assert f"a difference of {known:.2f} BLEU" in out.read_text()


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
    for content in ("[{}]", "[]", "{}", "3"):
        bad.write_text(content)
        with pytest.raises(UserError, match=r"bad\.json is not the JSON of onmt_count_attended"):
            study.read(scores, [("softmax", bad)])
    with pytest.raises(UserError, match=r"is not the JSON of onmt_score"):
        study.read(bad, [])
    with pytest.raises(UserError, match=r"evsoftmax: not in both --scores and --attended"):
        study.read(scores, [("softmax", folder / "softmax0.json")])
    with pytest.raises(UserError, match=r"t\.doc: the ending must be one of"):
        study.main(["--scores", str(scores), "--attended", *attended, "-o", "t.doc"])


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"metrics": [], "systems": {}}',
        '{"metrics": {"a": 1}, "systems": {}}',
        '{"metrics": [{"name": "B", "systems": ["a"]}], "systems": {}}',
        '{"metrics": [{"name": "B", "systems": {"a": 3}}], "systems": {}}',
        '{"metrics": [{"name": "B", "systems": {"a": {"mean": 3}}}], "systems": ["a"]}',
        '{"metrics": [{"name": "B", "systems": {"a": {"mean": null}}}], "systems": {}}',
        '{"metrics": [{"name": "B", "systems": {"a": {"mean": "x"}}}], "systems": {}}',
        '{"metrics": [{"name": "B", "systems": {"a": {"mean": 3, "standard_error": []}}}]}',
        '{"metrics": [{"name": "B", "systems": {"a": {"mean": 3, "runs": ["x", "y"]}}}],'
        ' "systems": {"a": ["x", "y"]}}',
    ],
)
def test_scores_of_another_shape_are_told(tmp_path, content):
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(UserError, match=r"s\.json (is not|has no metric)"):
        study.read(tmp_path / "s.json", [])


@pytest.mark.parametrize("aer", [[], [[]], [3], "x"])
def test_counts_without_an_alignment_that_can_be_read_have_none(tmp_path, aer):
    scores = {"systems": {"a": ["x"]}, "metrics": [{"name": "B", "systems": {"a": {"mean": 1.0}}}]}
    (tmp_path / "s.json").write_text(json.dumps(scores))
    entry = {**counts(7.0, 3.0)[0], "alignment": {"argmax": {"aer": aer}}}
    (tmp_path / "a.json").write_text(json.dumps([entry]))
    told = study.read(tmp_path / "s.json", [("a", tmp_path / "a.json")])
    assert "alignment error %, layer chosen on test" not in told.rows


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


def test_a_collapsed_model_is_zeros_with_a_warning_in_its_column(tmp_path):
    def metric(**runs):
        systems = {name: {"mean": np.mean(found), "runs": found} for name, found in runs.items()}
        return {"name": "BLEU", "higher_is_better": True, "systems": systems}

    scores = tmp_path / "s.json"
    metrics = [metric(softmax=[30.0, 31.0], sparsemax=[0.0, 29.0], evsoftmax=[28.0])]
    files = {"softmax": ["a", "b"], "sparsemax": ["c", "d"], "evsoftmax": ["e"]}
    scores.write_text(json.dumps({"systems": files, "metrics": metrics}))
    attended = []
    for name, means in {"softmax": (9, 9), "sparsemax": (0, 4), "evsoftmax": (0,)}.items():
        for number, mean in enumerate(means):
            path = tmp_path / f"{name}{number}.json"
            # Nothing is aligned where nothing is attended to.
            path.write_text(json.dumps(counts(mean, mean, [[0.5 if mean else None]])))
            attended.append(f"{name}={path}")
    out = tmp_path / "t.txt"
    study.main(["--scores", str(scores), "--attended", *attended, "-o", str(out)])
    text = out.read_text(encoding="utf-8")
    assert re.search(r"seeds +2 +2 \(1 collapsed\) +1 \(1 collapsed\)", text)
    assert "sparsemax: 1 collapsed: no translation" in text
    assert re.search(r"attended, all context heads +9\.00.* 2\.00 ± 2\.00 +0\.00", text)
    assert re.search(r"alignment error .* 50\.00.* 75\.00 ± 25\.00 +100\.00", text)
