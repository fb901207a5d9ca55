"""Table 1 of the paper, measured: which properties each normalizer has, by numerical search.

A property that fails is shown with a counterexample. ``✓*`` is conditional: sparsehourglass is
scale invariant as q → 0 and translation invariant as q → ∞; ev-softmax is Lipschitz only between
points with one support, since it jumps where the support changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers.registry import Normalizer, records, title_of
from onmt_evsoftmax.report.console import command_line, terminal_width, whole
from onmt_evsoftmax.report.table import Table, as_json

Function = Callable[..., Tensor]

TOLERANCE = 1e-6


@dataclass
class Cell:
    """One entry of the table: whether it holds (or a bound), under what condition, or why not."""

    holds: bool
    condition: str | None = None
    bound: float | None = None
    counterexample: str | None = None

    def __str__(self) -> str:
        mark = "✓" if self.holds else "–"
        if self.bound is not None:
            mark = f"{self.bound:.2f}"
        return mark + ("*" if self.condition else "")


def points(trials: int, seed: int) -> Iterator[Tensor]:
    """Batches (trials, K) of scores for K = 2 … 8: several scales, offsets, and many ties."""
    generator = torch.Generator().manual_seed(seed)
    for size in range(2, 9):
        for scale in (0.1, 1.0, 10.0):
            scores = torch.randn(trials, size, generator=generator, dtype=torch.float64) * scale
            yield scores
            yield scores + 5 * scale
            yield (scores * 2).round() / 2  # half of the entries tie


def idempotence(f: Function, scores: Tensor) -> tuple[Tensor, str]:
    """f(f(v)) = f(v)."""
    return (f(f(scores)) - f(scores)).abs().amax(-1), "f(f(v)) ≠ f(v)"


def monotonic(f: Function, scores: Tensor) -> tuple[Tensor, str]:
    """v_i ≥ v_j implies p_i ≥ p_j."""
    ordered = f(scores.sort(-1).values)
    return (ordered[..., :-1] - ordered[..., 1:]).clamp(min=0).amax(-1), "v_i ≥ v_j but p_i < p_j"


def translation(f: Function, scores: Tensor) -> tuple[Tensor, str]:
    """f(v + c) = f(v). The shift is a power of two, so that ties stay ties."""
    return (f(scores + 4.0) - f(scores)).abs().amax(-1), "f(v + 4) ≠ f(v)"


def scale(f: Function, scores: Tensor) -> tuple[Tensor, str]:
    """f(c v) = f(v) for c > 0, where the sum is positive."""
    scores = scores * scores.sum(-1, keepdim=True).sign()
    return (f(scores * 2.0) - f(scores)).abs().amax(-1), "f(2 v) ≠ f(v)"


def full_domain(f: Function, scores: Tensor) -> tuple[Tensor, str]:
    """f(v) is a distribution for every v, however large."""
    p = f(torch.cat([scores, scores * 1e12, scores * 1e-12]))
    error = (p.sum(-1) - 1).abs() + (-p).clamp(min=0).amax(-1)
    return error.nan_to_num(nan=1.0).view(3, -1).amax(0), "f(v) is not a distribution"


PROPERTIES = {
    "idempotence": idempotence,
    "monotonicity": monotonic,
    "translation invariance": translation,
    "scale invariance": scale,
    "full domain": full_domain,
}


def search(f: Function, check: Callable[..., tuple[Tensor, str]], trials: int, seed: int) -> Cell:
    """Look for a point that violates the property; the smallest found is the counterexample."""
    for scores in points(trials, seed):
        error, claim = check(f, scores)
        if (error > TOLERANCE).any():
            v = scores[error.argmax()]
            return Cell(False, counterexample=f"{claim} at v = {_show(v)}, f(v) = {_show(f(v))}")
    return Cell(True)


def lipschitz(record: Normalizer, trials: int, seed: int) -> Cell:
    """Largest singular value of the Jacobian found; and what it says against the stated bound."""
    f: Function = record.function
    jacobians = torch.func.vmap(torch.func.jacrev(f))
    cell = Cell(True, bound=0.0)
    for scores in (*points(max(trials // 10, 1), seed), *_steep_points()):
        norms = torch.linalg.matrix_norm(jacobians(scores), ord=2)
        norm, stated = norms.max().item(), record.lipschitz(scores.size(-1))
        if norm > max(cell.bound or 0.0, stated + TOLERANCE):
            cell.counterexample = (
                f"‖Jacobian‖ = {norm:.3f} at v = {_show(scores[norms.argmax()])}, above the stated "
                f"{stated:.3f}"
            )
        cell.bound = max(cell.bound or 0.0, norm)
    below = torch.tensor([1.0, 0.0, -1.0 - 1e-9], dtype=torch.float64)
    above = torch.tensor([1.0, 0.0, -1.0 + 1e-9], dtype=torch.float64)
    jump = (f(below) - f(above)).norm().item()
    if jump > 1e-3:
        v = _show((below + above) / 2)
        cell.condition = "points with one support"
        cell.counterexample = f"a step of 2e-9 through v = {v} changes p by {jump:.2f}"
    return cell


def _steep_points() -> Iterator[Tensor]:
    """Where random points seldom are: a near tie far above the rest, small and opposite scores."""
    for rest in range(4):
        yield torch.tensor([0.0, 1e-3] + [-30.0] * rest, dtype=torch.float64)[None]
    for size in range(2, 9):
        for radius in (0.01, 0.1, 0.33):
            yield torch.linspace(-radius, radius + 1e-6, size, dtype=torch.float64)[None]


def measured() -> list[Normalizer]:
    """The table's columns: everything but what is another one at test time."""
    return [record for record in records() if record.trained_as is None]


