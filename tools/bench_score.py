"""How long onmt_score takes beside sacreBLEU, as a ratio of interleaved runs.

Ours: BLEU, chrF++, TER, ROUGE-1/2/L and METEOR of two systems, paired bootstrap and approximate
randomisation. The peer: sacreBLEU's own command with BLEU, chrF and TER and paired bootstrap of
the same two systems, as many resamples. Both are whole processes, start-up included.

    python tools/bench_score.py                                   # 3000 made-up lines
    python tools/bench_score.py --ref R --base B --hyp H          # your own
"""

import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onmt_evsoftmax.report.console import command_line, run, whole

SCORE = Path(__file__).resolve().with_name("score.py")


def made_up_text(lines: int) -> list[str]:
    """Sentences of 5 to 30 words whose frequencies follow Zipf's law, with umlauts."""
    dice = random.Random(0)
    syllables = [a + b + c for a in "bdfgklmnrst" for b in "aeiouäöü" for c in ("", "n", "r", "ß")]
    words = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(8000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    return [
        " ".join(dice.choices(words, weights, k=dice.randint(5, 30))).capitalize() + "."
        for _ in range(lines)
    ]


def translated(lines: list[str], errors: float, seed: int) -> list[str]:
    """The lines with some words exchanged, dropped or moved."""
    dice = random.Random(seed)
    words = [word for line in lines for word in line.split()]
    result = []
    for line in lines:
        output: list[str] = []
        for word in line.split():
            kind = dice.random() / errors
            if kind < 0.6:
                output.append(dice.choice(words))
            elif 0.8 <= kind < 1:
                output.insert(dice.randint(0, len(output)), word)
            elif kind >= 1:
                output.append(word)
        result.append(" ".join(output))
    return result


def seconds(command: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one run of the command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__, "")
    add, count = parser.add_argument, whole(1, 10**7)
    add("--lines", type=count, default=3000, help="of made-up text (%(default)s)")
    add("--resamples", type=count, default=1000, help="default %(default)s")
    add("--rounds", type=count, default=3, help="runs of each (%(default)s)")
    for name in ("ref", "base", "hyp"):
        add(f"--{name}", metavar="FILE", help="instead of made-up text")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        files = [options.ref, options.base, options.hyp]
        if not all(files):
            reference = made_up_text(options.lines)
            texts = [reference, translated(reference, 0.4, 1), translated(reference, 0.38, 2)]
            files = [str(Path(folder, name)) for name in ("ref.txt", "base.txt", "hyp.txt")]
            for file, lines in zip(files, texts, strict=True):
                Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        compare(*files, str(options.resamples), options.rounds)
    return 0


def compare(ref: str, base: str, hyp: str, resamples: str, rounds: int) -> None:
    ours = ["--hyp", f"base={base}", f"system={hyp}", "--ref", ref, "--resamples", resamples]
    peer = [ref, "-i", base, hyp, "--paired-bs", "--paired-bs-n", resamples, "-f", "text"]
    commands = {
        "onmt_score": [sys.executable, str(SCORE), *ours, "--baseline", "base", "--lang", "de"],
        "sacrebleu": [sys.executable, "-m", "sacrebleu", *peer, "-m", "bleu", "chrf", "ter"],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(1, rounds + 1):
        for name, command in commands.items():
            times[name].append(seconds(command))
            wall, processor = times[name][-1]
            print(f"round {number} {name:<10} {wall:6.2f} s, processor {processor:6.2f} s")
    for kind, unit in enumerate(("wall-clock", "processor")):
        ours, peer = (statistics.median(t[kind] for t in times[name]) for name in commands)
        print(f"{unit} time, onmt_score / sacrebleu: {ours / peer:.2f} (at most 2)")


if __name__ == "__main__":
    run(main)
