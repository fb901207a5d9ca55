"""The study: what it plans, what it redoes, and the folders of earlier versions it goes on with."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("snakemake", reason="the study runs on Snakemake: pip install '.[study]'")

from recipe_runs import BIN, SNAKEFILE, TINY, call, environment, small

pytestmark = pytest.mark.slow
SNAKEMAKE = [str(BIN / "snakemake"), "-s", str(SNAKEFILE)]


def plan(folder: Path, *words: str, path: str = "/usr/bin:/bin") -> tuple[int, str]:
    """What the workflow would do, with nothing of this environment on the PATH."""
    done = call([*SNAKEMAKE, "-n", "-p", *words], folder, PATH=path)
    return done.returncode, done.stdout + done.stderr


def jobs(text: str) -> dict[str, int]:
    """Rule → how many jobs of it are planned or were run."""
    found = re.search(r"^job +count\n[- ]+\n(.*?)\n(?:total.*)?$", text, re.MULTILINE | re.DOTALL)
    table = re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE) if found else []
    return {name: int(count) for name, count in table if name not in ("all", "total")}


def runs(normalizers: str, seeds: str) -> set[str]:
    return {f"{name}-seed{seed}" for name in normalizers.split() for seed in seeds.split()}


@pytest.mark.parametrize(
    ("words", "trained", "seeds"),
    [
        (["corpus=demo"], "softmax evsoftmax", "1 2"),
        (["corpus=wmt16"], "softmax sparsemax entmax15 evsoftmax", "1"),
        # The command line overrules what the corpus has of its own, and what it has not.
        (["corpus=demo", "normalizers=[entmax15,sparsemax,evsoftmax]", "seeds=[3]"],
         "entmax15 sparsemax evsoftmax", "3"),
        (["corpus=wmt16", "normalizers=evsoftmax", "seeds=[7,8]"], "evsoftmax", "7 8"),
        (["corpus=tatoeba-multi30k", "normalizers=[evsoftmax]", "seeds=[2]"], "evsoftmax", "2"),
    ],
)  # fmt: skip
def test_the_plan_is_what_was_asked_for(tmp_path, words, trained, seeds):
    code, text = plan(tmp_path, "--cores", "2", "--config", *words)
    assert code == 0, text[-3000:]
    pretrained = runs("pretrained", seeds) if "tatoeba" in words[0] else set()
    tuned = "-finetuned" if pretrained else ""
    wanted = {run.replace("-seed", f"{tuned}-seed") for run in runs(trained, seeds)}
    found = re.findall(r"onmt_train -config (\S+)/settings\.yaml", text)
    assert sorted(found) == sorted(wanted | pretrained)
    # Post-hoc evidential is translated and counted, but not trained.
    columns = wanted | ({run.replace("softmax", "posthoc") for run in wanted
                         if run.startswith("softmax")})  # fmt: skip
    assert set(re.findall(r"onmt_count_attended --model (\S+?)=", text)) == columns
    assert " --jobs 2 " in text, "no more processes than cores"


def test_a_missing_pretrained_model_is_named(tmp_path):
    code, text = plan(tmp_path, "--cores", "2", "--config", "corpus=iwslt14")
    assert code != 0
    assert "runs/wmt16/softmax-seed1/average.pt" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["corpus=nowhere"], "corpus 'nowhere' is no recipe: demo, iwslt14"),
        (["baseline=sparsemax"], "baseline 'sparsemax' is none of softmax, posthoc, evsoftmax"),
        (["source=de"], "source and target are both de"),
        (["settings=[heads]"], "--set takes KEY=VALUE, not heads"),
    ],
)
def test_what_cannot_be_meant(tmp_path, words, said):
    code, text = plan(tmp_path, "--cores", "2", "--config", *words)
    assert code != 0
    assert said in text


def study(tmp_path: Path, *words: str) -> list[str]:
    """The study of multi30k on small data."""
    given = small("multi30k", tmp_path)
    options = dict(zip((word.lstrip("-") for word in given[::2]), given[1::2], strict=True))
    settings = ",".join(f"{key}={value}" for key, value in TINY.items())
    return [*SNAKEMAKE, "--cores", "2", "--directory", str(tmp_path / "out"), "--config",
            "corpus=multi30k", "baseline=softmax", "metrics=[bleu,meteor]", "threads=1",
            f"output={tmp_path}/out", f"data_dir={options['data-dir']}",
            f"sources={options['sources']}", "size=100", f"settings=[{settings}]",
            *words]  # fmt: skip


def test_the_study_is_complete_redoes_nothing_and_goes_on_with_old_folders(tmp_path):
    columns = ["normalizers=[posthoc,softmax]", "source=de", "target=en"]
    words = study(tmp_path, *columns, "seeds=[1,2]")
    (tmp_path / "out").mkdir()
    done = call(words, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    out = tmp_path / "out"
    told = json.loads((out / "study" / "table.json").read_text(encoding="utf-8"))
    assert set(told["BLEU"]) == {"softmax", "posthoc"}
    assert told["seeds"] == {"softmax": 2, "posthoc": 2}
    attended = told["attended, all context heads"]
    assert attended["posthoc"]["standard_error"] is not None
    assert attended["posthoc"]["mean"] < 0.9 * attended["softmax"]["mean"]
    again = call(words, tmp_path)
    assert "Nothing to be done" in again.stderr + again.stdout

    # Other archives and fewer seeds change no model.
    fewer = study(tmp_path, *columns, "seeds=[1]", "data_dir=")
    elsewhere = call([*fewer, "-n"], tmp_path)
    assert elsewhere.returncode == 0, elsewhere.stderr[-3000:]
    assert set(jobs(elsewhere.stdout + elsewhere.stderr)) <= {"score", "table", "figures"}

    # How the translations are searched for changes them and the tables, not the models.
    recipes = tmp_path / "recipes"
    shutil.copytree(SNAKEFILE.parents[1], recipes)
    searched = [word.replace(str(SNAKEFILE.parents[1]), str(recipes)) for word in words]
    path = recipes / "multi30k" / "translate.yaml"
    path.write_text(path.read_text().replace("beam_size: 5", "beam_size: 2"), encoding="utf-8")
    changed = call([*searched, "-n"], tmp_path)
    assert set(jobs(changed.stdout + changed.stderr)) == {"translate", "score", "table"}

    # A training with other settings is refused, and the reason said.
    refused = call([*words, "settings=[heads=4]"], tmp_path)
    assert refused.returncode != 0
    assert "was trained with other settings: accum_count was 1 and is now" in refused.stderr

    # A folder of the workflow that called run.sh: no records of Snakemake, other files of settings.
    shutil.rmtree(out / ".snakemake")
    for run in ("softmax-seed1", "softmax-seed2"):
        written = (out / run / "settings.yaml").read_text(encoding="utf-8")
        kept = re.sub(r"(?m)^(attention_normalizer|save_model|log_file|position_encoding).*\n", "",
                      written)  # fmt: skip
        (out / run / "settings.yaml").write_text(kept.replace("seed: 2", "seed: 1"))
        (out / run / "choices").write_text("softmax, train.yaml\n")
    for name in ("attention.png", "attention.html"):
        (out / "study" / name).unlink()
    old = call([*words, "-n"], tmp_path)
    assert set(jobs(old.stdout + old.stderr)) == {"figures"}, old.stdout + old.stderr


def test_an_unknown_normalizer_is_told_before_anything_is_prepared(tmp_path):
    (tmp_path / "out").mkdir()
    words = study(tmp_path, "normalizers=[softmax,evsofmax]")
    wrong = call(words, tmp_path)
    assert wrong.returncode != 0
    assert "unknown normalizer 'evsofmax' (did you mean evsoftmax?)" in wrong.stderr
    assert not (tmp_path / "out" / "data").exists()


def test_programs_that_are_missing_are_named(tmp_path):
    assert "PATH" in environment()
    code, text = plan(tmp_path, "--cores", "1", path=f"{BIN}:/usr/bin:/bin")
    assert code == 0, text[-2000:]
