"""What the kernels should cost on a GPU: bytes and operations from shapes, time from data sheets.

Nothing here was measured. A prediction is a ratio to what torch does on the same device, as a range
between everything overlapping perfectly and nothing overlapping at all. ``docs/gpu.md`` states the
assumptions; a run of the benchmark on a GPU confirms or refutes them.

    python -m onmt_evsoftmax.kernels.triton.cost
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from onmt_evsoftmax.kernels.triton import normalizers, serving


@dataclass(frozen=True)
class Device:
    """Published peak rates, dense: bytes/s and operations/s (a multiply-add is two).

    ``special`` counts exponentials, logarithms and square roots: 16 per multiprocessor and clock.
    """

    name: str
    bandwidth: float
    half: float  # tensor cores, 16-bit operands, float32 sums
    tf32: float
    float32: float
    float64: float
    special: float
    #: Share of ``half`` that FlashAttention-2 is published to reach, forward and backward.
    flash_forward: float
    flash_backward: float


#: NVIDIA's data sheets (A100 80 GB SXM, H100 SXM, RTX 4090). Shares: Dao (2023) has up to 73 % and
#: 63 % of an A100, Shah et al. (2024) have 35 % of an H100; the RTX 4090 is assumed to have the
#: A100's.
DEVICES = (
    Device("A100", 2.039e12, 312e12, 156e12, 19.5e12, 9.7e12, 108 * 16 * 1.41e9, 0.73, 0.63),
    Device("H100", 3.35e12, 989e12, 494e12, 67e12, 34e12, 132 * 16 * 1.83e9, 0.35, 0.35),
    Device("RTX 4090", 1.008e12, 165e12, 82.6e12, 82.6e12, 1.29e12, 128 * 16 * 2.52e9, 0.73, 0.63),
)


class Work(NamedTuple):
    """What a kernel moves and computes."""

    bytes: float = 0.0
    half: float = 0.0
    tf32: float = 0.0
    float32: float = 0.0
    float64: float = 0.0
    special: float = 0.0

    def plus(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Work:
        return Work(*(a * factor for a in self))


class Seconds(NamedTuple):
    """Best and worst: all units at once, or one after the other."""

    best: float
    worst: float

    def over(self, other: Seconds) -> tuple[float, float]:
        """Ratio of like to like."""
        return self.best / other.best, self.worst / other.worst


def seconds(work: Work, device: Device, share: float = 1.0) -> Seconds:
    """Time on a device whose tensor cores reach ``share`` of their peak."""
    parts = (
        work.bytes / device.bandwidth,
        work.half / (device.half * share) + work.tf32 / (device.tf32 * share),
        work.float32 / device.float32,
        work.float64 / device.float64,
        work.special / device.special,
    )
    return Seconds(max(parts), sum(parts))


# --- rows -----------------------------------------------------------------------------------------

#: float32 instructions of an entry outside the passes of a search, as multiply-adds (two operations
#: each): load, compare, shift, weigh, scale, store.
_OUTSIDE = 12


def softmax_rows(rows: int, columns: int, width: int, backward: bool = False) -> Work:
    """torch.softmax: each number is moved once."""
    entries = rows * columns
    moved = (3 if backward else 2) * width
    special = 0 if backward else 1
    return Work(entries * moved, float32=entries * 2 * 8, special=entries * special)


def our_rows(
    normalizer: str,
    rows: int,
    columns: int,
    width: int,
    backward: bool = False,
    *,
    mask: bool = False,
    support: bool = False,
    one_tile: int = 16384,
) -> Work:
    """Our rows. ``width`` is the bytes of a number; a broadcast mask costs nothing, one of its own
    a byte an entry. Rows beyond a tile are read again from memory in every pass."""
    entries = rows * columns
    cost = normalizers.load(normalizer).cost
    if backward:
        reads = 2 if columns <= one_tile else 4
        moved = entries * width * (reads + 1)
        return Work(moved, float32=entries * 2 * 8, special=entries * cost.special_backward)
    reads = 1 if columns <= one_tile else 2 + max(cost.passes, 1)
    return Work(
        entries * (reads * (width + mask) + width + support),
        float32=entries * 2 * (_OUTSIDE + cost.passes * cost.each_pass),
        float64=entries * 2 * cost.float64,
        special=entries * (cost.special + cost.passes * cost.special_each_pass),
    )


# --- attention ------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """Attention of ``heads`` heads in all, 16-bit numbers."""

    heads: int
    queries: int
    keys: int
    size: int
    causal: bool = False

    @property
    def scores(self) -> float:
        return self.heads * self.queries * self.keys * (0.5 if self.causal else 1.0)


def _products(shape: Shape, count: float) -> Work:
    return Work(half=2.0 * shape.scores * shape.size * count)


def _moved(shape: Shape, of_queries: int, of_keys: int) -> Work:
    """Tensors read or written once; keys stay in cache while a head is worked on."""
    return Work(
        2.0 * shape.heads * shape.size * (of_queries * shape.queries + of_keys * shape.keys)
    )


def flash_attention(shape: Shape, backward: bool = False) -> Work:
    """FlashAttention-2: two products forward, five backward; an exponential a score."""
    if backward:
        work = _products(shape, 5).plus(_moved(shape, 5, 4))
        return work.plus(Work(float32=shape.scores * 2 * 8, special=shape.scores))
    work = _products(shape, 2).plus(_moved(shape, 2, 2))
    return work.plus(Work(float32=shape.scores * 2 * 6, special=shape.scores))


def our_attention(
    normalizer: str,
    shape: Shape,
    *,
    backward: bool = False,
    passes: int = 5,
    tiles_kept: float = 1.0,
    dropout: bool = False,
) -> Work:
    """Our attention. ``tiles_kept`` is the share of tiles that are not empty, if those are skipped;
    scores are computed for all. ``passes`` are Newton's, where the threshold is searched."""
    kernel = normalizers.load(normalizer)
    hash_cost = shape.scores * 2 * 9 * dropout
    if backward:
        # Queries: scores, dP, dQ (and the sum of slopes times keys); keys: scores, dP, dV, dK.
        skippable = 2 + 3 if kernel.mean else 3 + 3
        work = _products(shape, 2 + skippable * tiles_kept).plus(_moved(shape, 8, 6))
        special = 2 * shape.scores * kernel.cost.special_attention
        return work.plus(Work(float32=2 * shape.scores * 2 * 12 + 2 * hash_cost, special=special))
    work = _products(shape, 1 + tiles_kept).plus(_moved(shape, 2, 2))
    work = work.plus(Work(float32=shape.scores * 2 * 10 + hash_cost))
    if kernel.mean:
        # Keys are added up once, queries multiplied with the sums, all in float64.
        sums = 2.0 * shape.heads * shape.size * (2 * shape.keys + 2 * shape.queries)
        diagonal = shape.heads * shape.queries * 64 * 2.0 * shape.size if shape.causal else 0.0
        work = work.plus(Work(half=diagonal, float64=sums, special=shape.scores))
        return work.plus(_moved(shape, 1, 1))
    search = _products(shape, 1 + passes).plus(_moved(shape, 1 + passes, 1 + passes))
    return work.plus(search).plus(Work(float32=shape.scores * 2 * (3 + 8 * passes)))


