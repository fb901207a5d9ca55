"""Random command lines over random files: every command must do its work or say one sentence.

Options are read off the commands' own parsers, so that a new one is covered by being there; those
of the stock commands, which have hundreds, are listed. Files are good ones of every kind and the
same damaged (``fuzz_files.py``). A case is right if the command exits with 0, or with 2 and one
sentence; no file that it was not told to write may differ afterwards, and after an error none at
all. Every case runs in a fork of this process, which has imported everything: it has its own
folder, standard streams and exit code, and takes a fraction of the time of a program.

    python tests/fuzzing.py --cases 2000 --stock 400 --programs 100
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pkgutil
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads do not survive a fork
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import fuzz_files

import onmt_evsoftmax
from onmt_evsoftmax import __main__ as door
from onmt_evsoftmax.report import console

ROOT = Path(__file__).parents[1]
#: Seconds; longer than any honest case of these small files takes.
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
WILD_NUMBERS = ("0", "-1", "-3", "1", "2", "3", "7", "1.5", "nan", "inf", "1e400", "x", "", "٣",
                "9" * 30, "9" * 5000, "0x10", "1_0", "--")  # fmt: skip
WILD_WORDS = ("", "x", "de", "en", "xx", "de-AT", "all", "last", "1-3", "mean", "3-1", "1,2", ",",
              "bleu", "ter", "softmax", "evsoftmax", "evsofmax", "a", "-", "=", "%", "\N{SNOWMAN}",
              "n" * 300, "a\nb", "\udcff", "../..", "*", "${HOME}")  # fmt: skip

_NORMALIZERS = ["softmax", "evsoftmax", "sparsemax", "entmax"]
_OURS = {
    "-attention_normalizer": _NORMALIZERS,
    "-context_attention_normalizer": _NORMALIZERS,
    "-attention_alpha": ["1.5", "learn"],
    "-attention_eps": ["1e-6", "0"],
    "-attention_backend": ["auto", "explicit"],
    "-generator_function": ["softmax", "sparsemax"],
}
#: Stock command → option → what a careful user writes. The first ones are always there.
STOCK = {
    "onmt_train": {
        "-config": ["train.yaml"], **_OURS, "-src_vocab": ["v.src"], "-tgt_vocab": ["v.tgt"],
        "-train_from": ["m.pt"], "-train_steps": ["1", "2"], "-seed": ["1"], "-save_model": ["new"],
        "-heads": ["2", "4"], "-batch_size": ["4"], "-dropout": ["0.1"], "-max_grad_norm": ["1"],
    },
    "onmt_translate": {
        "-model": ["m.pt"], "-src": ["s.en"], "-output": ["new.txt"], "-config": ["translate.yaml"],
        "-tgt": ["s.de"], **_OURS, "-beam_size": ["1", "2"], "-max_length": ["3"],
        "-batch_size": ["4"], "-n_best": ["1"], "-gpu": ["-1"], "-seed": ["1"],
    },
    "onmt_build_vocab": {
        "-config": ["vocab.yaml"], "-n_sample": ["-1", "10"], "-src_vocab": ["new/v.src", "v.new"],
        "-tgt_vocab": ["new/v.tgt"], "-num_threads": ["1"], "-seed": ["1"],
    },
    "onmt_average_models": {"-models": ["m.pt", "m2.pt"], "-output": ["new.pt"]},
    "onmt_release_model": {"--model": ["m.pt"], "--output": ["new.pt"]},
}  # fmt: skip
_STOCK_OUTPUTS = {"-save_model", "-output", "--output"}  # and the vocabularies, where they are made
_NEEDED = {"-config", "-models", "--model", "-output", "--output", "-model", "-src"}


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
    for name in {"length", "memory", "endtoend", "busy"} & suite.PARTS.keys():
        del suite.PARTS[name]


# --- random cases ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One command line, and which of its words name outputs."""

    command: tuple[str, ...]
    arguments: tuple[str, ...]
    outputs: frozenset[str]


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


