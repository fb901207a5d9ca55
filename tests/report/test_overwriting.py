"""No command replaces what it reads, under whatever name it is told to write there."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
import traces

from onmt_evsoftmax.corpora import verbs
from onmt_evsoftmax.paper import study
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.score import main as score
from onmt_evsoftmax.vae import __main__ as vae

LEGACY = Path(__file__).parents[1] / "legacy"
RECIPES = Path(__file__).parents[2] / "recipes"

#: Command line with {out} where its output goes → the input that this output is.
LINES = {
    "onmt_score --hyp a.txt b.txt --ref r.txt --metrics ter -o {out}": "a.txt b.txt r.txt",
    "onmt_score --hyp n=a.tsv --ref r.txt --metrics ter --sentences {out}": "a.tsv",
    "onmt_count_attended ev.txt --align gold.txt -o {out}": "ev.txt gold.txt",
    "onmt_count_attended n=ev.svg -o {out}": "ev.svg",
    "onmt_plot_attention n=ev.svg --align gold.svg -o {out}": "ev.svg gold.svg",
    "onmt_plot_attention ev.html --align gold.html -o {out}": "ev.html gold.html",
    "onmt_plot_attention ev.pt -o {out}": "ev.pt",
    "onmt_trace_attention --model m.pt --src s.en --tgt s.de -o {out}": "m.pt s.en s.de",
    "onmt_trace_attention --model m.pt --src s.en --tgt x.part -o {out}": "x.part",
    "onmt_trace_attention --model n=m.pt --subword-model codes --src s.en -o {out}": "codes m.pt",
    "onmt_trace_attention --model a=m.pt b=m.pt --src d/a.trace --tgt s.de -o d/": "d/a.trace",
    "onmt_count_attended --model m.pt --src s.txt --tgt s.de -o {out}": "s.txt",
    "study --scores s.json --attended n=c.json -o {out}": "s.json c.json",
    "corpora extract --source a.txt --target b.txt -o {out} x.de": "a.txt b.txt",
    "corpora clean a.txt b.txt --exclude r.txt -o x.en {out}": "a.txt b.txt r.txt",
    "corpora split d/train.en d/b.de --every 2 -o d": "d/train.en",
    "vae table . -o {out}": "results.json",
    "corpora tokenise d/a.trace s.en --lang en -o d": "d/a.trace",
    "corpora encode d/codes --model codes -o .": "codes",
    "corpora settings recipe --normalizer softmax -o recipe/train.yaml": "recipe/train.yaml",
    "corpora fetch --sources checksums.sha256 -o .": "checksums.sha256",
    "corpora fetch --sources s.json -o .": "s.json",
    "corpora decode a.txt --kind bpe -o {out}": "a.txt",
    "corpora learn-bpe a.txt --size 5 -o {out}": "a.txt",
    "corpora vocabulary a.txt b.txt -o {out}": "a.txt b.txt",
}
CASES = [(line, name) for line, inputs in LINES.items() for name in inputs.split()]


def absolute(path: Path) -> Path:
    return path.absolute()


def roundabout(path: Path) -> Path:
    return path.parent / ".." / path.absolute().parent.name / path.name


def linked(path: Path) -> Path:
    link = path.with_name(f"link{path.suffix}")
    link.symlink_to(path.name)
    return link


def hard_linked(path: Path) -> Path:
    link = path.with_name(f"hard{path.suffix}")
    os.link(path, link)
    return link


MAINS: dict[str, Callable[[list[str]], int | None]] = {
    **{name: module.main for name, module in commands.COMMANDS.items()},
    "onmt_score": score,
    "study": study.main,
    "corpora": verbs.main,
    "vae": vae.main,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for name in (
        "a.txt",
        "b.txt",
        "r.txt",
        "a.tsv",
        "s.txt",
        "s.en",
        "s.de",
        "x.part",
        "d/a.trace",
    ):
        (tmp_path / name).write_text("ein Mann\nein Hund\n")
    (tmp_path / "codes").write_text("#version: 0.2\ne i\n")
    for ending in ("txt", "svg", "html"):
        (tmp_path / f"gold.{ending}").write_text("0-0\n1-1\n")
    for ending in ("txt", "svg", "html", "pt"):
        traces.write(tmp_path / f"ev.{ending}", 2)
    (tmp_path / "m.pt").write_bytes((LEGACY / "evsoftmax_step_30.pt").read_bytes())
    (tmp_path / "recipe").mkdir()
    for name in ("recipe.yaml", "train.yaml"):
        shutil.copy(RECIPES / "demo" / name, tmp_path / "recipe" / name)
    for name in ("checksums.sha256", "s.json"):
        (tmp_path / name).write_text(f"archives: {{{name}: ['http://127.0.0.1:9/x']}}\n")
    for name in ("codes", "train.en", "b.de"):
        (tmp_path / "d" / name).write_text("ein Mann\nein Hund\n")
    job = {"experiment": "cvae", "seed": 1, "methods": {"softmax": {"metrics": {"w1": 1.5}}}}
    (tmp_path / "results.json").write_text(json.dumps(job))
    (tmp_path / "c.json").write_text("[]")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(folder: Path, line: str, message: str) -> None:
    before = contents(folder)
    name, *arguments = shlex.split(line)
    with pytest.raises(UserError, match=message):
        MAINS[name](arguments)
    assert contents(folder) == before


@pytest.mark.parametrize(("line", "name"), CASES)
def test_an_output_that_is_an_input_is_refused(folder: Path, line: str, name: str) -> None:
    output = name.removesuffix(".part")
    refused(folder, line.format(out=output), "is the input .*which would be lost")


@pytest.mark.parametrize("rename", [absolute, roundabout, linked, hard_linked])
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("onmt_score --hyp a.txt b.txt --ref r.txt --metrics ter -o {out}", "r.txt"),
        ("onmt_trace_attention --model m.pt --src s.en --tgt s.de -o {out}", "m.pt"),
    ],
)
def test_also_by_another_name(
    folder: Path, line: str, name: str, rename: Callable[[Path], Path]
) -> None:
    output = rename(folder / name)
    refused(folder, line.format(out=output), "is the input .*which would be lost")


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt.part"])
@pytest.mark.parametrize("restart", ["", "--restart"])
def test_a_trace_replaces_nothing_but_a_trace(folder: Path, name: str, restart: str) -> None:
    (folder / name).write_text("years of notes\n")
    line = f"onmt_trace_attention --model m.pt --src s.en --tgt s.de -o notes.txt {restart}"
    refused(folder, line, rf"{name} exists and is not a trace; .*another name")


def test_a_trace_replaces_a_trace_and_an_empty_file(folder: Path) -> None:
    line = "onmt_trace_attention --model m.pt --src s.en --tgt s.de --quiet -o"
    for name in ("ev.txt", "empty"):
        (folder / "empty").touch()
        before = (folder / name).read_bytes()
        assert MAINS["onmt_trace_attention"](shlex.split(f"{line} {name}")[1:]) == 0
        assert (folder / name).read_bytes() != before
