"""Compiles kernels for GPUs that are not here, exactly as the launchers would call them.

Launches are recorded instead of run, with tensors that have no memory, and what was recorded goes
through Triton's compiler and NVIDIA's assembler, which says how many registers a kernel takes and
what it spills. Not in one process with the interpreter.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from onmt_evsoftmax.kernels import Task
from onmt_evsoftmax.kernels.triton import attention, attention_call, rows
from onmt_evsoftmax.kernels.triton.normalizers import NAMES, load
from onmt_evsoftmax.kernels.triton.rows import longest_tile
from onmt_evsoftmax.kernels.triton.tiles import largest_head

#: Compute capability → shared memory that one program may use, in bytes (CUDA's programming guide).
SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}

TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}


class Launch(NamedTuple):
    kernel: JITFunction
    arguments: dict[str, Any]
    options: dict[str, Any]


class Compiled(NamedTuple):
    registers: int
    spilled: int  # bytes
    shared: int  # bytes
    tensor_cores: str  # the instruction that multiplies matrices, or ""


@contextlib.contextmanager
def recorded():
    """Collects launches in a list instead of running them."""
    launches: list[Launch] = []

    def record(self, *args, grid, warmup, **kwargs):
        arguments = dict(zip(self.arg_names, args, strict=False))
        arguments |= {k: v for k, v in kwargs.items() if k in self.arg_names}
        options = {k: v for k, v in kwargs.items() if k not in self.arg_names}
        launches.append(Launch(self, {n: arguments[n] for n in self.arg_names}, options))

    with mock.patch.object(JITFunction, "run", record):
        yield launches


def _source(launch: Launch) -> ASTSource:
    """As the run-time would specialise it: aligned pointers, multiples of 16, ones."""
    signature, constants, attributes = {}, {}, {}
    for index, (name, value) in enumerate(launch.arguments.items()):
        parameter = launch.kernel.params[index]
        kind = None
        if parameter.is_constexpr or value is None:
            constants[name] = value
        elif isinstance(value, torch.Tensor):
            kind = f"*{TYPES[value.dtype]}"
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            kind = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            constants[name] = 1
        else:
            kind = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", 16]]
        signature[name] = kind or "constexpr"
    keys = {(launch.kernel.arg_names.index(n),): v for n, v in constants.items()}
    return ASTSource(launch.kernel, signature, keys, attributes)


def compile_for(launch: Launch, capability: int) -> Compiled:
    """Compile one launch for one target."""
    log = io.StringIO()
    options = {k: v for k, v in launch.options.items() if k in ("num_warps", "num_stages")}
    options["enable_fp_fusion"] = True
    with triton.knobs.nvidia.scope(), contextlib.redirect_stdout(log):
        triton.knobs.nvidia.dump_ptxas_log = True
        with mock.patch.object(triton.knobs.compilation, "always_compile", True):
            kernel = triton.compile(
                _source(launch), target=GPUTarget("cuda", capability, 32), options=options
            )
    said = log.getvalue()
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", said)))
    registers = max(map(int, re.findall(r"Used (\d+) registers", said)))
    found = re.search(r"tcgen05\.mma|wgmma\.mma_async|mma\.sync", kernel.asm["ptx"])
    return Compiled(registers, spilled, kernel.metadata.shared, found[0] if found else "")


def attention_launches(
    normalizer,
    dtype,
    head,
    capability,
    *,
    kind="keys",
    causal=True,
    dropout=True,
    skip=False,
    positions=False,
) -> dict[str, Launch]:
    """The launches of one forward and backward pass: kernel → launch."""

    def empty(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    query, key, value = (empty(2, 8, length, head) for length in (500, 600, 600))
    mask = bias = None
    if kind == "keys":
        mask = empty(2, 1, 1, 600, dtype=torch.bool)
    elif kind == "queries":
        mask, bias = empty(2, 1, 500, 600, dtype=torch.bool), empty(1, 8, 500, 600)
    seed = empty(dtype=torch.int64) if dropout else None
    dropout_p = 0.1 if dropout else 0.0
    terms = (None, None, None, None, seed, 0, causal, 0.125, dropout_p, skip)
    task = Task(normalizer, query, key, value, mask, bias, *terms)
    if positions:
        table = empty(17, head, dtype=torch.float32)
        slopes = empty(2, 8, dtype=torch.float32)
        task = task._replace(relative_keys=table, relative_values=table, slopes=slopes)
    with (
        recorded() as launches,
        mock.patch.object(attention_call, "capability_of", return_value=capability // 10),
    ):
        out, *rows = attention.attention_forward(task)
        attention.attention_backward(out, task, out, *rows)
    return {launch.kernel.__name__: launch for launch in launches}


def row_launches(normalizer, dtype, columns) -> dict[str, Launch]:
    """The launches of rows forward and backward."""
    scores = torch.empty(64, columns, dtype=dtype, device="meta")
    mask = torch.empty(1, columns, dtype=torch.bool, device="meta")
    alpha = torch.empty(64, 1, device="meta") if load(normalizer).per_row else None
    with recorded() as launches:
        p, _ = rows.rows_forward(normalizer, scores, mask, alpha=alpha)
        rows.rows_backward(normalizer, p, p, alpha=alpha, want_alpha=alpha is not None)
    return {launch.kernel.__name__: launch for launch in launches}


class Configuration(NamedTuple):
    """One entry of the table in ``docs/gpu.md``."""

    kernel: str
    normalizer: str
    dtype: str
    size: str  # of heads, or columns of a row
    extras: str  # what is done besides
    launch: Launch

    def tile(self) -> str:
        numbers = self.launch.arguments
        first, second = ("ROWS", "COLUMNS") if "ROWS" in numbers else ("M", "N")
        if "CHUNK" in numbers:
            shape = f"{numbers['CHUNK']}"
        else:
            shape = f"{numbers[first]}×{numbers.get(second, numbers[first])}"
        options = self.launch.options
        return f"{shape} w{options['num_warps']} s{options.get('num_stages', 3)}"


LIGHT, HEAVY = "key mask, causal", "mask per query, bias, causal, dropout"
PLACED = "positions, key mask, causal"
PLACED_HEAVY = "positions, mask per query, bias, causal, dropout"
HEADS = {torch.bfloat16: (64, 128, 256), torch.float32: (64, 128)}


def _kinds(normalizer: str, dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    """What is compiled of a normalizer: name → options of :func:`attention_launches`.

    Tiles that also serve less are compiled with the most that they may have to do.
    """
    kinds: dict[str, dict[str, Any]] = {HEAVY: {"kind": "queries"}}
    if load(normalizer).mean and dtype != torch.float32:
        kinds[LIGHT] = {"dropout": False}
    kinds[PLACED_HEAVY] = {"kind": "queries", "positions": True}
    if load(normalizer).mean:  # the mean in closed form
        kinds[PLACED] = {"dropout": False, "positions": True}
    return kinds


#: Without a mask per query or a bias these do more, or something else.
MEANS = ("mean_thresholds", "distance_totals")


def attention_configurations(capability: int) -> list[Configuration]:
    """Every tile of the table, for every normalizer."""
    found = []
    attending = [name for name in NAMES if load(name).attention_weights is not None]
    for dtype, heads in HEADS.items():
        for head, normalizer in itertools.product(heads, attending):
            for extras, options in _kinds(normalizer, dtype).items():
                positions = "positions" in options
                largest = largest_head(
                    float32=dtype == torch.float32,
                    positions=positions,
                    capability=capability // 10,
                )
                if head > largest:
                    continue
                launches = attention_launches(normalizer, dtype, head, capability, **options)
                found += [
                    Configuration(name, normalizer, TYPES[dtype], str(head), extras, launch)
                    for name, launch in launches.items()
                    if (extras != PLACED or name in MEANS)
                    and (name != "distance_products" or load(normalizer).mean)
                ]
    return found


def row_configurations() -> list[Configuration]:
    """Tiles of many rows and of one, and rows beyond, of every normalizer.

    bfloat16 and float16 are float32 after loading, so float32 and float64 show all there is.
    """
    found = []
    for dtype in (torch.float32, torch.float64):
        for normalizer in NAMES:
            for columns in (64, longest_tile(load(normalizer), dtype == torch.float64), 256000):
                found += [
                    Configuration(name, normalizer, TYPES[dtype], str(columns), "mask", launch)
                    for name, launch in row_launches(normalizer, dtype, columns).items()
                ]
    return found


def configurations(capability: int) -> list[Configuration]:
    """Everything that is shipped for a target."""
    return attention_configurations(capability) + row_configurations()


def in_ci(capability: int, one: Configuration) -> bool:
    """Whether it is compiled for every change: what an A100 runs (without the sizes and types that
    are rare), and attention with heads of 64 for an H100; one normalizer of each kind. With
    position terms, 16 bits and heads of 64."""
    if "rows" in one.kernel:
        return capability == 80 and one.dtype == "fp32"
    if "positions" in one.extras and one.dtype != "bf16":
        return False
    more = capability == 80 and one.dtype == "bf16" and "positions" not in one.extras
    sizes = ("64", "128") if more else ("64",)
    return capability in (80, 90) and one.normalizer != "sparsemax" and one.size in sizes


# --- the tables of the documentation --------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
BEGIN, END = "<!-- {}: make gpu-tables -->\n", "<!-- end -->"


def row_of(configuration: Configuration) -> tuple[str, ...]:
    """What identifies a configuration in the table."""
    return (*configuration[:5], configuration.tile())


def cell(one: Compiled) -> str:
    """Registers, kilobytes of shared memory, and what is spilled, which should be nothing."""
    spills = f", {one.spilled} bytes spilled" if one.spilled else ""
    return f"{one.registers}, {one.shared / 1024:.0f} KB{spills}"


def markdown(results: dict[tuple[str, ...], dict[int, Compiled]]) -> str:
    """``results`` as a table, a column for every target."""
    head = ["kernel", "normalizer", "type", "head or row", "with", "tile"]
    head += [f"sm_{capability}" for capability in SHARED_MEMORY]
    lines = [head, ["---"] * len(head)]
    for row, found in results.items():
        lines.append([*row, *(cell(found[c]) if c in found else "–" for c in SHARED_MEMORY)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def replaced(text: str, name: str, table: str) -> str:
    """The page with another table of that name."""
    before, rest = text.split(BEGIN.format(name))
    return before + BEGIN.format(name) + "\n" + table + "\n\n" + END + rest.split(END, 1)[1]


def main() -> None:
    """Compile everything for every target, and write the tables of ``docs/gpu.md``."""
    from onmt_evsoftmax.kernels.triton import cost

    results: dict[tuple[str, ...], dict[int, Compiled]] = {}
    for capability in SHARED_MEMORY:
        for one in configurations(capability):
            found = compile_for(one.launch, capability)
            print(f"sm_{capability}", *row_of(one), cell(found), sep=" | ", flush=True)
            results.setdefault(row_of(one), {})[capability] = found
    text = replaced(PAGE.read_text(encoding="utf-8"), "registers", markdown(results))
    PAGE.write_text(replaced(text, "predictions", cost.markdown()), encoding="utf-8")


if __name__ == "__main__":
    main()
