"""``onmt_evsoftmax doctor``: is everything in place, and if not, what to do."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import NamedTuple

import torch

import onmt_evsoftmax
import onmt_evsoftmax_hook
from onmt_evsoftmax import kernels
from onmt_evsoftmax.kernels import triton
from onmt_evsoftmax.normalizers import registry
from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.report.console import command_line
from onmt_evsoftmax.report.table import as_json

# Run in a new interpreter, as every stock command is: does importing the toolkit bring the plugin?
_PROBE = """
import importlib, sys
importlib.import_module(sys.argv[1])
print("live" if sys.argv[2] in sys.modules else "asleep")
"""


class Toolkit(NamedTuple):
    """A toolkit that this package joins, and the versions that it is made for.

    Importing ``wakes`` has the start-up hook load ``plugin``, which ``commands`` then know. One
    that is joined by hand has none of the three.
    """

    name: str
    oldest: tuple[int, ...]
    newest: tuple[int, ...]
    versions: str
    wakes: str = ""
    plugin: str = ""
    commands: str = ""


TOOLKITS = (
    Toolkit("OpenNMT-py", versions.OLDEST, versions.NEWEST, "3.0.4 to 3.5.1",
            "onmt", "onmt_evsoftmax.opennmt", "the stock onmt_* commands"),
    Toolkit("eole", (0, 6), (0, 6), "0.6",
            "eole.config.models", "onmt_evsoftmax.eole", "eole train and eole predict"),
    Toolkit("transformers", (5,), (5,), "5"),
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``advice`` is empty when all is well."""

    what: str
    found: str
    advice: str = ""


def findings() -> Iterator[Finding]:
    """Look at everything."""
    python = platform.python_version()
    yield _checked("Python", python, (3, 11), (3, 12), "use Python 3.11 or 3.12")
    yield Finding("onmt_evsoftmax", onmt_evsoftmax.__version__)
    yield _checked("torch", torch.__version__, (2, 6), (), "pip install 'torch>=2.6'")
    yield from _toolkits()
    yield from _normalizers()
    yield from _kernels()
    gpus = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    threads = f"CPU, number of threads: {torch.get_num_threads()}"
    yield Finding("devices", ", ".join([threads, *gpus]))
    converter = _version("ctranslate2")
    yield Finding("CTranslate2", f"{converter}, for softmax models only" if converter else "absent")


def _checked(
    what: str, version: str, oldest: tuple[int, ...], newest: tuple[int, ...], advice: str
) -> Finding:
    """The advice is for a version before the oldest or after the newest, if there is one."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    fine = numbers >= oldest and (not newest or numbers[: len(newest)] <= newest)
    return Finding(what, version, "" if fine else advice)


def _toolkits() -> Iterator[Finding]:
    """Every toolkit, of which one is enough, and whether the hook reaches those that need it."""
    found = {toolkit: _version(toolkit.name) for toolkit in TOOLKITS}
    installed = [toolkit for toolkit, version in found.items() if version]
    for toolkit, version in found.items():
        if version is None:
            yield Finding(toolkit.name, "not installed")
        elif toolkit.plugin or installed == [toolkit]:
            advice = f"use version {toolkit.versions}"
            yield _checked(toolkit.name, version, toolkit.oldest, toolkit.newest, advice)
        else:  # it may be there for something else
            yield Finding(toolkit.name, version)
    if not installed:
        yield Finding("toolkits", "none", "pip install OpenNMT-py==3.0.4, eole or transformers")
    for toolkit in installed:
        if toolkit.plugin:
            yield _hook(toolkit)


def _hook(toolkit: Toolkit) -> Finding:
    what = "start-up hook"
    if not onmt_evsoftmax_hook.wanted():
        return Finding(what, "switched off", "unset the environment variable ONMT_EVSOFTMAX")
    probe = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROBE, toolkit.wakes, toolkit.plugin],
        capture_output=True, text=True,
    )  # fmt: skip
    if probe.returncode:
        error = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding(what, f"importing {toolkit.name} fails: {error}", "repair that first")
    if "live" not in probe.stdout:
        return Finding(what, "asleep", "install the package with pip: `pip install .`")
    return Finding(what, f"live: {toolkit.commands} know this package")


def _normalizers() -> Iterator[Finding]:
    names = [
        record.name if record.package is None else f"{record.name} ({record.package})"
        for record in registry.records()
    ]
    yield Finding("normalizers", ", ".join(names))
    for name, error in registry.broken_entry_points().items():
        yield Finding(f"normalizer {name}", error, "repair or uninstall that package")


def _kernels() -> Iterator[Finding]:
    """What computes attention, by the normalizers that have a kernel."""
    names = dict.fromkeys(record.row_kernel for record in registry.own_records())
    on_cpu = [name for name in names if name and kernels.serves(name, torch.empty(1))]
    found = f"{kernels.backend()}: {', '.join(on_cpu)}" if on_cpu else "none: torch computes"
    yield Finding("kernels on CPU", found)
    gpu = torch.cuda.is_available()
    if not triton.available():
        advice = "pip install triton" if gpu else ""
        yield Finding("kernels on GPU", "none: Triton is not installed, torch computes", advice)
    else:
        version = _version("triton") or "of torch"
        yield Finding("kernels on GPU", f"Triton {version}" + ("" if gpu else ", but no GPU here"))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Print the findings; 1 if something is wrong."""
    parser = command_line(
        "Check versions, the start-up hook, kernels and devices; exit 1 if something is wrong.",
        "example: onmt_evsoftmax doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    arguments = parser.parse_args(argv)
    found = []
    for finding in findings():
        found.append(finding)
        if not arguments.json:
            print(f"{finding.what:18} {finding.found}", flush=True)
            if finding.advice:
                print(f"{'':18} → {finding.advice}", flush=True)
    wrong = [finding for finding in found if finding.advice]
    if arguments.json:
        print(as_json([asdict(finding) for finding in found]), end="")
    else:
        count = f"{len(wrong)} problem" + ("s" if len(wrong) > 1 else "")
        print(f"\n{count if wrong else 'all is well'}")
    return 1 if wrong else 0
