"""``python -m onmt_evsoftmax COMMAND``: what the package does besides plugging into OpenNMT-py."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from onmt_evsoftmax.report.console import UserError, run, unknown_name

#: Command → (module with a ``main(argv)``, what it does). Modules are imported only when called.
COMMANDS = {
    "bench": ("onmt_evsoftmax.bench.suite", "speed and memory against torch, as ratios"),
    "doctor": ("onmt_evsoftmax.doctor", "check versions, the OpenNMT-py hook, kernels, devices"),
    "figure1": ("onmt_evsoftmax.paper.figure1", "draw the paper's Figure 1 and print its numbers"),
    "properties": (
        "onmt_evsoftmax.paper.properties",
        "check the paper's Table 1 numerically",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hand the rest of the command line to the command that it names."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print("usage: python -m onmt_evsoftmax COMMAND [options]\n\ncommands:")
        for command, (_, help_line) in COMMANDS.items():
            print(f"  {command:<12} {help_line}")
        print("\n`COMMAND --help` says more. The VAE experiments: `python -m onmt_evsoftmax.vae`.")
        return 0
    if name not in COMMANDS:
        raise UserError(unknown_name("command", name, COMMANDS))
    return importlib.import_module(COMMANDS[name][0]).main(rest) or 0


if __name__ == "__main__":
    run(main)