def table(trials: int = 500, seed: int = 0) -> dict[str, dict[str, Cell]]:
    """Property → normalizer → cell."""
    columns = measured()
    cells: dict[str, dict[str, Cell]] = {title: {} for title in PROPERTIES}
    for title, check in PROPERTIES.items():
        for record in columns:
            cell = search(record.function, check, trials, seed)
            if not cell.holds and title in record.limits:
                parameters, limit = record.limits[title]
                if search(partial(record.function, **parameters), check, trials, seed).holds:
                    cell = Cell(True, limit, counterexample=f"in general: {cell.counterexample}")
            cells[title][record.name] = cell
    cells["Lipschitz (measured)"] = {
        record.name: lipschitz(record, trials, seed) for record in columns
    }
    return cells


def _show(v: Tensor) -> str:
    return "(" + ", ".join(f"{x:.4g}" for x in v.tolist()) + ")"


def render(cells: dict[str, dict[str, Cell]]) -> str:
    """The table as text, counterexamples below it."""
    columns = list(next(iter(cells.values())))
    notes = []
    for title, row in cells.items():
        for name, cell in row.items():
            if cell.condition:
                notes.append(f"* {title_of(name)}, {title}: holds for {cell.condition}.")
            if cell.counterexample:
                notes.append(f"  {title_of(name)}, {title}: {cell.counterexample}")
    rows = [[title, *(str(row[name]) for name in columns)] for title, row in cells.items()]
    heads = ["", *map(title_of, columns)]
    return Table("", heads, rows, notes=["", *notes]).text(terminal_width())


def main(argv: Sequence[str] | None = None) -> int:
    """Search and print."""
    parser = command_line(
        __doc__,
        "example: onmt_evsoftmax properties --trials 2000",
    )
    parser.add_argument(
        "--trials",
        type=whole(1, 10**6),
        default=500,
        help="random points for each size, scale and kind (default: 500)",
    )
    parser.add_argument("--seed", type=whole(0, 2**63 - 1), default=0, help="default: 0")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    cells = table(arguments.trials, arguments.seed)
    if arguments.json:
        plain = {
            title: {name: asdict(cell) for name, cell in row.items()}
            for title, row in cells.items()
        }
        print(as_json(plain), end="")
    else:
        print(render(cells), end="")
    return 0
