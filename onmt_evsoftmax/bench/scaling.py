"""How time and peak memory of attention grow with the length.

Memory is measured in a process of its own, by Linux's record of the largest resident size, which
can be reset; there every tensor is given back to the system as soon as it is freed.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from onmt_evsoftmax.attention.sparse_attention import sparse_attention
from onmt_evsoftmax.bench.timing import Result, compare, environment, last_line, ratios
from onmt_evsoftmax.normalizers.registry import own_records
from onmt_evsoftmax.report.console import UserError

PEER = "torch SDPA"
HEADS, SIZE = 2, 64
LENGTHS = (512, 1024, 2048, 4096, 8192)
#: Beyond this length the explicit backend takes gigabytes.
LONGEST_EXPLICIT = 4096

VARIANTS: dict[str, Callable[..., Tensor]] = {
    PEER: scaled_dot_product_attention,
    **{
        record.name: partial(sparse_attention, normalizer=record)
        for record in own_records()
        if record.attention_kernel == record.name
    },
    "softmax, in blocks": partial(sparse_attention, normalizer="softmax", backend="blocks"),
    "evsoftmax, explicit": partial(sparse_attention, backend="explicit"),
}


def cases() -> list[int]:
    """The lengths."""
    return list(LENGTHS)


def _variants(length: int) -> dict[str, Callable[..., Tensor]]:
    return {
        name: variant
        for name, variant in VARIANTS.items()
        if length <= LONGEST_EXPLICIT or not name.endswith("explicit")
    }


def _tensors(length: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, HEADS, length, SIZE, generator=generator) for _ in range(3))


def measure(length: int, seconds: float, seed: int) -> Iterator[Result]:
    """Times at one length."""
    inputs = _tensors(length, seed)
    times = compare(_variants(length), inputs, torch.randn_like(inputs[0]), seconds, least=3)
    yield from ratios(times, PEER, "length", f"1,{HEADS},{length}")


def check_memory() -> None:
    """Refuse the part memory where it cannot be measured."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        raise UserError("bench: the part memory needs Linux's /proc; leave it out with --only")


def measure_memory(length: int, seconds: float, seed: int) -> Iterator[Result]:
    """Peak extra memory at one length; ``seconds`` do not matter."""
    found = {}
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    for name in _variants(length):
        done = subprocess.run(
            [sys.executable, "-m", "onmt_evsoftmax.bench.scaling", name, str(length), str(seed)],
            capture_output=True,
            text=True,
            env=environment(**settings),
        )
        if done.returncode:
            raise UserError(f"bench: measuring memory of {name} failed: {last_line(done.stderr)}")
        found[name] = json.loads(done.stdout)
    yield from ratios(found, PEER, "memory", f"1,{HEADS},{length}", unit="memory")


def exponent(lengths: list[int], costs: list[float]) -> float:
    """The power of the length that fits the costs best: slope of their logarithms."""
    x, y = [math.log(length) for length in lengths], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / sum((a - mean_x) ** 2 for a in x)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _peak_of(call: Callable[[], object]) -> int:
    Path("/proc/self/clear_refs").write_text("5")  # resets the largest resident size
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _report_peaks(name: str, length: int, seed: int) -> None:
    """Run in a process of its own: print the bytes that each pass takes beyond its inputs."""
    variant = VARIANTS[name]
    inputs = _tensors(length, seed)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    small = [tensor.clone().requires_grad_() for tensor in _tensors(32, seed)]
    variant(*small).sum().backward()  # threads and code are there before anything is measured
    with torch.no_grad():
        forward = _peak_of(lambda: variant(*inputs))
    print(json.dumps([forward, _peak_of(lambda: variant(*leaves).sum().backward())]))


if __name__ == "__main__":
    _report_peaks(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
