"""``onmt_evsoftmax doctor``: is everything in place, and if not, what to do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata

import torch

import onmt_evsoftmax
import onmt_evsoftmax_hook
from onmt_evsoftmax import kernels
from onmt_evsoftmax.kernels import triton
from onmt_evsoftmax.normalizers import registry
from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.report.console import command_line

# Run in a new interpreter, as every stock command is: does importing OpenNMT-py bring the plugin?
_PROBE = """
import sys
import onmt
plugin = sys.modules.get("onmt_evsoftmax.opennmt")
print("live" if plugin is not None and plugin.installed() else "absent")
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``advice`` is empty when all is well."""

    what: str
    found: str
    advice: str = ""


def findings() -> Iterator[Finding]:
    """Look at everything, cheapest first."""
    yield _python()
    yield Finding("onmt_evsoftmax", onmt_evsoftmax.__version__)
    yield _torch()
    opennmt = _opennmt()
    yield opennmt
    yield _hook(opennmt)
    yield from _normalizers()
    yield from _kernels()
    yield Finding("devices", ", ".join(_devices()))
    yield _ctranslate2()


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    fine = (3, 11) <= sys.version_info < (3, 14)
    return Finding("Python", version, "" if fine else "use Python 3.11, 3.12 or 3.13")


def _torch() -> Finding:
    fine = _numbers(torch.__version__) >= (2, 6)
    return Finding("torch", torch.__version__, "" if fine else "pip install 'torch>=2.6'")


def _opennmt() -> Finding:
    version = _version("OpenNMT-py")
    if version is None:
        return Finding("OpenNMT-py", "not installed", "pip install OpenNMT-py==3.0.4")
    if not versions.OLDEST <= _numbers(version) <= versions.NEWEST:
        return Finding("OpenNMT-py", version, "use a version from 3.0.4 to 3.5.1")
    return Finding("OpenNMT-py", version)


def _hook(opennmt: Finding) -> Finding:
    what = "start-up hook"
    if not onmt_evsoftmax_hook.wanted():
        return Finding(what, "switched off", "unset the environment variable ONMT_EVSOFTMAX")
    if opennmt.found == "not installed":
        return Finding(what, "not tried, for want of OpenNMT-py", opennmt.advice)
    probe = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROBE], capture_output=True, text=True
    )
    if probe.returncode:
        error = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding(what, f"importing OpenNMT-py fails: {error}", "repair that first")
    if "live" not in probe.stdout:
        return Finding(what, "asleep", "install the package with pip: `pip install .`")
    return Finding(what, "live: the stock onmt_* commands know this package")


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


def _devices() -> Iterator[str]:
    yield f"CPU, number of threads: {torch.get_num_threads()}"
    for index in range(torch.cuda.device_count()):
        yield torch.cuda.get_device_name(index)


def _ctranslate2() -> Finding:
    version = _version("ctranslate2")
    return Finding("CTranslate2", f"{version}, for softmax models only" if version else "absent")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the findings; 1 if something is wrong."""
    parser = command_line(
        "Check versions, the start-up hook, kernels and devices; exit 1 if something is wrong.",
        "example: onmt_evsoftmax doctor --json",
        "onmt_evsoftmax doctor",
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
        print(json.dumps([asdict(finding) for finding in found], indent=2, ensure_ascii=False))
    else:
        count = f"{len(wrong)} problem" + ("s" if len(wrong) > 1 else "")
        print(f"\n{count if wrong else 'all is well'}")
    return 1 if wrong else 0
