"""Every command and snippet of README, docs and recipes is run, or says why not."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import snippets
from fuzzing import main_of, parser_of
from snippets import ROOT, Block

from onmt_evsoftmax import __main__ as door
from onmt_evsoftmax.corpora import recipe, runs, verbs

BIN = Path(sys.executable).parent
#: What `make install` leaves in an environment that is complete.
STAMPS = (".base", ".installed")
#: What a training needs to be over soon: the commands stay as they are written.
SOON = {"QUICK_STEPS": "100", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@pytest.mark.parametrize("page", snippets.pages())
def test_every_block_says_what_becomes_of_it(page: str) -> None:
    if page in snippets.TESTED_ELSEWHERE:
        assert (ROOT / snippets.TESTED_ELSEWHERE[page]).exists()
        return
    for block in snippets.blocks(page):
        known = {"run": ("", "fails"), "file": None, "part": None, "shown": None}
        assert block.word in known, f"{block.place}: put <!-- run --> or <!-- shown: … --> above"
        allowed = known[block.word]
        assert block.rest in allowed if allowed else len(block.rest) > 3, block.place
        if block.word == "run":
            assert block.language in ("sh", "pycon"), f"{block.place}: is not run by any test"


@pytest.mark.parametrize("page", snippets.pages())
def test_every_fence_names_its_language(page: str) -> None:
    """One without a language would escape these tests; what is no code is `text`."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    fences = [(number, line) for number, line in enumerate(lines, 1) if line.startswith("```")]
    bare = [number for number, line in fences[::2] if line == "```"]
    assert not bare, f"{page}: lines {bare}"


#: Programs that are neither ours nor a toolkit's.
OTHERS = ("cat", "cd", "pip", "touch")


def check_options(words: list[str]) -> None:
    """The program would understand these options; nothing is run."""
    program, *rest = words
    for word in words:
        if "recipes/" in word and not word.startswith("-"):
            assert (ROOT / word[word.index("recipes/") :]).exists(), f"there is no {word}"
    if program in door.SHORT:
        parser_of(main_of(door.SHORT[program])).parse_args(rest)
    elif program == "onmt_evsoftmax":
        parser_of(main_of(rest[0])).parse_args(rest[1:])
    elif program.endswith(("/run.sh", "/prepare.sh")):
        verb = "run" if program.endswith("run.sh") else "options"
        folder = str(ROOT / Path(program).parent)
        options = verbs.build_parser().parse_args([verb, folder, *rest])
        if verb == "run":
            runs.check_normalizers(options.normalizer or [])
            check_keys(options.set)
    elif program == "onmt_train":
        train = pytest.importorskip("onmt.bin.train")
        at = rest.index("-config")  # a file that a command before has written, with what is needed
        given = ["-data", "{}", "-src_vocab", "vocabulary", *rest[:at], *rest[at + 2 :]]
        assert train._get_parser().parse_known_args(given)[1] == []
    elif program == "make":
        check_make(*rest)
    elif program == "snakemake":
        cli = pytest.importorskip("snakemake.cli")
        options = cli.get_argument_parser().parse_args(rest)
        assert Path(str(options.snakefile)).is_relative_to("recipes")
        check_workflow_keys([word.partition("=")[0] for word in options.config or []])
    elif program == "python" and rest[0] == "-m":
        assert rest[1] == "pip"
    elif program == "python":
        told = subprocess.run(
            [sys.executable, ROOT / rest[0], "--help"], capture_output=True, text=True, check=True
        )
        for word in rest[1:]:
            assert not word.startswith("-") or word in told.stdout, word
    else:
        assert program in OTHERS, f"{program}: add it to OTHERS, or check its options"


def check_keys(changes: list[str]) -> None:
    from onmt_evsoftmax.opennmt.keys import check_training_keys

    check_training_keys(runs.changes(changes))


