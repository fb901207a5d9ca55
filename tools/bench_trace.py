"""Memory and speed while a long text is traced, counted and put on a page.

    python tools/bench_trace.py --model M.pt --src FILE --tgt FILE --sentences 50000

The lines are repeated up to that number. Resident memory is read ten times on the way; it should
not grow with the number of sentences. Times are wall times, to be compared with each other.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onmt_evsoftmax.attended import Counts
from onmt_evsoftmax.plot.page import write_page
from onmt_evsoftmax.report.console import UserError, command_line, run, whole
from onmt_evsoftmax.trace import TraceReader, TraceWriter, encode
from onmt_evsoftmax.trace.source import Source
from onmt_evsoftmax.trace.text import check_text
from onmt_evsoftmax.trace.tracer import Tracer


def memory() -> float:
    """Resident memory of this process in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    raise UserError("resident memory is read from /proc, which this system does not have")


class Meter:
    """Watches one step: memory at every tenth, time at the end."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.done, self.start = 0, time.perf_counter()
        self.seen: list[float] = []

    def watch(self, items: Iterable) -> Iterator:
        for item in items:
            yield item
            self.step()

    def step(self) -> None:
        self.done += 1
        if self.done % max(1, self.total // 10) == 0:
            self.seen.append(memory())
            # At once, so that a run that is cut off has said something.
            print(
                f"{self.name}: {self.done} sentences, {self.seen[-1]:.1f} MB",
                file=sys.stderr,
                flush=True,
            )

    def report(self) -> None:
        spent = 1e3 * (time.perf_counter() - self.start) / self.done
        print(f"{self.name:<8} {spent:8.2f} ms a sentence; resident MB at every tenth:")
        print("        ", *(f"{value:6.0f}" for value in self.seen))
        growth = self.seen[-1] - self.seen[0]
        print(f"         from the first tenth to the last: {growth:+.1f} MB")


def repeat(path: str, count: int, folder: Path) -> str:
    lines = Path(path).read_bytes().removesuffix(b"\n").split(b"\n")
    copy = folder / Path(path).name
    with copy.open("wb") as file:
        file.writelines(line + b"\n" for line in itertools.islice(itertools.cycle(lines), count))
    return str(copy)


def main(argv: list[str] | None = None) -> int:
    parser = command_line(__doc__, "")
    for name in ("model", "src", "tgt"):
        parser.add_argument(f"--{name}", required=True, metavar="FILE")
    count = whole(10, 10**8)
    parser.add_argument("--sentences", type=count, default=50_000, metavar="N")
    parser.add_argument(
        "--page", type=count, default=1000, metavar="N", help="sentences of the page"
    )
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder, total = Path(name), options.sentences
        source = check_text(repeat(options.src, total, folder))
        target = check_text(repeat(options.tgt, total, folder))
        tracer = Tracer(options.model)
        header = tracer.header(source, target)
        meter = Meter("trace", total)
        with TraceWriter(folder / "out.trace", header) as trace:
            for record in meter.watch(tracer.records(source, target, str.split)):
                trace.append(encode(record))
            trace.finish()
        meter.report()
        size = (folder / "out.trace").stat().st_size
        print(f"         {size / 1e6:.1f} MB on disk, {size / total / 1e3:.1f} kB a sentence")
        with TraceReader(folder / "out.trace") as reader:
            counts, meter = Counts(header), Meter("count", total)
            for record in meter.watch(reader):
                counts.add(record)
            meter.report()
            lines = range(1, min(options.page, total) + 1)
            meter = Meter("page", len(lines))
            write_page(folder / "page.html", [Source("model", reader)], lines, progress=meter.step)
            meter.report()
        print(f"         {(folder / 'page.html').stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    run(main)
