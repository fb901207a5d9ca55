"""The command line of ``onmt_trace_attention`` and ``tools/trace_attention.py``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from onmt_evsoftmax.corpora.marks import SCHEMES
from onmt_evsoftmax.report import console
from onmt_evsoftmax.report.console import UserError, command_line, whole
from onmt_evsoftmax.report.files import same_length, split_name
from onmt_evsoftmax.report.outputs import check_outputs
from onmt_evsoftmax.report.progress import progress
from onmt_evsoftmax.trace.record import KINDS, Record, encode
from onmt_evsoftmax.trace.source import tell_apart, trace_files
from onmt_evsoftmax.trace.storage import Header, TraceWriter, is_complete, part_of
from onmt_evsoftmax.trace.text import Split, Text, check_text, splitter

if TYPE_CHECKING:
    from onmt_evsoftmax.trace.tracer import Tracer

DESCRIPTION = """\
Record the attention of a checkpoint on a text: every layer and head of encoder, decoder and context
attention, over real tokens only, exact zeros kept. Without --tgt the model translates and its own
output is traced; with --tgt that text is forced."""

EPILOG = """\
The text has one sentence per line, in the model's subwords as onmt_translate takes it, or plain
with --subword-model. A model may also be the folder of a transformers model (docs/import.md); then
the text is plain, and the model's own tokenizer splits it. A run that was stopped continues when
its command is repeated. Several models give several files: then OUT is a folder.
docs/trace-format.md describes the file.

examples:
  What a model attends to while it translates:
  $ onmt_trace_attention --model evsoftmax.pt --src test.en -o evsoftmax.trace

  Two models on the same translation, side by side in a page:
  $ onmt_trace_attention --model softmax.pt evsoftmax.pt --src test.en --tgt test.de -o traces/
  $ onmt_plot_attention traces/softmax.trace traces/evsoftmax.trace -o page.html

  A softmax model made sparse at test time, only its context attention:
  $ onmt_trace_attention --model softmax.pt --attention-normalizer evsoftmax --kinds context \\
        --src test.en --tgt test.de -o posthoc.trace
"""


def add_model_options(parser: argparse.ArgumentParser, required: bool) -> None:
    """The options that say what to run on what; ``count_attended`` has them too."""
    group = parser.add_argument_group("model and text")
    add = group.add_argument
    add(
        "--model",
        nargs="+",
        metavar="[NAME=]FILE",
        required=required,
        help="checkpoints of OpenNMT-py, or folders of transformers models",
    )
    add("--src", metavar="FILE", required=required, help="source text")
    add("--tgt", metavar="FILE", help="target text to force (default: translate)")
    add(
        "--beam-size",
        type=whole(1, 1000),
        default=5,
        metavar="N",
        help="default: %(default)s; 1 is greedy",
    )
    add(
        "--max-length",
        type=whole(1, 100_000),
        default=250,
        metavar="N",
        help="longest translation, in tokens (default: %(default)s)",
    )
    add(
        "--attention-normalizer",
        metavar="NAME",
        help="compute attention with this one instead of the checkpoint's",
    )
    add(
        "--subword-model",
        metavar="FILE",
        help="the text is plain: split it first, with a SentencePiece .model or BPE codes",
    )
    add(
        "--subwords",
        choices=SCHEMES,
        help="how tokens mark words (default: what the vocabulary shows)",
    )
    add(
        "--gpu",
        type=whole(-1),
        default=-1,
        metavar="N",
        help="number of the GPU (default: -1, the CPU)",
    )


def add_kinds(parser: argparse.ArgumentParser) -> None:
    """The option that chooses kinds of attention."""
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=KINDS,
        default=list(KINDS),
        metavar="KIND",
        help=f"kinds of attention, of {' '.join(KINDS)} (default: all)",
    )


def model_files(options: argparse.Namespace) -> list[str]:
    """The files that those options name."""
    given = (options.src, options.tgt, options.subword_model)
    return [*trace_files(options.model or ()), *(path for path in given if path)]


def make_parser() -> argparse.ArgumentParser:
    """Every option of the command."""
    parser = command_line(DESCRIPTION, EPILOG)
    add = parser.add_argument
    add(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="trace to write; for several models, a folder",
    )
    add_kinds(parser)
    add("--precision", choices=("float32", "float16"), default="float32", help="default: float32")
    add(
        "--restart",
        action="store_true",
        help="start over instead of continuing an unfinished trace",
    )
    add("--quiet", action="store_true", help="no progress on standard error")
    add_model_options(parser, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Trace every model, one after the other."""
    options = make_parser().parse_args(argv)
    outputs = _outputs(options)
    # A trace is written to its .part until it is complete.
    paths = [path for _, path in outputs]
    check_outputs([*paths, *map(part_of, paths)], inputs=model_files(options))
    text = _Text.read(options)
    for model, path in outputs:
        _trace(model, path, text, options)
    return 0


