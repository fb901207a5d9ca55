"""Random command lines over random files: every command must do its work or say one sentence.

Options are read off the commands' own parsers, so that a new one is covered by being there. Files
are good ones of every kind and the same damaged: empty, blank, cut, other encodings, other types,
huge lines. A case is right if the command exits with 0, or with 2 and one sentence; no file that
it was not told to write may differ afterwards, and after an error none at all.

    python tests/fuzzing.py --cases 2000 --subprocesses 200
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import traces

from onmt_evsoftmax import __main__ as door
from onmt_evsoftmax.report import console
from onmt_evsoftmax.report.console import UserError

LEGACY = Path(__file__).parent / "legacy"
#: Longer than any honest case of these small files takes.
PATIENCE = 120

#: Commands and verbs that train, measure or start other programs: minutes each, and tested
#: elsewhere.
TOO_LONG = {
    ("vae", "cvae"), ("vae", "ssvae"), ("vae", "vqvae"),
    ("corpora", "run"),
    ("doctor",),
}  # fmt: skip
#: These write several files, each whole, and keep those that are done when a later one fails.
PIECEMEAL = {("corpora", "tokenise"), ("corpora", "encode"), ("corpora", "fetch")}
#: What keeps a command short, unless the case says otherwise itself.
BRIEF = {
    ("properties",): ["--trials", "1"],
    ("score",): ["--resamples", "3"],
    ("bench",): ["--seconds", "0"],
    ("trace",): ["--max-length", "2"],
    ("count",): ["--max-length", "2"],
}

#: What belongs there, by the option's name: half of the values, so that commands get to work.
FITTING = {
    "traces": ["ev.trace", "soft.trace", "n=ev.trace"],
    "align": ["gold.align"],
    "hyp": ["a.txt", "b.txt", "n=b.txt", "n=blank.txt"],
    "ref": ["a.txt"],
    "model": ["m.pt", "n=m.pt"],
    "src": ["s.en"],
    "tgt": ["s.de"],
    "subword_model": ["codes"],
    "scores": ["scores.json"],
    "attended": ["softmax=counts.json", "evsoftmax=counts.json"],
    "yaml": ["a.yaml"],
    "folders": ["job"],
    "title": ["a title"],
    "attention_normalizer": ["sparsemax", "evsoftmax"],
    "names": ["a.txt"],
    "config": ["a.yaml"],
    "data_dir": ["folder", "."],
    "detokenise": ["de"],
    "sources": ["recipe.yaml"],
    "files": ["a.txt", "b.txt"],
    "source": ["a.txt", "a.tgz::a.txt", "a.gz"],
    "target": ["b.txt", "a.zip::a.txt"],
    "sentence": ["1", "2", "1-3"],
    "layer": ["1", "last", "all"],
    "head": ["1", "mean", "all"],
    "lang": ["de", "en"],
    "metrics": ["bleu", "ter", "chrf"],
    "baseline": ["a"],
    "max_length": ["2", "3"],
    "beam_size": ["1", "2"],
    "gpu": ["-1"],
}

SLOW = {("properties",)}
ENDINGS = (".txt", ".md", ".tex", ".json", ".png", ".svg", ".pdf", ".html", ".pt", ".tsv", ".trace",
           ".en")  # fmt: skip
TEXT = "ein Mann reitet\nzwei Hunde\nder Junge spielt mit dem Ball .\n"
WILD_NUMBERS = ("0", "-1", "-3", "1", "2", "3", "7", "1.5", "nan", "inf", "1e400", "x", "", "٣",
                "9" * 30, "9" * 5000, "0x10", "1_0", "--")  # fmt: skip
WILD_WORDS = ("", "x", "de", "en", "xx", "de-AT", "all", "last", "1-3", "mean", "3-1", "1,2", ",",
              "bleu", "ter", "softmax", "evsoftmax", "evsofmax", "a", "-", "=", "%", "\N{SNOWMAN}",
              "n" * 300, "a\nb", "\udcff", "../..", "*", "${HOME}")  # fmt: skip


def fill(folder: Path) -> None:
    """Good files of every kind that a command reads, and the same damaged."""
    good: dict[str, bytes] = {
        "a.txt": TEXT.encode(),
        "b.txt": TEXT.replace("Hunde", "Katzen").encode(),
        "pieces.txt": "▁ein ▁Ma nn\n▁zwei ▁H unde\n▁der .\n".encode(),
        "gold.align": b"0-0 1?1\n0-0\n\n",
        "codes": b"#version: 0.2\ne i\nei n</w>\n",
        "a.yaml": b"heads: 8\ndropout: [0.1]\n",
        "recipe.yaml": b"archives: {a.txt: ['http://127.0.0.1:9/a.txt']}\n",
        "counts.json": json.dumps(_counts()).encode(),
        "scores.json": json.dumps(_scores()).encode(),
        "a.gz": gzip.compress(TEXT.encode()),
        "m.pt": (LEGACY / "evsoftmax_step_30.pt").read_bytes(),
        "s.en": (LEGACY / "t.en").read_bytes(),
        "s.de": (LEGACY / "t.de").read_bytes(),
    }
    for name, data in good.items():
        (folder / name).write_bytes(data)
    for name, count in (("ev.trace", 3), ("soft.trace", 3), ("one.trace", 1)):
        traces.write(folder / name, count, "softmax" if name == "soft.trace" else "evsoftmax")
    with tarfile.open(folder / "a.tgz", "w:gz") as tar:
        tar.add(folder / "a.txt", "in/a.txt")
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(folder / "a.txt", "in/a.txt")
    dice = random.Random(0)
    for name in ("ev.trace", "m.pt", "counts.json", "a.gz", "a.zip"):
        data = bytearray((folder / name).read_bytes())
        stem, suffix = os.path.splitext(name)
        (folder / f"{stem}-cut{suffix}").write_bytes(data[: len(data) * 2 // 3])
        for _ in range(20):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        (folder / f"{stem}-bits{suffix}").write_bytes(data)
    odd: dict[str, bytes] = {
        "empty": b"",
        "blank.txt": b" \n\n \n",
        "noise.bin": dice.randbytes(3000),
        "noise.trace": b"onmt_evsoftmax trace 1\n" + dice.randbytes(3000),
        "head.trace": b"onmt_evsoftmax trace 1\n{}\n",
        "latin.txt": TEXT.replace("spielt", "übt").encode("latin-1"),
        "utf16.txt": TEXT.encode("utf-16"),
        "bom.txt": TEXT.encode("utf-8-sig"),
        "nul.txt": TEXT.replace(" ", "\0").encode(),
        "dos.txt": TEXT.replace("\n", "\r\n").encode(),
        "separators.txt": "a\u2028b\x85c\x1cd\ne\nf\n".encode(),
        "huge.txt": b"word " * 40_000 + b"\n\n\n",
        "long.txt": b"a\n" * 5000,
        "null.json": b"null",
        "list.json": b"[1, {}]",
        "deep.json": b"[" * 100_000,
        "nan.json": b'{"systems": {"a": ["x"]}, "metrics": [{"name": "B", "systems": {"a": '
        b'{"mean": NaN}}}]}',
        "wild.yaml": b"a: &a [*a]\n? {x: 1}\n: 2\n",
        "tab.yaml": b"\tx: 1\n",
        "x=1.txt": TEXT.encode(),
        "two words.txt": TEXT.encode(),
        "-dash.txt": TEXT.encode(),
        "ünï 你好.txt": TEXT.encode(),
    }
    for name, data in odd.items():
        (folder / name).write_bytes(data)
    for name, data in (("job", json.dumps(_job())), ("job-list", "[]"), ("job-cut", '{"seed')):
        (folder / name).mkdir()
        (folder / name / "results.json").write_text(data)
    (folder / "folder").mkdir()
    (folder / "folder.txt").mkdir()
    (folder / "folder" / "a.txt").write_text(TEXT)
    (folder / "link.txt").symlink_to("a.txt")
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "dangling.txt").symlink_to("nowhere.txt")


def _counts() -> list[dict[str, Any]]:
    mean = {"mean": 2.5}
    kinds = {"context": {"all": {"attended": mean, "available": mean}}}
    return [{"kinds": kinds, "paper": mean}]


def _job() -> dict[str, Any]:
    metrics = {"softmax": {"metrics": {"w1": 1.5, "support": 4}}}
    return {"experiment": "cvae", "seed": 1, "methods": metrics}


def _scores() -> dict[str, Any]:
    systems = {name: {"mean": 30.0, "standard_error": None} for name in ("softmax", "evsoftmax")}
    return {
        "systems": {name: ["a.txt"] for name in systems},
        "baseline": "softmax",
        "metrics": [{"name": "BLEU", "systems": systems}],
    }


# --- what there is to call ------------------------------------------------------------------------


class _Captured(Exception):
    """Carries the parser out of a command's ``main``."""


