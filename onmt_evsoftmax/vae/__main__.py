"""``onmt_evsoftmax vae {cvae,ssvae,vqvae,table,figures}``: the VAE experiments."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from onmt_evsoftmax.report.console import UserError, called, command_line, run
from onmt_evsoftmax.vae import configuration, data, distributed
from onmt_evsoftmax.vae.jobs import EXPERIMENTS, Experiment, read_results


def module_of(experiment: str) -> ModuleType:
    """The module of an experiment."""
    return importlib.import_module(f"onmt_evsoftmax.vae.{experiment}")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and do what it says."""
    arguments = _parser().parse_args(argv)
    return arguments.action(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "The VAE experiments of the ev-softmax paper, on the package's normalizers.",
        "example (embedded digits, under three minutes):\n"
        "  onmt_evsoftmax vae cvae -o runs/vae/cvae\n\n"
        "recipes/vae/README.md says more.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, help_line in EXPERIMENTS.items():
        _add_experiment(commands, name, help_line)
    table = commands.add_parser(
        "table",
        help="mean ± standard error over the seeds of finished jobs",
        epilog="example:\n  onmt_evsoftmax vae table runs/vae/cvae -o cvae.tex",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("folders", nargs="+", metavar="FOLDER", help="an experiment's or a job's")
    table.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help=".txt, .md, .tex or .json, may be given several times; standard output if not given",
    )
    table.add_argument("--json", action="store_true", help="print JSON, also beside -o")
    table.set_defaults(action=_table)
    figures = commands.add_parser(
        "figures",
        help="draw the experiment's figures from finished jobs",
        epilog="example:\n  onmt_evsoftmax vae figures runs/vae/cvae --format pdf",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    figures.add_argument("folders", nargs="+", metavar="FOLDER", help="an experiment's or a job's")
    figures.add_argument("-o", "--output", metavar="FOLDER", help="default: the first FOLDER")
    figures.add_argument(
        "--format", nargs="+", default=["png"], choices=("png", "svg", "pdf"), help="default: png"
    )
    figures.set_defaults(action=_figures)
    return parser


def _add_experiment(commands: argparse._SubParsersAction, name: str, help_line: str) -> None:
    parser = commands.add_parser(
        name,
        help=help_line,
        description=f"{help_line}\n\n"
        "Runs every job (method and seed) of the configuration, then prints the table and draws\n"
        "the figures; with both a method and --seed, that job only. Finished jobs are skipped and\n"
        "interrupted ones resumed.",
        epilog="examples:\n"
        f"  onmt_evsoftmax vae {name} -o runs/vae/{name}\n"
        f"  onmt_evsoftmax vae {name} -o runs/vae/short --set epochs=3 --set seeds=[1]\n"
        f"  onmt_evsoftmax vae {name} --normalizer evsoftmax --seed 1\n"
        f"  torchrun --nproc_per_node=2 -m onmt_evsoftmax.vae {name}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o",
        "--output",
        default=f"runs/vae/{name}",
        metavar="FOLDER",
        help="of models, results, table and figures; default: %(default)s",
    )
    parser.add_argument("--config", metavar="YAML", help=f"default: as recipes/vae/{name}.yaml")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"override one key; recipes/vae/{name}.yaml explains each",
    )
    parser.add_argument("--normalizer", metavar="NAME", help="only this one")
    if name == "ssvae":
        parser.add_argument("--estimator", metavar="NAME", help="only this one, on softmax")
    parser.add_argument("--seed", type=int, metavar="N", help="only this one")
    parser.add_argument("--shared-only", action="store_true", help="only what all jobs share")
    parser.add_argument("--data-dir", metavar="FOLDER", help="where the data set's files are")
    parser.add_argument("--download", action="store_true", help="fetch them into --data-dir first")
    parser.add_argument("--device", help="cpu or cuda; default: cuda if there is one")
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="of torch on a CPU; default: what pays"
    )
    parser.add_argument("--no-tensorboard", action="store_true", help="write no event files")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(action=_experiment, experiment=name)


