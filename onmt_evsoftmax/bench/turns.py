"""Whole programs that are measured against each other, a fraction of a second at a time.

The speed of a machine changes from minute to minute by more than the programs differ. So they all
run at once, but take turns: one runs while the others are stopped (SIGSTOP). What each logs is
recorded with the time, and the time that a program was stopped is not counted.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onmt_evsoftmax.bench.timing import environment, last_line
from onmt_evsoftmax.report.console import UserError

TURN = 0.2  # seconds
POSSIBLE = hasattr(signal, "SIGSTOP")


class Program:
    """A running program that is stopped except in its turns."""

    def __init__(
        self, command: Sequence[str], folder: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self.command = command
        self.turns: list[tuple[float, float]] = []
        self.log: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment() if settings is None else dict(settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # its children stop and go with it
        )
        self._signal(signal.SIGSTOP)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        pipe: Any = self.process.stdout
        for line in pipe:
            self.log.append((time.perf_counter(), line.rstrip("\n")))

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it has just ended
            if self.process.returncode is None:
                os.killpg(self.process.pid, number)

    def run(self, seconds: float) -> bool:
        """Let it go on for a while; whether there is more to do. A failure is a UserError."""
        start = time.perf_counter()
        self._signal(signal.SIGCONT)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGSTOP)
        else:
            self._reader.join()  # what it said last belongs to this turn
        self.turns.append((start, time.perf_counter()))
        if self.process.returncode is None:
            return True
        if self.process.returncode:
            said = last_line("\n".join(line for _, line in self.log))
            raise UserError(f"bench: {Path(self.command[0]).name} failed: {said}")
        return False

    def end(self) -> None:
        """Kill it, if it still runs."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()

    def find(self, pattern: str) -> list[tuple[float, re.Match[str]]]:
        """When it logged a line with this pattern, and what was found; a UserError if never."""
        matches = ((when, re.search(pattern, line)) for when, line in self.log)
        found = [(when, match) for when, match in matches if match]
        if not found:
            name = Path(self.command[0]).name
            raise UserError(f"bench: {name} did not log {pattern!r}, as the versions known here do")
        return found

    def ran(self, start: float, end: float) -> float:
        """Seconds between two times in which it was not stopped."""
        return sum(max(0.0, min(end, b) - max(start, a)) for a, b in self.turns)

    def speed(self, work: float, start: float, end: float) -> float:
        """How much of ``work`` it did a second between two times; a UserError if it did not run."""
        if seconds := self.ran(start, end):
            return work / seconds
        name = Path(self.command[0]).name
        raise UserError(f"bench: {name} had too little to do to be measured; use more --seconds")


def run_in_turns(
    commands: Mapping[str, Sequence[str]],
    folder: Path,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Program]:
    """Run all commands to their end; they alternate in going first.

    Each has its own of ``environments``, by default this one with as many threads.
    """
    programs: dict[str, Program] = {}
    try:
        for name, command in commands.items():
            programs[name] = Program(command, folder, (environments or {}).get(name))
        going = list(programs.values())
        while going:
            going = [program for program in going if program.run(TURN)]
            going.reverse()
    finally:
        for program in programs.values():
            program.end()
    return programs
