"""The benchmark on a GPU: rows, attention and memory, each result checked before it is timed.

Beside every ratio stands what the cost model of :mod:`onmt_evsoftmax.kernels.triton.cost` predicted
for it, if the model has this GPU's data sheet. All of this also runs on a CPU, where it is tested.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention.sparse_attention import sparse_attention
from onmt_evsoftmax.bench.timing import Result, compare, ratios
from onmt_evsoftmax.kernels import triton
from onmt_evsoftmax.kernels.triton import serving
from onmt_evsoftmax.report.console import UserError

DEVICE = "cuda"
PEERS = {"rows": "torch.softmax", "attention": "torch SDPA"}
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ENTRIES = 2**25  # of all rows of a case
QUERIES, SIZE = 2**17, 64  # of all heads of a case; numbers of a head
COLUMNS = (("bf16", 64), ("bf16", 1024), ("fp32", 1024), ("bf16", 32000))
LENGTHS = (512, 2048, 8192, 32768)
LONGEST_EXPLICIT = 2048
#: How far a result may be from the reference: what is rounded to eight bits, and what is not.
TOLERANCE = {"bf16": 2e-2, "fp32": 1e-5}

Function = Callable[..., Tensor]
#: (cost model, device, variant) → what the model's ``ratio_of_passes`` takes.
Passes = Callable[[Any, Any, "Variant"], Any]


class Variant(NamedTuple):
    """Something to measure: what computes it, the definition, and the kernel to predict it from."""

    compute: Function
    reference: Function
    kernel: str | None = None
    dropout: bool = False


def check() -> None:
    """Refuse to measure where there is no GPU."""
    if not torch.cuda.is_available():
        raise UserError("bench: torch sees no GPU here; leave --device cuda out")


def row_cases() -> list[tuple[str, int]]:
    """(type, columns)."""
    return list(COLUMNS)


def lengths() -> list[int]:
    """Of queries and keys."""
    return list(LENGTHS)


def attention_cases() -> list[tuple[int, float]]:
    """(length, dropout)."""
    return [*((length, 0.0) for length in LENGTHS), (LENGTHS[1], 0.1)]


# --- what is measured -----------------------------------------------------------------------------


def _installed(name: str) -> Any:
    """Another package, if it is there and loads."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def row_variants() -> dict[str, Variant]:
    """Ours, torch's softmax, and the entmax library's."""
    softmax = partial(torch.softmax, dim=-1)
    found = {PEERS["rows"]: Variant(softmax, softmax)}
    library = _installed("entmax")
    for record in serving.served("row_kernel").values():
        found[record.name] = Variant(record.function, record.function, record.row_kernel)
        other = getattr(library, record.name, None)
        if callable(other):
            found[f"entmax library: {record.name}"] = Variant(other, record.function)
    return found


def attention_variants(length: int, dropout: float) -> dict[str, Variant]:
    """Ours, explicitly too while that fits, and other people's, which have no dropout."""
    peer = partial(scaled_dot_product_attention, is_causal=True, dropout_p=dropout)
    softmax = partial(sparse_attention, normalizer="softmax", is_causal=True)
    found = {PEERS["attention"]: Variant(peer, softmax)}
    for record in serving.served("attention_kernel").values():
        ours = partial(sparse_attention, normalizer=record, is_causal=True, dropout_p=dropout)
        found[record.name] = Variant(ours, ours, record.attention_kernel, dropout > 0)
        if length <= LONGEST_EXPLICIT:
            explicit = partial(ours, backend="explicit")
            found[f"{record.name}, explicit"] = Variant(explicit, explicit)
    flex = _installed("torch.nn.attention.flex_attention")
    if flex is not None and DEVICE == "cuda" and not dropout:
        found["FlexAttention: softmax"] = Variant(_flex(flex, length), softmax)
    adasplash = _installed("adasplash")
    if adasplash is not None and not dropout:
        entmax15 = partial(sparse_attention, normalizer="entmax15", is_causal=True)
        theirs = partial(adasplash.adasplash, alpha=1.5, is_causal=True)
        found["AdaSplash: entmax-1.5"] = Variant(theirs, entmax15)
    return found


def _flex(module: Any, length: int) -> Function:
    """Causal softmax attention by FlexAttention, compiled."""
    mask = module.create_block_mask(
        lambda b, h, i, j: i >= j, None, None, length, length, device=DEVICE
    )
    return partial(torch.compile(module.flex_attention), block_mask=mask)


# --- measuring ------------------------------------------------------------------------------------


def measure_rows(case: tuple[str, int], seconds: float, seed: int) -> Iterator[Result]:
    """All row normalizers on one shape."""
    name, columns = case
    rows = ENTRIES // columns
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, columns, generator=generator).to(DEVICE, TYPES[name])
    variants, notes = _checked(row_variants(), (scores[:64],), name)
    times = compare(_functions(variants), (scores,), torch.randn_like(scores), seconds)

    def passes(cost: Any, device: Any, variant: Variant) -> Any:
        return cost.row_passes(variant.kernel, rows, columns, scores.element_size())

    text = f"{rows}×{columns} {name}"
    yield from _results("rows", text, variants, notes, times, passes)


