"""Every command and snippet of README and docs is run, or says why not."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
import snippets
from snippets import ROOT, Block

BIN = Path(sys.executable).parent
#: What a training needs to be over soon: the commands stay as they are written.
SOON = {"QUICK_STEPS": "100", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
#: The environment that runs the tests is not installed anew, however old it is.
SOON["MAKEFLAGS"] = "--old-file=.venv/.base --old-file=.venv/.installed"


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
    (folder / ".venv").symlink_to(BIN.parent)
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
    for page in snippets.pages():
        if page in snippets.TESTED_ELSEWHERE:
            continue
        for block in snippets.blocks(page):
            if block.word == "file":
                (folder / block.rest).write_text(block.text, encoding="utf-8")
            elif block.word == "run" and block.language == "sh":
                run(block, folder)
    for picture in ("mine.png", "mine.html", "mine.pdf", "posthoc.png", "heads.svg", "figure4.pdf"):
        assert (folder / picture).stat().st_size > 1000, picture
