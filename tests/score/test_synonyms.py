"""METEOR's synonyms: with a WordNet of our own making in nltk's format, and without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import tool
from scoring_texts import write


def meteor(folder: Path, lang: str, data: Path) -> dict:
    """What score says of files hyp and ref, with nltk's data in ``data``."""
    command = f"--hyp hyp --ref ref --metrics meteor --json --lang {lang}"
    result = tool("score", command, folder, NLTK_DATA=str(data))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["metrics"][0]


def tiny_wordnet(folder: Path) -> None:
    """nltk data with one synset, {car, auto} in English and {car, bus} in French."""
    corpus_ = folder / "corpora" / "wordnet"
    corpus_.mkdir(parents=True)
    header = "  1 WordNet 3.0 Copyright 2006\n"
    offset = f"{len(header):08d}"
    files = {f"data.{kind}": header for kind in ("adj", "adv", "verb")}
    files |= {f"index.{kind}": "" for kind in ("adj", "adv", "verb")}
    files |= {f"{kind}.exc": "" for kind in ("adj", "adv", "noun", "verb")}
    files["cntlist.rev"] = ""
    files["lexnames"] = "00\tadj.all\t3\n01\tnoun.artifact\t1\n"
    files["data.noun"] = f"{header}{offset} 01 n 02 car 0 auto 0 000 | a motor vehicle\n"
    files["index.noun"] = "".join(f"{w} n 1 0 1 0 {offset}\n" for w in ("auto", "car"))
    files["index.sense"] = "".join(f"{w}%1:01:00:: {offset} 1 0\n" for w in ("auto", "car"))
    for name, content in files.items():
        (corpus_ / name).write_text(content)
    for omw in ("omw-1.4", "omw-2.0"):  # which one nltk reads depends on its version
        french = folder / "corpora" / omw / "fra"
        french.mkdir(parents=True)
        (french / "wn-data-fra.tab").write_text(
            f"# tiny\tfra\n{offset}-n\tfra:lemma\tcar\n{offset}-n\tfra:lemma\tbus\n"
        )


@pytest.mark.parametrize(
    ("lang", "hypothesis", "reference", "present"),
    [
        ("en", "the auto stops here", "the car stops here", "syn:wordnet-eng"),
        ("fr", "le car roule vite", "le bus roule vite", "syn:wordnet-fra"),
        ("de", "das Auto steht hier", "das Fahrzeug steht hier", None),
    ],
)
def test_synonyms_count_only_where_a_wordnet_is_present(
    lang: str, hypothesis: str, reference: str, present: str | None, tmp_path: Path
) -> None:
    write(tmp_path / "hyp", [hypothesis])
    write(tmp_path / "ref", [reference])
    tiny_wordnet(tmp_path / "data")
    with_data = meteor(tmp_path, lang, tmp_path / "data")
    without = meteor(tmp_path, lang, tmp_path / "nothing")
    assert (present or "syn:no") in with_data["signature"]
    assert "syn:no" in without["signature"]
    gain = with_data["systems"]["hyp"]["mean"] - without["systems"]["hyp"]["mean"]
    assert (gain > 1) == (present is not None)


def test_english_synonyms_equal_nltk(tmp_path: Path) -> None:
    hypothesis, reference = "An auto stops near another car", "One car stopped near the auto"
    write(tmp_path / "hyp", [hypothesis])
    write(tmp_path / "ref", [reference])
    tiny_wordnet(tmp_path)
    code = (
        "from nltk.translate.meteor_score import meteor_score; "
        "from nltk.stem.snowball import SnowballStemmer; "
        f"print(meteor_score([{reference.split()}], {hypothesis.split()}, "
        "stemmer=SnowballStemmer('english')))"
    )
    nltk = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "NLTK_DATA": str(tmp_path)},
        check=True,
    )
    ours = meteor(tmp_path, "en", tmp_path)["systems"]["hyp"]["mean"]
    assert ours == pytest.approx(100 * float(nltk.stdout), abs=1e-10)
