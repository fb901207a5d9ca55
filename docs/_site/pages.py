"""Pages that are made, not written: the commands from their parsers, the notebook from its cells,
and what stands outside ``docs/`` (results, changelog, …). Links between all of them are set right.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import notebook
from docutils import nodes

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
MADE = DOCS / "generated"
#: A file outside docs/, or the notebook → the page that shows it.
SHOWN = {
    "RESULTS.md": "results",
    "CHANGELOG.md": "changelog",
    "SECURITY.md": "security",
    "CONTRIBUTING.md": "contributing",
    "recipes/README.md": "recipes",
    "recipes/demo/README.md": "recipe-demo",
    "recipes/study/README.md": "recipe-study",
    "recipes/vae/README.md": "recipe-vae",
    "data/README.md": "data",
    "docs/quickstart.ipynb": "quickstart",
}
#: What the README is on the site.
FIRST = {"README.md": DOCS / "index.md"}
#: GitHub's way to show one picture by day and another by night; here see `_dark_twins`.
PICTURE = re.compile(
    r'<picture>.*?src="(?P<to>[^"]+)" alt="(?P<alt>[^"]*)".*?</picture>', re.DOTALL
)
LINK = re.compile(
    r"(?P<text>!?\[(?:[^][]|\[[^]]*\])*\])\((?P<to>[^()#\s]+)(?P<anchor>#[^()\s]*)?\)"
)


# --- commands -------------------------------------------------------------------------------------


class Caught(Exception):
    """Carries a parser out of the command that was about to use it."""


def parser_of(module: str) -> argparse.ArgumentParser:
    """The parser that a command's ``main`` makes."""

    def catch(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise Caught(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", catch):
        try:
            importlib.import_module(f"onmt_evsoftmax.{module}").main([])
        except Caught as caught:
            return caught.args[0]
    raise RuntimeError(f"{module}.main made no parser")


def commands() -> str:
    """Every command with its options, as ``--help`` shows them."""
    from onmt_evsoftmax import __main__ as door

    short = {command: program for program, command in door.SHORT.items()}
    lines = [
        "# Commands",
        "",
        "This is what `--help` prints. Each command runs as `onmt_evsoftmax COMMAND`; four of them "
        "are also programs of their own.",
        "",
        "`onmt_train`, `onmt_translate` and the other programs of OpenNMT-py keep their options "
        "and get [a few more](#options-of-onmt-train-and-onmt-translate).",
    ]
    with mock.patch.dict(os.environ, COLUMNS="88", NO_COLOR="1"):
        for title, section in door.SECTIONS.items():
            lines += ["", f"## {title[0].upper()}{title[1:]}"]
            for name, (module, about) in section.items():
                parser = parser_of(module)
                parser.prog = short.get(name, f"onmt_evsoftmax {name}")
                lines += ["", f"### {name}", "", f"{about[0].upper()}{about[1:]}."]
                lines += ["", *_help(parser), *_subcommands(parser)]
    return "\n".join([*lines, "", *_toolkit_options()])


def _help(parser: argparse.ArgumentParser) -> list[str]:
    return ["```text", parser.format_help().rstrip(), "```"]


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                sub.prog = f"{parser.prog} {name}"
                yield from ("", f"#### {parser.prog.split()[-1]} {name}", "", *_help(sub))


def _toolkit_options() -> Iterator[str]:
    import configargparse

    from onmt_evsoftmax.opennmt import options

    parser = configargparse.ArgumentParser()
    options.add_to_model(parser)
    yield from ("## Options of onmt_train and onmt_translate", "")
    yield "Write them as keys of a YAML file or, with `-` in front, on the command line. "
    yield "`onmt_translate` takes them as well, to override those of the checkpoint."
    yield from ("", "| option | what it does |", "|---|---|")
    for action in parser._actions:
        if isinstance(action, options._Written):
            text = action.help.replace("%(default).0s", "").replace("%%", "%").replace("|", "\\|")
            yield f"| `{action.dest}` | {text} |"
    for name in options.EXTENDED:
        text, default = options._HELP[name]
        yield f"| `{name}` | {text} (default: {default}) |"


# --- links ----------------------------------------------------------------------------------------


def relink(text: str, origin: Path, page: Path) -> str:
    """Text of ``origin`` with its relative links right on the site's ``page``.

    What the site does not show keeps its text and loses its link; a link to nothing stays, and the
    build fails on it.
    """

    def replaced(match: re.Match[str]) -> str:
        to = match["to"]
        if re.match(r"[a-z]+:", to):
            return match[0]
        target = (origin.parent / to).resolve()
        if target.is_dir() and (target / "README.md").exists():
            target /= "README.md"
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        if name in SHOWN:
            target = MADE / f"{SHOWN[name]}.md"
        elif name in FIRST:
            target = FIRST[name]
        elif target.exists() and not target.is_relative_to(DOCS):
            return match["text"][1:-1]
        elif target.exists() and target.suffix not in (".md", ".svg", ".png"):
            return match[0]
        return f"{match['text']}({os.path.relpath(target, page.parent)}{match['anchor'] or ''})"

    text = PICTURE.sub(r"![\g<alt>](\g<to>)", text)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(p if p.startswith("```") else LINK.sub(replaced, p) for p in parts)


def _on_read(app: Any, name: str, content: list[str]) -> None:
    page = DOCS / f"{name}.md"
    if MADE not in page.parents:
        content[0] = relink(content[0], page, page)


def _dark_twins(app: Any, tree: nodes.document) -> None:
    """Beside a picture that has a dark variant (NAME-dark.svg), put that one for dark mode."""
    for image in list(tree.findall(nodes.image)):
        light = Path(image["uri"])
        dark = light.with_name(f"{light.stem}-dark{light.suffix}")
        page = Path(app.env.doc2path(app.env.docname))
        if (page.parent / dark).exists():
            twin = image.deepcopy()
            twin["uri"] = dark.as_posix()
            twin["classes"] = ["only-dark"]
            image["classes"] = ["only-light"]
            image.parent.insert(image.parent.index(image) + 1, twin)


# --- all of them ----------------------------------------------------------------------------------


def _write(path: Path, text: str) -> None:
    """Only if it differs: Sphinx reads again what is newer."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def make(app: Any = None) -> None:
    """Write every made page."""
    _write(MADE / "commands.md", commands())
    for name, page in SHOWN.items():
        origin = ROOT / name
        if not origin.exists():
            continue
        text = origin.read_text(encoding="utf-8")
        if origin.suffix == ".ipynb":
            text = notebook.as_markdown(text, MADE / "images")
        _write(MADE / f"{page}.md", relink(text, origin, MADE / f"{page}.md"))


def _copy_playground(app: Any, error: Exception | None) -> None:
    """The files that the playground loads, beside its page."""
    for path in [] if error else (DOCS / "playground").glob("*.[jc]s*"):
        shutil.copy(path, Path(app.outdir) / "playground" / path.name)


def setup(app: Any) -> dict[str, bool]:
    """Make the pages before Sphinx looks for them."""
    app.connect("builder-inited", make)
    app.connect("source-read", _on_read)
    app.connect("build-finished", _copy_playground)
    app.connect("doctree-read", _dark_twins, priority=100)  # before pictures are collected
    return {"parallel_read_safe": True, "parallel_write_safe": True}