def _experiment(arguments: argparse.Namespace) -> int:
    module = module_of(arguments.experiment)
    chosen = configuration.load(module.Configuration, arguments.config, arguments.set)
    jobs = _jobs(chosen, arguments)
    method = arguments.normalizer or getattr(arguments, "estimator", None)
    one_job = method is not None and arguments.seed is not None
    if arguments.shared_only and (method is not None or arguments.seed is not None):
        raise UserError("--shared-only trains for all jobs: leave out method and seed, or it")
    if arguments.threads < 0:
        raise UserError(f"--threads {arguments.threads}: give a positive number, or leave it out")
    if arguments.json and (one_job or arguments.shared_only):
        raise UserError("--json prints the table, and one job or --shared-only has none: omit it")
    if chosen.data == data.EMBEDDED and (arguments.data_dir is not None or arguments.download):
        raise UserError(
            f"data: {chosen.data} is embedded and reads no files; leave out --data-dir and "
            "--download, or choose other data with --config or --set data=mnist"
        )
    if arguments.device and distributed.announced() > 1:
        raise UserError(
            f"--device {arguments.device}: under torchrun each process takes a GPU of its own, or "
            "the CPU if there is none; leave it out (CUDA_VISIBLE_DEVICES='' hides the GPUs)"
        )
    # Small matrices are slower on several threads, much slower if the cores are busy.
    torch.set_num_threads(arguments.threads or min(module.THREADS, torch.get_num_threads()))
    device = distributed.start() or _device(arguments.device)
    experiment = Experiment(
        arguments.experiment,
        module,
        chosen,
        Path(arguments.output),
        lambda: data.load(
            chosen.data,
            arguments.data_dir,
            fetch=arguments.download,
            classes=getattr(chosen, "classes", 0),
            size=getattr(chosen, "image_size", 0),
        ),
        device,
        not arguments.no_tensorboard,
    )
    try:
        if arguments.shared_only:
            experiment.prepare()
            return 0
        for method, seed in jobs:
            experiment.run_job(method, seed)
        if distributed.rank() == 0 and not one_job:
            found = argparse.Namespace(folders=[arguments.output], json=arguments.json)
            _table(argparse.Namespace(**vars(found), output=[]))
            _figures(argparse.Namespace(**vars(found), output=None, format=["png"]))
    finally:
        distributed.stop()
    return 0


def _device(name: str | None) -> torch.device:
    """The device asked for, or the best there is."""
    best = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name or best)
    except RuntimeError as error:
        raise UserError(f"--device {name}: no such device; give cpu, cuda or cuda:N") from error
    if device.type == "cuda" and best == "cpu":
        raise UserError(f"--device {name}: torch finds no GPU here; leave it out to use the CPU")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name}: the experiments run on cpu and cuda only; give one")
    try:
        torch.ones(1, device=device).item()
    except RuntimeError as error:  # a GPU with a number that none has, or one that is broken
        raise UserError(f"--device {name}: torch cannot use it; give another or none") from error
    return device


def _jobs(chosen: Any, arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """(method, seed) of every job asked for: normalizers first, then estimators."""
    estimator = getattr(arguments, "estimator", None)
    if arguments.normalizer and estimator:
        raise UserError("--normalizer and --estimator exclude each other: give one")
    asked: dict[str, list[Any]] = {}
    if arguments.normalizer or estimator:
        asked["normalizers"] = [arguments.normalizer] if arguments.normalizer else []
        if hasattr(chosen, "estimators"):
            asked["estimators"] = [estimator] if estimator else []
    if arguments.seed is not None:
        asked["seeds"] = [arguments.seed]
    try:  # made anew, so that the command line is checked like the file
        chosen = dataclasses.replace(chosen, **asked)
    except ValueError as error:
        raise UserError(str(error)) from error
    methods = [*chosen.normalizers, *getattr(chosen, "estimators", [])]
    return [(method, seed) for seed in chosen.seeds for method in methods]


def _table(arguments: argparse.Namespace) -> int:
    from onmt_evsoftmax.vae.table import Table

    results = read_results(arguments.folders)
    metrics = module_of(results[0]["experiment"]).METRICS
    table = Table.of(results, metrics)
    for path in arguments.output:
        table.write(path)
        print(path, file=sys.stderr)
    if arguments.json:
        print(table.json())
    elif not arguments.output:
        print(table.text())
    return 0


def _figures(arguments: argparse.Namespace) -> int:
    from onmt_evsoftmax.vae import figures

    results = read_results(arguments.folders)
    folder = Path(arguments.output or arguments.folders[0])
    for kind in arguments.format:
        for path in figures.draw(results, folder, kind):
            print(path, file=sys.stderr)
    return 0


if __name__ == "__main__":
    with called("onmt_evsoftmax vae"):
        run(main)