def check_make(target: str, *assignments: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for variable in (word.partition("=")[0] for word in assignments):
        assert f"$({variable})" in makefile, f"make {target} does not know {variable}"


def check_workflow_keys(keys: list[str]) -> None:
    study = ROOT / "recipes" / "study"
    known = "".join(
        path.read_text(encoding="utf-8")
        for path in (study / "Snakefile", study / "vae.smk", study / "config.yaml")
    )
    for key in keys:
        assert key in recipe.CHANGEABLE or re.search(rf"\b{key}\b", known), f"--config {key}="


@pytest.mark.parametrize(
    "block",
    [
        block
        for page in snippets.pages()
        if page not in snippets.TESTED_ELSEWHERE
        for block in snippets.blocks(page)
        if block.word == "shown" and block.language == "sh"
    ],
    ids=lambda block: block.place,
)
def test_commands_that_are_only_shown_have_right_options(block: Block) -> None:
    for words in snippets.commands(block.text):
        try:
            check_options(words)
        except SystemExit as error:  # of argparse, which has said what is wrong
            pytest.fail(f"{block.place}: {' '.join(words)}: exit code {error.code}")


@pytest.mark.parametrize(
    "page",
    [p for p in snippets.pages() if any(b.language == "pycon" for b in snippets.blocks(p))],
)
def test_prompts(page: str) -> None:
    names: dict[str, object] = {}
    for block in snippets.blocks(page):
        if block.language == "pycon" and block.word == "run":
            test = doctest.DocTestParser().get_doctest(
                block.text, names, block.place, page, block.line
            )
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
            told: list[str] = []
            runner.run(test, out=told.append, clear_globs=False)
            assert not told, "".join(told)
            names.update(test.globs)


def checkout(folder: Path) -> Path:
    """What looks like a fresh checkout with its environment, but writes elsewhere."""
    for path in ROOT.iterdir():
        if path.name not in ("runs", "build", ".git", ".venv") and not path.name.endswith("info"):
            (folder / path.name).symlink_to(path)
    (folder / ".venv").mkdir()
    for path in BIN.parent.iterdir():
        if path.name not in STAMPS:
            (folder / ".venv" / path.name).symlink_to(path)
    for name in STAMPS:  # newer than every source, so that make does not install it anew
        (folder / ".venv" / name).touch()
    return folder


def run(block: Block, folder: Path) -> None:
    """A reader's shell: it stops at the first failure, and says which command it was."""
    environment = {**os.environ, **SOON, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    told = f"{block.place}\n{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    if block.rest == "fails":
        assert done.returncode == 2, told
        assert "Traceback" not in done.stderr, told
    else:
        assert done.returncode == 0, told


@pytest.mark.slow
def test_commands(tmp_path: Path) -> None:
    """All pages in the order of a reader, in one checkout, whose files the later ones use."""
    if not (BIN / "onmt_evsoftmax").exists() or not (BIN / ".." / ".installed").exists():
        pytest.skip("the commands need the environment of `make install`")
    folder = checkout(tmp_path)
    # What the recipes' pages go on from: a trained demo (which `make quick` trains) and a VAE.
    (folder / "runs" / "vae").mkdir(parents=True)
    (folder / "runs" / "demo").symlink_to("quick")
    shutil.copytree(ROOT / "docs" / "results" / "cvae", folder / "runs" / "vae" / "cvae")
    for page in snippets.pages():
        if page in snippets.TESTED_ELSEWHERE:
            continue
        for block in snippets.blocks(page):
            if block.word == "file":
                (folder / block.rest).write_text(block.text, encoding="utf-8")
            elif block.word == "run" and block.language == "sh":
                run(block, folder)
    pictures = ["mine.png", "mine.html", "mine.pdf", "posthoc.png", "heads.svg", "figure4.pdf"]
    for picture in [*pictures, "figures/figure2.pdf"]:
        assert (folder / picture).stat().st_size > 1000, picture