def parser_of(main: Callable[[Sequence[str]], Any]) -> argparse.ArgumentParser:
    """The parser that a command makes, caught before it parses."""

    def caught(self: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise _Captured(self)

    original = console._Parser.parse_args
    console._Parser.parse_args = caught  # type: ignore[method-assign]
    try:
        main([])
    except _Captured as found:
        parser: argparse.ArgumentParser = found.args[0]
        return parser
    finally:
        console._Parser.parse_args = original  # type: ignore[method-assign]
    raise AssertionError(f"{main} parses nothing")


def main_of(command: str) -> Callable[[Sequence[str]], Any]:
    main: Callable[[Sequence[str]], Any] = importlib.import_module(
        f"onmt_evsoftmax.{door.COMMANDS[command][0]}"
    ).main
    return main


def every_command() -> list[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """(words that call it, its parser) of every command and verb that is not too long."""
    _shrink_bench()
    found: list[tuple[tuple[str, ...], argparse.ArgumentParser]] = []
    for name in door.COMMANDS:
        parser = parser_of(main_of(name))
        verbs = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if verbs:
            found += [((name, verb), sub) for verb, sub in verbs[0].choices.items()]
        else:
            found.append(((name,), parser))
    return [(words, parser) for words, parser in found if words not in TOO_LONG]


def _shrink_bench() -> None:
    """Leave the parts of the benchmark that start no programs, on tensors that take no time."""
    from onmt_evsoftmax.bench import attention, rows, suite

    rows.SHAPES = ((8, 32),)
    attention.SHAPES = ((2, 2, 16),)
    attention.DENSITY_SHAPE = (1, 2, 64)
    for name in {"length", "memory", "endtoend"} & suite.PARTS.keys():
        del suite.PARTS[name]


# --- random cases ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One command line, and which of its words name outputs."""

    command: tuple[str, ...]
    arguments: tuple[str, ...]
    outputs: frozenset[str]


def file_names() -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        fill(Path(name))
        return sorted(os.listdir(name))


def _is_output(action: argparse.Action) -> bool:
    return action.dest in ("output", "sentences") or "-o" in action.option_strings


def _sensible(action: argparse.Action, dice: random.Random) -> str:
    """What a careful user would write for one option."""
    if _is_output(action):
        # The help of -o lists the endings that it takes.
        told = re.findall(r"\.[a-z]+\b", f"{action.help or ''} {action.metavar or ''}")
        place = f"{dice.choice(['out', 'new/out', 'ünï out'])}{dice.randrange(1000)}"
        return f"{place}{dice.choice(told or ENDINGS)}"
    if action.choices is not None:
        return str(dice.choice(list(action.choices)))
    if action.dest in FITTING:
        return dice.choice(FITTING[action.dest])
    if action.type is not None and action.type is not Path:
        return dice.choice("123")
    return dice.choice(["a.txt", "b.txt"])


def _wild(action: argparse.Action, files: list[str], dice: random.Random) -> str:
    """What nobody should write there, or only a hostile user."""
    if action.type is not None and action.type is not Path and dice.random() < 0.8:
        return dice.choice(WILD_NUMBERS)
    file = dice.choice([*files, "missing.txt", "folder/a.txt", "a.txt/b.txt", "folder/"])
    ways = [file, file, file, f"{dice.choice('abc')}={file}", f"{file}::a.txt"]
    if _is_output(action):
        places = ["out", "folder/out", "a.txt/out"]
        ways.append(f"{dice.choice(places)}{dice.choice([*ENDINGS, '', '.xyz'])}")
    else:
        ways.append(dice.choice(WILD_WORDS))
    return dice.choice(ways)


def _count(action: argparse.Action, dice: random.Random) -> int:
    if action.nargs is None or isinstance(action.nargs, int):
        return action.nargs or 1
    return dice.choice({"?": [0, 1], "*": [0, 1, 1, 1, 2, 2, 3]}.get(action.nargs, [1, 1, 2, 3]))


def make_case(commands: list, files: list[str], dice: random.Random) -> Case:
    """A random command line of a random command, careful or careless."""
    words, parser = dice.choice(commands)
    if words in SLOW and dice.random() < 0.8:
        words, parser = dice.choice(commands)
    wildness = dice.choice([0.0, 0.03, 0.1, 0.3, 0.7])
    positional: list[str] = []
    options: list[list[str]] = []
    outputs: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._VersionAction):
            continue
        chance = 1 - wildness / 4 if action.required else 0.6 if _is_output(action) else 0.15
        if action.option_strings and dice.random() > chance:
            continue
        if action.nargs == 0:
            options.append([action.option_strings[-1]])
            continue
        values = [_sensible(action, dice) for _ in range(_count(action, dice))]
        if not isinstance(action.nargs, int):
            values = list(dict.fromkeys(values))  # a careful user names nothing twice
        values = [_wild(action, files, dice) if dice.random() < wildness else v for v in values]
        if _is_output(action):
            outputs.update(values)
        if action.option_strings:
            options.append([dice.choice(action.option_strings), *values])
        else:
            positional += values
    if dice.random() < wildness / 10:
        options.append([dice.choice(["--nonsense", "-q", "--output=", "--help", "--version"])])
    dice.shuffle(options)
    given = {option[0] for option in options}
    brief = [] if given & set(BRIEF.get(words, ())) else BRIEF.get(words, [])
    arguments = [*positional, *(word for option in options for word in option), *brief]
    return Case(words, tuple(arguments), frozenset(outputs))


def cases() -> st.SearchStrategy[Case]:
    """Random command lines for hypothesis."""
    commands, files = every_command(), file_names()
    dice = st.randoms(use_true_random=True)
    return dice.map(lambda chosen: make_case(commands, files, chosen))


# --- running and judging --------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    """Name → bytes of everything below a folder that is a file."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


class Sandbox:
    """A folder of files that is the same before every case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.template = folder.with_name(f"{folder.name}.template")
        self.codes: Counter[int] = Counter()
        self.template.mkdir(parents=True)
        fill(self.template)
        self.before = contents(self.template)
        self.reset()

    def reset(self) -> None:
        """All files as they were."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder, symlinks=True)

    def check(self, case: Case, code: int, message: str) -> list[str]:
        """What is wrong with how a case ended; the files are as before again."""
        self.codes[code] += 1
        problems = []
        after = contents(self.folder)
        changed = {
            name for name in {*after, *self.before} if after.get(name) != self.before.get(name)
        }
        if code == 2:
            if not message.strip() or "\n" in message.strip() or len(message) > 3000:
                problems.append(f"not one sentence: {message[:300]!r}")
            # A trace that was interrupted, or a download, goes on at the next call.
            kept = {name for name in changed if name.endswith(".part")}
            if case.command in PIECEMEAL:
                kept |= changed - self.before.keys()
            if changed - kept:
                problems.append(f"exit code 2, but changed {sorted(changed - kept)}")
        elif code == 0:
            allowed = {os.path.realpath(self.folder / name) for name in case.outputs}
            for name in changed & set(self.before):
                if os.path.realpath(self.folder / name) not in allowed:
                    problems.append(f"{name} was changed, which is no output")
        else:
            problems.append(f"exit code {code}")
        if changed or after.keys() != self.before.keys():
            self.reset()
        return problems


class Hangs(BaseException):
    """A case took longer than PATIENCE."""


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hangs

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)