# --- ratios ---------------------------------------------------------------------------------------


def device_named(name: str) -> Device | None:
    """The data sheet of a GPU, by the name that its driver has for it."""
    return next((device for device in DEVICES if device.name in name), None)


#: Our work, the peer's, and the share of the peak that tensor cores reach.
Pass = tuple[Work, Work, float]


def row_passes(normalizer: str, rows: int, columns: int, width: int) -> list[Pass]:
    """Forward and backward, against torch.softmax."""
    shape = (rows, columns, width)
    return [
        (our_rows(normalizer, *shape, backward), softmax_rows(*shape, backward), 1.0)
        for backward in (False, True)
    ]


def attention_passes(normalizer: str, shape: Shape, device: Device, **options: Any) -> list[Pass]:
    """Forward and backward, against FlashAttention-2; options of :func:`our_attention`."""
    return [
        (
            our_attention(normalizer, shape, backward=backward, **options),
            flash_attention(shape, backward),
            share,
        )
        for backward, share in ((False, device.flash_forward), (True, device.flash_backward))
    ]


def ratio_of_passes(passes: list[Pass], device: Device) -> str:
    """Time over the peer's: forward, and both passes together."""
    ours = [seconds(mine, device, share) for mine, _, share in passes]
    peers = [seconds(peer, device, share) for _, peer, share in passes]
    both = [Seconds(*map(sum, zip(*times, strict=True))) for times in (ours, peers)]
    return f"{_range(ours[0].over(peers[0]))} / {_range(both[0].over(both[1]))}"


# --- tables ---------------------------------------------------------------------------------------


def _range(pair: tuple[float, float]) -> str:
    low, high = sorted(pair)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f}–{high:.1f}"


def _each_pass(passes: list[Pass], device: Device) -> str:
    ratios = (seconds(a, device, share).over(seconds(b, device, share)) for a, b, share in passes)
    return " / ".join(map(_range, ratios))


def row_table() -> list[list[str]]:
    """Forward / backward against torch.softmax, per device."""
    lines = []
    for columns, width in ((64, 2), (1024, 2), (1024, 4), (32000, 2)):
        rows = 2**25 // columns
        for normalizer in serving.served("row_kernel"):
            line = [f"{rows} × {columns}", "bf16" if width == 2 else "fp32", normalizer]
            passes = row_passes(normalizer, rows, columns, width)
            lines.append(line + [_each_pass(passes, device) for device in DEVICES])
    return lines


def attention_table() -> list[list[str]]:
    """Forward / backward against FlashAttention-2, per device; causal, heads of 64."""
    lines = []
    cases: list[tuple[str, int, float, bool]] = []  # normalizer, length, tiles kept, dropout
    for normalizer in serving.served("attention_kernel"):
        if normalizers.load(normalizer).mean:
            cases += [(normalizer, length, 1.0, False) for length in (512, 4096, 32768)]
            cases += [(normalizer, 4096, 1.0, True)]
        else:
            cases += [(normalizer, 4096, 1.0, False)]
            cases += [(normalizer, 32768, kept, False) for kept in (1.0, 0.3, 0.1)]
    for normalizer, length, kept, dropout in cases:
        shape = Shape(max(1, 2**19 // length), length, length, 64, causal=True)
        what = f"{kept:.0%}" if kept < 1 else "all"
        line = [str(length), normalizer + (", dropout" if dropout else ""), what]
        for device in DEVICES:
            passes = attention_passes(normalizer, shape, device, tiles_kept=kept, dropout=dropout)
            line.append(_each_pass(passes, device))
        lines.append(line)
    return lines


def markdown() -> str:
    """Both tables, as ``docs/gpu.md`` has them."""
    names = [device.name for device in DEVICES]
    text = []
    for head, body in (
        (["rows", "type", "normalizer", *names], row_table()),
        (["length", "normalizer", "tiles kept", *names], attention_table()),
    ):
        table = [head, ["---"] * len(head), *body]
        text.append("\n".join("| " + " | ".join(line) + " |" for line in table))
    return "\n\n".join(text)


if __name__ == "__main__":
    print(markdown())
