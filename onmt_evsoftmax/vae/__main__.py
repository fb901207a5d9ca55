"""``onmt_evsoftmax vae EXPERIMENT``, ``vae table``, ``vae figures``: the VAE experiments."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from onmt_evsoftmax.report import memory, outputs
from onmt_evsoftmax.report.console import UserError, command_line, run, whole
from onmt_evsoftmax.vae import configuration, data, distributed, figures
from onmt_evsoftmax.vae.experiment import Configuration, Experiment, experiments
from onmt_evsoftmax.vae.jobs import Study
from onmt_evsoftmax.vae.results import find_results, read_results, table_of


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and do what it says."""
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser().parse_args(words, argparse.Namespace(words=words))
    arguments.action(arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "The VAE experiments of the ev-softmax paper, on the package's normalizers.",
        "example (embedded digits, under three minutes):\n"
        "  onmt_evsoftmax vae cvae -o runs/vae/cvae\n\n"
        "recipes/vae/README.md says more.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, experiment in experiments().items():
        _add_experiment(commands, name, experiment)
    table = commands.add_parser(
        "table",
        help="mean ± standard error over the seeds of finished jobs",
        epilog="example:\n  onmt_evsoftmax vae table runs/vae/cvae -o cvae.tex",
    )
    outputs.add_output(table, "a table as .txt, .md, .tex or .json")
    table.set_defaults(action=lambda a: _table(a.folders, a.output, a.json))
    drawn = commands.add_parser(
        "figures",
        help="draw the experiment's figures from finished jobs",
        epilog="example:\n  onmt_evsoftmax vae figures runs/vae/cvae --format pdf",
    )
    drawn.add_argument(
        "-o", "--output", metavar="FOLDER", help="where to put them (default: the first FOLDER)"
    )
    kinds = [ending.removeprefix(".") for ending in outputs.FIGURES]
    drawn.add_argument(
        "--format", nargs="+", default=["png"], choices=kinds, help="of the files (default: png)"
    )
    drawn.set_defaults(action=lambda a: _figures(a.folders, a.output, a.format))
    for command in (table, drawn):
        command.add_argument(
            "folders", nargs="+", metavar="FOLDER", help="output of an experiment or of a job"
        )
    return parser


def _add_experiment(commands: Any, name: str, experiment: Experiment[Any]) -> None:
    parser = commands.add_parser(
        name,
        help=experiment.help,
        description=f"{experiment.help}\n\n"
        "Runs every job (method and seed) of the configuration, then prints the table and draws\n"
        "the figures; with both a method and --seed, that job only. Finished jobs are skipped and\n"
        "interrupted ones resumed.",
        epilog="examples:\n"
        f"  onmt_evsoftmax vae {name} -o runs/vae/{name}\n"
        f"  onmt_evsoftmax vae {name} -o runs/vae/short --set epochs=3 --set seeds=[1]\n"
        f"  onmt_evsoftmax vae {name} --normalizer evsoftmax --seed 1\n"
        f"  torchrun --nproc_per_node=2 -m onmt_evsoftmax.vae {name}",
    )
    add = parser.add_argument
    add(
        "-o",
        "--output",
        default=f"runs/vae/{name}",
        metavar="FOLDER",
        help="for models, results, table and figures (default: %(default)s)",
    )
    recipe = f"recipes/vae/{name}.yaml"
    add("--config", metavar="YAML", help=f"settings (default: those of {recipe})")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"override a key, of those in {recipe}; may be repeated",
    )
    method = parser.add_mutually_exclusive_group()
    for key in experiment.configuration.choices:
        if key != "seeds":
            kind = key.removesuffix("s")
            method.add_argument(
                f"--{kind}",
                dest="method",
                type=lambda text, key=key: (key, text),
                metavar="NAME",
                help=f"only this {kind}",
            )
    add("--seed", type=int, metavar="N", help="only this seed")
    add("--shared-only", action="store_true", help="train only the models that all jobs share")
    add("--data-dir", metavar="FOLDER", help="where the data set's files are")
    add("--download", action="store_true", help="download them into --data-dir first")
    add("--device", help="cpu or cuda (default: cuda if there is one)")
    add(
        "--threads",
        type=whole(1),
        metavar="N",
        help="threads on a CPU (default: few, as small models want)",
    )
    add("--no-tensorboard", action="store_true", help="write no event files for TensorBoard")
    add("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(action=_experiment, experiment=experiment)


def _experiment(arguments: argparse.Namespace) -> None:
    experiment: Experiment[Any] = arguments.experiment
    settings = configuration.load(experiment.configuration, arguments.config, arguments.set)
    asked = _asked(settings, arguments)
    one_job = arguments.method is not None and arguments.seed is not None
    if arguments.shared_only and (arguments.method is not None or arguments.seed is not None):
        raise UserError("--shared-only trains for all jobs: leave out method and seed, or it")
    if arguments.json and (one_job or arguments.shared_only):
        raise UserError("--json prints the table, and one job or --shared-only has none: omit it")
    if settings.data == data.EMBEDDED and (arguments.data_dir is not None or arguments.download):
        raise UserError(
            f"data: {settings.data} is embedded and reads no files; leave out --data-dir and "
            "--download, or choose other data with --config or --set data=mnist"
        )
    if arguments.device and distributed.announced() > 1:
        raise UserError(
            f"--device {arguments.device}: under torchrun each process takes a GPU of its own, or "
            "the CPU if there is none; leave it out (CUDA_VISIBLE_DEVICES='' hides the GPUs)"
        )
    memory.keep_freed()
    # Small matrices are slower on several threads, much slower if the cores are busy.
    torch.set_num_threads(arguments.threads or min(experiment.threads, torch.get_num_threads()))
    device = distributed.start() or _device(arguments.device)
    study = Study(
        experiment,
        settings,
        Path(arguments.output),
        lambda: experiment.load(settings, arguments.data_dir, fetch=arguments.download),
        device,
        not arguments.no_tensorboard,
        shlex.join(["onmt_evsoftmax", "vae", *arguments.words]),
    )
    try:
        if arguments.shared_only:
            study.prepare()
            return
        for seed in asked.seeds:
            for method in asked.methods():
                study.run_job(method, seed)
        if distributed.rank() == 0 and not one_job:
            _table([arguments.output], [], arguments.json)
            _figures([arguments.output], None, ["png"])
    finally:
        distributed.stop()


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


def _asked(settings: Configuration, arguments: argparse.Namespace) -> Configuration:
    """The configuration of the jobs asked for, checked like the file."""
    chosen: dict[str, Any] = {}
    if arguments.method is not None:
        key, name = arguments.method
        chosen = {other: [] for other in settings.choices if other != "seeds"} | {key: [name]}
    if arguments.seed is not None:
        chosen["seeds"] = [arguments.seed]
    try:
        return dataclasses.replace(settings, **chosen)
    except ValueError as error:
        raise UserError(str(error)) from error


def _table(folders: Sequence[str], paths: Sequence[str], as_json: bool) -> None:
    outputs.check_outputs(paths, outputs.TABLES, inputs=find_results(folders))
    table = table_of(read_results(folders))
    outputs.publish(lambda _: [table], table.json, paths, print_json=as_json)


def _figures(folders: Sequence[str], output: str | None, kinds: Sequence[str]) -> None:
    results = read_results(folders)
    drawings = experiments()[results[0]["experiment"]].figures
    for kind in kinds:
        for path in figures.draw(drawings, results, Path(output or folders[0]), kind):
            print(path)


if __name__ == "__main__":
    sys.argv[0] = "onmt_evsoftmax vae"
    run(main)
