"""Interleaved timing, and what a measurement is."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers.registry import Target


@dataclass(frozen=True)
class Result:
    """One line of the table: how ``name`` compares with ``peer`` in one case.

    ``forward`` and ``both`` (forward and backward) are ratios: time over the peer's time, memory
    over the peer's memory, or speed over the peer's speed, as ``unit`` says. ``peer_forward`` and
    ``peer_both`` are what they are ratios of, in seconds, bytes or tokens per second.
    """

    part: str
    case: str
    name: str
    peer: str
    forward: float | None
    both: float | None
    unit: str = "time"
    peer_forward: float | None = None
    peer_both: float | None = None
    target_forward: float | None = None
    target_both: float | None = None
    note: str = ""
    predicted: str = ""  # forward / both passes, by a model of the costs

    @property
    def missed(self) -> bool:
        """Whether a target is missed; of speed more is better, of the others less."""
        sign = -1 if self.unit == "tokens per second" else 1
        pairs = ((self.forward, self.target_forward), (self.both, self.target_both))
        return any(
            value is not None and target is not None and sign * value > sign * target
            for value, target in pairs
        )


NO_TARGET: Target = (None, None)


def ratios(
    measured: Mapping[str, tuple[float, float]],
    peer: str,
    part: str,
    case: str,
    target: Callable[[str], Target] = lambda name: NO_TARGET,
    unit: str = "time",
    note: str = "",
) -> Iterator[Result]:
    """What was measured (name → forward, both passes) of everything but the peer, as its ratio."""
    peer_forward, peer_both = measured[peer]
    for name, (forward, both) in measured.items():
        if name == peer:
            continue
        target_forward, target_both = target(name)
        yield Result(
            part=part,
            case=case,
            name=name,
            peer=peer,
            forward=forward / peer_forward,
            both=both / peer_both,
            unit=unit,
            peer_forward=peer_forward,
            peer_both=peer_both,
            target_forward=target_forward,
            target_both=target_both,
            note=note,
        )


def environment(**settings: str) -> dict[str, str]:
    """Of a process that is measured: with as many threads as this one has, and ``settings``."""
    return {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), **settings}


def last_line(text: str) -> str:
    """Of what a failed program said."""
    return (text.strip().splitlines() or ["it did not say why"])[-1]


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    seconds: float,
    least: int = 5,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Median time in seconds of every function; they take turns, every round in another order.

    ``wait`` returns when what a function asked of a device is done. What ran before decides what is
    in the caches and which memory is at hand: in a fixed order one function would always have the
    better predecessor.
    """
    for function in functions.values():
        function()
    wait()
    times: dict[str, list[float]] = {name: [] for name in functions}
    names, order = list(functions), random.Random(0)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or (time.perf_counter() < end and rounds < 1000):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            functions[name]()
            wait()
            times[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: statistics.median(values) for name, values in times.items()}


def passes(
    function: Callable[..., Tensor], leaves: tuple[Tensor, ...], grad: Tensor
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Two calls without arguments: the forward pass alone, and both passes."""

    def forward() -> object:
        with torch.no_grad():
            return function(*leaves)

    def both() -> object:
        return torch.autograd.grad(function(*leaves), leaves, grad)

    return forward, both


def compare(
    functions: Mapping[str, Callable[..., Tensor]],
    inputs: tuple[Tensor, ...],
    grad: Tensor,
    seconds: float,
    least: int = 5,
) -> dict[str, tuple[float, float]]:
    """Name → (median forward time, median time of both passes), all interleaved."""
    leaves = tuple(tensor.detach().requires_grad_() for tensor in inputs)  # the same for all
    calls = {
        f"{name} {i}": call
        for name, function in functions.items()
        for i, call in enumerate(passes(function, leaves, grad))
    }
    wait = torch.cuda.synchronize if grad.is_cuda else lambda: None
    median = interleaved(calls, seconds, least, wait)
    return {name: (median[f"{name} 0"], median[f"{name} 1"]) for name in functions}
