"""Running the attention commands as a user would."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from onmt_evsoftmax.attended import count_attended as count
from onmt_evsoftmax.plot import plot_attention as plot
from onmt_evsoftmax.trace import trace_attention as trace

ROOT = Path(__file__).parent.parent
COMMANDS = {
    "onmt_trace_attention": trace,
    "onmt_count_attended": count,
    "onmt_plot_attention": plot,
}


def tool(
    name: str, arguments: str, cwd: Path, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run tools/NAME.py in a process of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / f"{name}.py"), *shlex.split(arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def run(line: str) -> int:
    """Run a command line inside this process, which is faster."""
    name, *arguments = shlex.split(line)
    return COMMANDS[name].main(arguments)


def examples(name: str) -> list[str]:
    text = COMMANDS[name].make_parser().format_help().replace("\\\n", " ")
    found = [line.strip()[2:] for line in text.splitlines() if line.strip().startswith("$ ")]
    assert found
    return found