def make_stock_case(files: list[str], dice: random.Random) -> Case:
    """A random command line of a random stock command."""
    command = dice.choice(list(STOCK))
    wildness = dice.choice([0.0, 0.1, 0.3, 0.7])
    words: list[list[str]] = []
    outputs = {"pred.txt"}  # where translations go by default
    for option, fitting in STOCK[command].items():
        needed = option in _NEEDED and not (command == "onmt_translate" and option == "-config")
        if dice.random() > (1 - wildness / 4 if needed else 0.15):
            continue
        value = dice.choice(fitting)
        if dice.random() < wildness:
            wild = [*WILD_NUMBERS, *WILD_WORDS] if fitting[0][0] in "-0123456789" else files
            value = dice.choice(wild if dice.random() < 0.8 else [*files, *WILD_WORDS])
        if option in _STOCK_OUTPUTS or (command == "onmt_build_vocab" and "_vocab" in option):
            outputs.add(value)
        words.append([option, value])
    dice.shuffle(words)
    arguments = tuple(word for option in words for word in option)
    return Case((command,), arguments, frozenset(outputs))


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
        self.said = folder.with_name(f"{folder.name}.stderr")
        self.codes: Counter[int] = Counter()
        self.template.mkdir(parents=True)
        fuzz_files.fill(self.template)
        self.before = contents(self.template)
        self.reset()

    def reset(self) -> None:
        """All files as they were."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder, symlinks=True)

    def run(self, case: Case, start: Callable[[Case, Sandbox], int] | None = None) -> list[str]:
        """Run a case, in a fork unless said otherwise; what is wrong with how it ended."""
        try:
            code = (start or forked)(case, self)
        except TimeoutError:
            self.reset()
            return ["takes too long"]
        return self.check(case, code, self.said.read_text("utf-8", "replace"))

    def check(self, case: Case, code: int, told: str) -> list[str]:
        """What is wrong with how a case ended; the files are as before again."""
        self.codes[code] += 1
        problems = []
        after = contents(self.folder)
        changed = {
            name for name in {*after, *self.before} if after.get(name) != self.before.get(name)
        }
        if "Traceback" in told:
            problems.append(f"a traceback: {_place(told)}{told.strip().splitlines()[-1][:200]}")
        elif code == 2:
            sentences = [line for line in told.splitlines() if re.search(r"\berror: \S", line)]
            if len(sentences) != 1 or len(sentences[0]) > 3000:
                problems.append(f"not one sentence: {told[-300:]!r}")
            # A trace that was interrupted, or a download, goes on at the next call.
            kept = {name for name in changed if name.endswith(".part")}
            if case.command in PIECEMEAL:
                kept |= changed - self.before.keys()
            if case.command[0] in STOCK:  # which open what they write before they begin
                kept |= {name for name in changed if name in case.outputs}
            if changed - kept:
                problems.append(f"exit code 2, but changed {sorted(changed - kept)}")
        elif code == 0:
            allowed = {os.path.realpath(self.folder / name) for name in case.outputs}
            for name in changed & set(self.before):
                if os.path.realpath(self.folder / name) not in allowed:
                    problems.append(f"{name} was changed, which is no output")
        else:
            problems.append(f"exit code {code}: {told[-200:]!r}")
        if changed or after.keys() != self.before.keys():
            self.reset()
        return problems


def _place(told: str) -> str:
    """The last place in a traceback."""
    places = re.findall(r'File ".*?([^/"]+/[^/"]+)", line (\d+)', told)
    return "{}:{}: ".format(*places[-1]) if places else ""


def import_everything() -> None:
    """Everything that a command may import, so that its fork need not."""
    _shrink_bench()
    for module in pkgutil.walk_packages(onmt_evsoftmax.__path__, "onmt_evsoftmax."):
        if "triton" not in module.name and not module.name.endswith(("_native", "__main__")):
            with contextlib.suppress(ModuleNotFoundError):  # a toolkit that is not installed
                importlib.import_module(module.name)
    for name in ("torch._dynamo", "matplotlib.pyplot", "sacrebleu", "nltk", "rouge_score", "PIL"):
        importlib.import_module(name)
    for command in STOCK:
        importlib.import_module(f"onmt.bin.{command.removeprefix('onmt_')}")


def forked(case: Case, sandbox: Sandbox) -> int:
    """Run a case in a fork of this process; its exit code."""
    process = os.fork()
    if process == 0:
        _child(case, sandbox)
    deadline = time.monotonic() + PATIENCE
    ended, status = os.waitpid(process, os.WNOHANG)
    while not ended:
        if time.monotonic() > deadline:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise TimeoutError
        time.sleep(0.002)
        ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status)


def _child(case: Case, sandbox: Sandbox) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.chdir(sandbox.folder)
        said = os.open(sandbox.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number, file in enumerate((os.open(os.devnull, os.O_RDWR),) * 2 + (said,)):
            os.dup2(file, number)
        warnings.simplefilter("ignore")
        if case.command[0] in STOCK:
            sys.argv = [*case.command, *case.arguments]
            name = f"onmt.bin.{case.command[0].removeprefix('onmt_')}"
            sys.exit(importlib.import_module(name).main())
        sys.argv = ["onmt_evsoftmax", *case.command, *case.arguments]
        door.entry()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def program(case: Case, sandbox: Sandbox) -> int:
    """Run a case as a program of its own; its exit code."""
    name, *words = case.command if case.command[0] in STOCK else ("onmt_evsoftmax", *case.command)
    command = [str(Path(sys.executable).with_name(name)), *words, *case.arguments]
    with open(sandbox.said, "wb") as said:
        try:
            done = subprocess.run(
                [word.encode("utf-8", "surrogateescape") for word in command],
                cwd=sandbox.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=said, timeout=PATIENCE, check=False,
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
    return done.returncode


def fuzz(numbers: dict[str, int], seed: int, sandbox: Sandbox) -> tuple[Counter[str], dict]:
    """Run so many cases of each kind: what was run, and what was wrong."""
    ran: Counter[str] = Counter()
    wrong: dict[str, list[Case]] = {}
    import_everything()
    commands, files = every_command(), fuzz_files.names()
    for kind, count in numbers.items():
        for number in range(count):
            dice = random.Random(f"{seed} {kind} {number}")
            stock = kind == "stock" or (kind == "programs" and number % 4 == 0)
            case = make_stock_case(files, dice) if stock else make_case(commands, files, dice)
            if kind == "programs" and case.command in {("bench",), *SLOW}:
                continue  # the benchmark is cut short in this process only
            ran[f"{kind} {' '.join(case.command)}"] += 1
            for problem in sandbox.run(case, program if kind == "programs" else None):
                if problem not in wrong:
                    line = " ".join(map(repr, (*case.command, *case.arguments)))
                    print(f"{kind} {number}: {problem}\n    {line[:1500]}", flush=True)
                wrong.setdefault(problem, []).append(case)
    return ran, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="of our commands (2000)")
    parser.add_argument("--stock", type=int, default=0, help="and so many of the stock commands")
    parser.add_argument("--programs", type=int, default=0, help="and so many that are not forked")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    begin = time.monotonic()
    numbers = {"cases": options.cases, "stock": options.stock, "programs": options.programs}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        sandbox = Sandbox(Path(name) / "box")
        ran, wrong = fuzz(numbers, options.seed, sandbox)
    print(f"\nseed {options.seed}: {sum(ran.values())} cases in {time.monotonic() - begin:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(ran.items())))
    print(", ".join(f"exit code {code}: {count}" for code, count in sandbox.codes.items()))
    print(f"{sum(map(len, wrong.values()))} cases wrong, in {len(wrong)} ways")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
