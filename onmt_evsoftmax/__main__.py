"""``onmt_evsoftmax COMMAND``: the one door, and the one list of all commands.

A command's module is imported only when it is called, so that ``--help`` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import onmt_evsoftmax
from onmt_evsoftmax.corpora import VERBS
from onmt_evsoftmax.report import console

#: Section → command → (module with a ``main(argv)``, what it does).
SECTIONS = {
    "look at attention": {
        "trace": ("trace.trace_attention", "write a model's attention to a file, per sentence"),
        "import": ("trace.import_attention", "make a trace from arrays that another toolkit wrote"),
        "count": ("attended.count_attended", "count attended tokens, density, entropy, alignment"),
        "plot": ("plot.plot_attention", "draw heatmaps and bars, or make a page to explore"),
    },
    "translate and compare": {
        "corpora": ("corpora.verbs", "prepare parallel text, in steps listed below"),
        "to-eole": ("eole.convert", "convert a transformer of OpenNMT-py to eole"),
        "score": ("score.score_translations", "BLEU, chrF, TER, ROUGE, METEOR with significance"),
        "study": ("paper.study", "join scores and counts into one table and figure"),
    },
    "the paper's other experiments": {
        "vae": ("vae.__main__", "train the variational autoencoders; tables and figures"),
        "figure1": ("paper.figure1", "draw the normalizers on the simplex and print the numbers"),
        "properties": ("paper.properties", "check the paper's table of properties numerically"),
    },
    "this installation": {
        "doctor": ("doctor", "check versions, the OpenNMT-py hook, normalizers, kernels, devices"),
        "bench": ("bench.suite", "measure speed and memory against torch, as ratios"),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

#: The short forms that are programs of their own.
SHORT = {
    "onmt_trace_attention": "trace",
    "onmt_count_attended": "count",
    "onmt_plot_attention": "plot",
    "onmt_score": "score",
}


def usage() -> str:
    """The help text: every command with one line."""
    lines = ["usage: onmt_evsoftmax COMMAND [options]", "", "Sparse attention for OpenNMT-py."]
    for title, commands in SECTIONS.items():
        lines += [
            "",
            f"{title}:",
            *(f"  {name:<11} {text}" for name, (_, text) in commands.items()),
        ]
    lines += [
        "",
        "steps of `onmt_evsoftmax corpora`, for shell pipelines:",
        *(f"  {name:<20}{text}" for name, text in VERBS.items()),
    ]
    shortcuts = ", ".join(f"{program} ({name})" for program, name in SHORT.items())
    lines += [
        "",
        f"Short forms: {shortcuts}.",
        "`onmt_evsoftmax COMMAND --help` explains a command, with examples.",
        'Completion in bash or zsh: eval "$(register-python-argcomplete onmt_evsoftmax)"',
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Hand the rest of the command line to the command it names."""
    if "_ARGCOMPLETE" in os.environ:
        argv = _words_to_complete()
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(f"onmt_evsoftmax {onmt_evsoftmax.__version__}")
        return 0
    if name not in COMMANDS:
        raise console.UserError(console.unknown_name("command", name, COMMANDS))
    sys.argv[0] = f"onmt_evsoftmax {name}"  # as its usage and errors say
    return importlib.import_module(f"onmt_evsoftmax.{COMMANDS[name][0]}").main(rest) or 0


def _words_to_complete() -> list[str]:
    """The command whose options the shell asks for; without one, our own parser completes names.

    argcomplete starts the program again with the line so far in ``COMP_LINE`` and, in
    ``_ARGCOMPLETE``, the number of words that make up the program's name.
    """
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    words = line.split(" ")
    if len(words) > 2 and words[1] in COMMANDS:
        os.environ["_ARGCOMPLETE"] = str(int(os.environ["_ARGCOMPLETE"]) + 1)
        return [words[1]]
    parser = console.command_line(None, "")
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.parse_args([])
    raise AssertionError("argcomplete ends the process")


def entry() -> NoReturn:
    """The program ``onmt_evsoftmax``."""
    console.run(main)


if __name__ == "__main__":
    entry()
