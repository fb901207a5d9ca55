"""A recipe's ``run.sh``: its options become one call of Snakemake, which knows the steps."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from onmt_evsoftmax.corpora import recipe, runs
from onmt_evsoftmax.report.console import UserError, whole

EXAMPLE = """Interrupt it at any time; the same command continues where it stopped.

example:
  $ {0} --normalizer softmax --normalizer evsoftmax --data-dir ~/corpora"""
#: Rules of the Snakefile that a run may end at.
STAGES = ("prepare", "pretrain", "train", "average", "translate", "count")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``run.sh``: those of ``prepare.sh`` and more."""
    add = parser.add_argument
    add("recipe", type=Path, help=argparse.SUPPRESS)
    recipe.add_options(parser)
    add(
        "--normalizer", action="append", metavar="NAME",
        help="what turns attention scores into probabilities; repeat it to compare several "
        "(default: as in recipe.yaml). posthoc is the softmax model made sparse at test time only",
    )  # fmt: skip
    add(
        "--seed", action="append", type=whole(), metavar="N",
        help="of initialisation, order of data and dropout; may be repeated (default: 1)",
    )  # fmt: skip
    add("--pretrained", metavar="FILE.pt", help="fine-tune this checkpoint")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of train.yaml; may be repeated",
    )
    add("--until", "--only", choices=STAGES, help="end after this stage")
    add(
        "--parallel",
        type=whole(1),
        metavar="N",
        help="models that train at the same time (default: as in recipe.yaml)",
    )
    add("--gpus", type=whole(), help="GPUs of each training; 0: the CPU")


def run(args: argparse.Namespace) -> int:
    """Check the options, call Snakemake, end it in order; then show the table."""
    found = recipe.chosen(args.recipe, args)
    config = _config(args, found)
    wanted = {key: config[key] for key in recipe.CHANGEABLE if key in config}
    wanted["settings"] = runs.changes(config["settings"])
    runs.check_settings(recipe.Recipe.read(found.folder, wanted), args.output)
    program = shutil.which("snakemake") or shutil.which(
        "snakemake", path=str(Path(sys.executable).parent)
    )
    if program is None:
        raise UserError("the program snakemake is missing; run 'make install'")
    command = [
        program, "--snakefile", str(found.folder.parent / "study" / "Snakefile"),
        "--cores", str(args.jobs), "--quiet", "host", "reason",
        *(["--resources", f"gpu={config['gpus']}"] if config["gpus"] else []),
        *(["--until", args.until] if args.until else []),
        "--config", *(f"{key}={json.dumps(value)}" for key, value in config.items()),
    ]  # fmt: skip
    if args.dry_run:
        with tempfile.TemporaryDirectory() as folder:  # Snakemake would make the output folder
            place = str(args.output if args.output.is_dir() else folder)
            return _supervised([*command[:1], "--dry-run", "--printshellcmds", "--directory", place,
                                *command[1:]])  # fmt: skip
    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {args.output}: {error.strerror}") from error
    code = _supervised([*command[:1], "--directory", str(args.output), *command[1:]])
    if code == 0 and not args.until:
        _show(args.output)
    return code


def _config(args: argparse.Namespace, found: recipe.Recipe) -> dict[str, Any]:
    """What the Snakefile is told; the recipe has the rest."""
    names = args.normalizer or found.normalizers
    runs.check_normalizers(names)
    changes = runs.changes(args.set)
    settings = {**found.settings, **changes}
    if changes:
        from onmt_evsoftmax.opennmt.keys import check_training_keys

        check_training_keys(changes)
    if args.pretrained and not Path(args.pretrained).is_file():
        raise UserError(f"--pretrained {args.pretrained} does not exist")
    parallel = args.parallel or found.parallel
    gpus = found.gpus if args.gpus is None else args.gpus
    if gpus and (args.parallel or 1) > 1:
        raise UserError(
            f"--parallel {parallel} would put all trainings on the same GPUs: leave it out"
        )
    config: dict[str, Any] = {
        "corpus": str(found.folder),
        "front": True,
        "output": str(args.output),
        "normalizers": names,
        "baseline": names[0],
        "seeds": args.seed or found.seeds,
        "threads": max(1, args.jobs // parallel),
        "prepare_threads": args.jobs,
        "gpus": gpus,
        "source": found.source,
        "target": found.target,
        "subwords": found.subwords,
        "size": found.size,
        "settings": [f"{key}={json.dumps(value)}" for key, value in settings.items()],
        "sources": str(args.sources),
    }
    optional = {
        "data_dir": args.data_dir,
        "subwords_from": found.subwords_from,
        "pretrained": args.pretrained and os.path.abspath(args.pretrained),
    }
    return config | {key: str(value) for key, value in optional.items() if value}


def _supervised(command: list[str]) -> int:
    """Run Snakemake as a process group, which ends with all its jobs when this process is ended.

    Left alone, Snakemake waits for running trainings when it is told to end.
    """
    ended: list[int] = []

    def end(number: int, _: object) -> None:
        ended.append(number)
        os.killpg(process.pid, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    process = subprocess.Popen(command, process_group=0, stdin=subprocess.DEVNULL)
    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not ended:
        return code
    with contextlib.suppress(ProcessLookupError):  # what ignores SIGINT, as background jobs do
        os.killpg(process.pid, signal.SIGTERM)
    return 128 + ended[0]


def _show(output: Path) -> None:
    print((output / "table.txt").read_text(encoding="utf-8"))
    for what, name in (
        ("table", "table.txt (.md, .tex)"),
        ("scores", "scores.txt"),
        ("attention", "attention.png"),
        ("page", "attention.html (open it in a browser)"),
        ("tradeoff", "tradeoff.png"),
    ):
        print(f"{what:<10} {output / name}")