def run_inside(case: Case, sandbox: Sandbox) -> list[str]:
    """Run a case in this process; what is wrong with how it ended."""
    here = os.getcwd()
    os.chdir(sandbox.folder)
    out, err = io.StringIO(), io.StringIO()
    code, message = 0, ""
    try:
        with (
            _patience(), warnings.catch_warnings(),
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            command, *verb = case.command
            code = main_of(command)([*verb, *case.arguments]) or 0
            out.getvalue().encode("utf-8")
    except UserError as error:
        code, message = 2, str(error).replace("\n", r"\n")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except Hangs:
        return ["takes too long"]
    except BaseException as error:  # anything else is what a user would see as a traceback
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [
            f for f in traceback.extract_tb(error.__traceback__) if "onmt_evsoftmax" in f.filename
        ]
        place = ours[-1] if ours else last
        where = f"{Path(place.filename).name}:{place.lineno}"
        sandbox.reset()
        return [f"{type(error).__name__} at {where}: {str(error)[:200]}"]
    finally:
        os.chdir(here)
    return sandbox.check(case, code, message)


def run_outside(case: Case, sandbox: Sandbox) -> list[str]:
    """Run a case as a program of its own; what is wrong with how it ended."""
    words = [w.encode("utf-8", "surrogateescape") for w in (*case.command, *case.arguments)]
    try:
        done = subprocess.run(
            [sys.executable.encode(), b"-W", b"ignore", b"-m", b"onmt_evsoftmax", *words],
            cwd=sandbox.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(LEGACY.parents[1])},
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ["takes too long"]
    told = done.stderr.decode("utf-8", "replace")
    lines = [line for line in told.splitlines() if not line.startswith(("warning: ", "note: "))]
    if "Traceback" in told:
        sandbox.reset()
        return [f"a traceback: {lines[-1][:200]}"]
    message = "\n".join(line for line in lines if ": error: " in line or done.returncode == 2)
    return sandbox.check(case, done.returncode, message)


def fuzz(count: int, outside: int, seed: int, sandbox: Sandbox) -> tuple[Counter[str], dict]:
    """Run ``count`` cases, ``outside`` of them as programs: what was run, and what was wrong."""
    ran: Counter[str] = Counter()
    wrong: dict[str, list[Case]] = {}
    every = count // outside if outside else 0

    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), derandomize=False,
    )  # fmt: skip
    @given(cases())
    def one(case: Case) -> None:
        number = sum(ran.values())
        # The benchmark is cut short in this process only.
        program = every and number % every == every - 1 and case.command != ("bench",)
        ran[" ".join(case.command)] += 1
        for problem in (run_outside if program else run_inside)(case, sandbox):
            if problem not in wrong:
                line = " ".join(map(repr, (*case.command, *case.arguments)))
                print(f"{number}: {problem}\n    {line[:1500]}", flush=True)
            wrong.setdefault(problem, []).append(case)

    from hypothesis import seed as seeded

    seeded(seed)(one)()
    return ran, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--subprocesses", type=int, default=0, help="how many of them are programs")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        begin = time.monotonic()
        sandbox = Sandbox(Path(name) / "box")
        ran, wrong = fuzz(options.cases, options.subprocesses, options.seed, sandbox)
    print(f"\nseed {options.seed}: {sum(ran.values())} cases in {time.monotonic() - begin:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(ran.items())))
    print(", ".join(f"exit code {code}: {count}" for code, count in sandbox.codes.items()))
    print(f"{sum(map(len, wrong.values()))} cases wrong, in {len(wrong)} ways")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