def entry() -> NoReturn:
    """``onmt_trace_attention``, as installed."""
    console.run(main)


@dataclass(frozen=True)
class _Text:
    """Checked source and target, and how their lines are split."""

    source: Text
    target: Text | None
    split: Split | None

    @classmethod
    def read(cls, options: argparse.Namespace) -> _Text:
        split = splitter(options.subword_model)
        source = check_text(options.src)
        target = check_text(options.tgt) if options.tgt else None
        same_length([(text.path, text.sentences) for text in (source, target) if text])
        return cls(source, target, split)


def _models(options: argparse.Namespace) -> list[tuple[str, str]]:
    """(name, checkpoint) of every --model."""
    pairs = [split_name(argument) for argument in options.model]
    stems = [Path(path).stem for _, path in pairs]
    names = tell_apart([name for name, _ in pairs], stems, stems)
    return [(name, path) for name, (_, path) in zip(names, pairs, strict=True)]


def _outputs(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """(checkpoint, trace to write) of every --model."""
    models = _models(options)
    folder = Path(options.output)
    if options.output.endswith(("/", os.sep)) or folder.is_dir():
        return [(path, folder / f"{name}.trace") for name, path in models]
    if len(models) > 1:
        raise UserError(f"-o {options.output}: several models need a folder, as {folder}/")
    return [(models[0][1], folder)]


def _load(path: str, options: argparse.Namespace) -> Tracer:
    from onmt_evsoftmax.report import memory, threads
    from onmt_evsoftmax.trace.tracer import Tracer

    _check_gpu(options.gpu)
    threads.govern()
    memory.keep_freed()
    given = {"beam_size": options.beam_size, "max_length": options.max_length}
    if options.attention_normalizer:
        given["attention_normalizer"] = options.attention_normalizer
    schemes = {side: options.subwords for side in ("source", "target") if options.subwords}
    kinds = [kind for kind in KINDS if kind in options.kinds]
    return Tracer(path, kinds, schemes, options.gpu, **given)


def _check_gpu(number: int) -> None:
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= found:
        have = f"torch finds {found}, counted from 0" if found else "torch finds no GPU here"
        raise UserError(f"--gpu {number}: {have}; leave it out to use the CPU")


def _trace(model: str, path: Path, text: _Text, options: argparse.Namespace) -> None:
    tracer = _load(model, options)
    header = tracer.header(text.source, text.target, options.precision)
    if not options.restart and is_complete(path, header):
        print(f"{path} is complete already", file=sys.stderr)
        return
    total = text.source.sentences
    with TraceWriter(path, header, restart=options.restart) as trace:
        if trace.count:
            print(f"{path}: continuing after {trace.count} sentences", file=sys.stderr)
        bar = progress(f"tracing {path.name}", total, initial=trace.count, quiet=options.quiet)
        try:
            for record in tracer.records(text.source, text.target, text.split, trace.count):
                trace.append(encode(record, options.precision))
                bar.update()
        except UserError:
            if not trace.count:  # else what is done may be hours of work
                trace.discard()
            raise
        finally:
            bar.close()
        trace.finish()


def open_models(options: argparse.Namespace) -> Iterator[tuple[str, Header, Iterable[Record], int]]:
    """Name, header, records and number of sentences of every --model, computed as they are read."""
    text = _Text.read(options)
    for name, path in _models(options):
        tracer = _load(path, options)
        header = tracer.header(text.source, text.target)
        records = tracer.records(text.source, text.target, text.split)
        yield name, header, records, text.source.sentences