def measure_attention(case: tuple[int, float], seconds: float, seed: int) -> Iterator[Result]:
    """Causal bfloat16 attention of one length."""
    length, dropout = case
    query, key, value = _tensors(length, seed)
    heads = min(query.size(1), 2)
    few = tuple(t[:, :heads, : min(length, 512)] for t in (query, key, value))
    # Without dropout, which no reference repeats.
    _, notes = _checked(attention_variants(few[0].size(2), 0.0), few, "bf16")
    variants = {
        name: variant
        for name, variant in attention_variants(length, dropout).items()
        if name not in notes
    }
    times = compare(_functions(variants), (query, key, value), torch.randn_like(value), seconds, 3)

    def passes(cost: Any, device: Any, variant: Variant) -> Any:
        shape = cost.Shape(query.size(1), length, length, SIZE, causal=True)
        return cost.attention_passes(variant.kernel, shape, device, dropout=variant.dropout)

    text = f"1,{query.size(1)},{length}" + (f" dropout {dropout}" if dropout else "")
    yield from _results("attention", text, variants, notes, times, passes)


def measure_memory(length: int, seconds: float, seed: int) -> Iterator[Result]:
    """Peak memory beyond the inputs; ``seconds`` do not matter."""
    inputs = _tensors(length, seed)
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    found = {}
    for name, variant in attention_variants(length, 0.0).items():
        try:
            with torch.no_grad():
                forward = _peak(partial(variant.compute, *inputs))
            found[name] = (forward, _peak(partial(_both, variant.compute, leaves)))
        except (RuntimeError, ValueError):  # what cannot be computed was reported by attention
            continue
    case = f"1,{inputs[0].size(1)},{length}"
    yield from ratios(found, PEERS["attention"], "memory", case, unit="memory")


def _both(function: Function, leaves: list[Tensor]) -> object:
    return torch.autograd.grad(function(*leaves).sum(), leaves)


def _peak(call: Callable[[], object]) -> float:
    """Bytes that the device's allocator gave out during a call (1 where it does not count)."""
    if DEVICE != "cuda":
        call()
        return 1.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return float(max(torch.cuda.max_memory_allocated() - before, 1))


def _tensors(length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (1, max(1, QUERIES // length), length, SIZE)
    query, key, value = (
        torch.randn(shape, generator=generator).to(DEVICE, torch.bfloat16) for _ in range(3)
    )
    return query, key, value


def _functions(variants: dict[str, Variant]) -> dict[str, Function]:
    return {name: variant.compute for name, variant in variants.items()}


# --- checking -------------------------------------------------------------------------------------


def _checked(
    variants: dict[str, Variant], inputs: tuple[Tensor, ...], kind: str
) -> tuple[dict[str, Variant], dict[str, str]]:
    """Those whose results and gradients are right, and what is wrong with the others."""
    right, wrong = {}, {}
    for name, variant in variants.items():
        try:
            error = _error(variant, inputs)
        except Exception as problem:  # somebody else's code, on a GPU that nobody here has seen
            wrong[name] = f"failed: {type(problem).__name__}: {problem}".splitlines()[0][:120]
            continue
        if error <= TOLERANCE[kind]:
            right[name] = variant
        else:
            wrong[name] = f"WRONG by {error:.1e}, not timed"
    if not set(PEERS.values()) & right.keys():
        raise UserError(f"bench: the peer itself does not compute here: {wrong}")
    return right, wrong


def _error(variant: Variant, inputs: tuple[Tensor, ...]) -> float:
    """The largest difference from the definition in float64, of results and gradients."""
    found = _outcome(variant.compute, inputs)
    with kernels.using("torch"):
        expected = _outcome(variant.reference, tuple(tensor.double() for tensor in inputs))
    return max(
        (got.double() - want).abs().max().item() / max(1.0, want.abs().max().item())
        if got.isfinite().all()
        else math.inf
        for got, want in zip(found, expected, strict=True)
    )


def _outcome(function: Function, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight)]


# --- results --------------------------------------------------------------------------------------


def _results(
    part: str,
    case: str,
    variants: dict[str, Variant],
    notes: dict[str, str],
    times: dict[str, tuple[float, float]],
    passes: Passes,
) -> Iterator[Result]:
    for result in ratios(times, PEERS[part], part, case):
        predicted = _predict(variants[result.name], passes)
        yield dataclasses.replace(result, predicted=predicted)
    for name, note in notes.items():
        yield Result(part, case, name, PEERS[part], None, None, note=note)


def _predict(variant: Variant, passes: Passes) -> str:
    """What the cost model says of one of our kernels, if it has this GPU's data sheet."""
    if variant.kernel is None or not triton.available():
        return ""
    from onmt_evsoftmax.kernels.triton import cost

    device = cost.device_named(device_name())
    if device is None:
        return ""
    return cost.ratio_of_passes(passes(cost, device, variant), device)


def device_name() -> str:
    """The GPU's name, as its driver has it."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def machine() -> dict[str, Any]:
    """What a report on a GPU needs besides what every report has."""
    about: dict[str, Any] = {"GPU": device_name(), "CUDA": torch.version.cuda}
    if torch.cuda.is_available():
        about["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
    about["triton"] = getattr(_installed("triton"), "__version__", None)
    about["adasplash"] = getattr(_installed("adasplash"), "__version__", None)
    return about
