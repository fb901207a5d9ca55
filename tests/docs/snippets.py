"""The fenced blocks of our pages, and what a comment before each says about running it.

<!-- run -->             a test runs it: shell commands in order, Python prompts as doctests
<!-- run: fails -->      the same, and it must fail with exit code 2 and one sentence
<!-- file: NAME -->      the block is written to that file before what follows is run
<!-- part: of what -->   a part of something that another test runs whole
<!-- shown: why -->      is not run, for that reason; its options are still checked
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Languages that somebody might type or paste; a block of another one is only read.
RUNNABLE = ("sh", "bash", "console", "python", "pycon", "yaml", "toml", "c")
#: Pages that have a test of their own.
TESTED_ELSEWHERE = {
    "docs/extending.md": "tests/docs/test_extending.py",
    "docs/transformers.md": "tests/transformers_models/test_transformers_guide.py",
    "docs/eole.md": "tests/eole_models/test_eole_guide.py",
    "docs/import.md": "tests/trace/test_import_attention.py",
}
FENCE = re.compile(
    r"(?:^<!-- (?P<word>\w+)(?:: (?P<rest>[^\n]*?))? -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language and text, and what is to be done with it."""

    page: str
    line: int
    language: str
    text: str
    word: str
    rest: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Every page that is written by hand and has commands, in the order a reader takes them."""
    names = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")]
    made = [name for name in names if not name.startswith("docs/generated/")]
    first = ["README.md", "docs/index.md", "docs/guides/train.md", "docs/guides/finetune.md"]
    first += ["docs/guides/posthoc.md", "docs/guides/count.md", "docs/guides/figures.md"]
    recipes = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("recipes/*/README.md"))
    last = ["recipes/README.md", *recipes, "data/README.md"]
    return [*first, *sorted(set(made) - set(first)), *last]


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a piece of shell, as words; `…` stands for options left out."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("|&;"):
                words += [] if word == "…" else [word]
            elif words:
                yield words
                words = []


def blocks(page: str) -> list[Block]:
    """Its blocks that are in a language one runs."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text[: match.start()].count("\n") + 1,
            match["language"],
            match["text"],
            match["word"] or "",
            match["rest"] or "",
        )
        for match in FENCE.finditer(text)
        if match["language"] in RUNNABLE
    ]
