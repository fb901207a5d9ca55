"""``onmt_evsoftmax import``: attention of any toolkit, from arrays to a trace."""

from __future__ import annotations

import argparse
import math
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import onmt_evsoftmax
from onmt_evsoftmax.corpora.marks import (
    SCHEMES,
    SPECIAL_TOKENS,
    Tokens,
    as_sentencepiece,
    detect_scheme,
    foreign_style,
    group,
)
from onmt_evsoftmax.report.console import UserError, command_line, unknown_name, warn
from onmt_evsoftmax.report.files import need_file
from onmt_evsoftmax.report.outputs import check_outputs
from onmt_evsoftmax.trace.record import KINDS, Attention, Record, available, encode, prefix_of
from onmt_evsoftmax.trace.storage import Header, Kind, TraceWriter, part_of
from onmt_evsoftmax.trace.text import checksum

#: What a file may say about a sentence besides its attention.
TEXTS = ("source", "target", "read", "start")
SPECIAL = sorted(SPECIAL_TOKENS | {"[CLS]", "[SEP]", "[PAD]", "<|endoftext|>"})

DESCRIPTION = """\
Make a trace of attention weights from any toolkit, so that they can be counted and drawn."""

EPILOG = """\
A FILE is what numpy.savez writes. It has tokens, `source` and `target`, and weights, one or more of
`encoder` (source × source), `decoder` (target × what was read before it) and `context` (target ×
source), each (layers, heads, rows, keys); layers may have a batch of one, as transformers' have,
and a single layer or head may be left out. Row t of decoder and context is the step that predicts
target token t. For a language model give `read`, the tokens that it read, instead of `target`.
Several sentences are several files, or names with a number: 0/source, 0/context, 1/source, …
docs/import.md has examples.

examples:
  $ onmt_evsoftmax import sentence.npz --normalizer softmax -o model.trace
  $ onmt_plot_attention model.trace -o page.html
"""


@dataclass(frozen=True)
class Sentence:
    """Tokens and attention of one sentence as a user gives them; ``where`` is for messages."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    start: str
    attention: Mapping[str, NDArray[np.float32]]
    where: str

    @classmethod
    def of(cls, fields: Mapping[str, Any], where: str) -> Sentence:
        """Check everything that can be wrong with what a user wrote down."""
        for name in fields:
            if name not in (*TEXTS, *KINDS):
                raise UserError(f"{where}: {unknown_name('array', name, (*TEXTS, *KINDS))}")
        texts = {
            name: _tokens(fields[name], f"{where}, {name}") for name in TEXTS if name in fields
        }
        start = texts.get("start", ("<s>",))[0]
        if "read" in texts:
            if "target" in texts or "start" in texts:
                raise UserError(f"{where}: read takes the place of target and start; give one")
            start, target = texts["read"][0], (*texts["read"][1:], "</s>")
        else:
            target = texts.get("target", ())
        source = texts.get("source", ())
        attention = {
            kind: _weights(fields[kind], f"{where}, {kind}") for kind in KINDS if kind in fields
        }
        if not attention:
            raise UserError(f"{where} has no attention: none of {', '.join(KINDS)}")
        sentence = cls(source, target, start, attention, where)
        for kind, weights in attention.items():
            sentence._check(kind, weights)
        return sentence

    def _check(self, kind: str, weights: NDArray[np.float32]) -> None:
        rows = len(self.source if kind == "encoder" else self.target)
        keys = len(self.target if kind == "decoder" else self.source)
        if weights.shape[2:] != (rows, keys):
            sides = {"encoder": "source × source", "decoder": "target × target"}
            raise UserError(
                f"{self.where}, {kind}: rows × keys are {weights.shape[2]} × {weights.shape[3]}, "
                f"but {sides.get(kind, 'target × source')} has {rows} × {keys} tokens"
            )
        if (weights[:, :, ~available(kind, rows, keys)] != 0).any():
            raise UserError(
                f"{self.where}, {kind}: a row attends to tokens after it; attention of an encoder "
                "is called encoder"
            )


def _tokens(array: NDArray[Any], where: str) -> tuple[str, ...]:
    if array.dtype.kind != "U" or array.ndim > 1 or not array.size:
        raise UserError(f"{where}: must be a list of tokens, not {array.dtype} {array.shape}")
    return tuple(str(token) for token in np.atleast_1d(array))


def _weights(array: NDArray[Any], where: str) -> NDArray[np.float32]:
    """(layers, heads, rows, keys), checked."""
    if array.ndim == 5 and array.shape[1] == 1:
        array = array[:, 0]
    if not 2 <= array.ndim <= 4 or array.dtype.kind not in "fiu" or not array.size:
        raise UserError(
            f"{where}: must be numbers of shape (layers, heads, rows, keys), not {array.dtype} "
            f"{array.shape}"
        )
    weights = array.reshape(*(1,) * (4 - array.ndim), *array.shape).astype(np.float32)
    sums = weights.sum(-1)
    if not np.isfinite(weights).all() or (weights < 0).any() or (sums > 1.01).any():
        raise UserError(f"{where}: these are not weights: rows must be ≥ 0 and sum to 1")
    if (sums < 0.99).any():
        warn(f"{where}: some rows sum to less than 1 (the smallest to {sums.min():.2f})")
    return weights


def read_sentences(path: str) -> list[Sentence]:
    """The sentences of one file."""
    need_file(path)
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("one array, not named ones")
        with file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"{path} is not a file of numpy.savez ({reason})") from error
    numbered: dict[int, dict[str, Any]] = defaultdict(dict)
    for name, array in arrays.items():
        number, slash, field = name.rpartition("/")
        if slash and not number.isdecimal():
            raise UserError(f"{path}: {name!r} must be NAME or NUMBER/NAME")
        fields = numbered[int(number) if slash else 0]
        if field in fields:
            raise UserError(f"{path}: {name!r} is there under another number, too; keep one")
        fields[field] = array
    several = len(numbered) > 1
    return [
        Sentence.of(numbered[n], f"{path}, sentence {n}" if several else path)
        for n in sorted(numbered)
    ]


def write_trace(
    path: str | Path,
    sentences: Sequence[Sentence],
    *,
    normalizer: str = "imported",
    name: str = "",
    sha256: str = "",
    scheme: str | None = None,
    special: Sequence[str] = SPECIAL,
) -> None:
    """Write the trace of ``sentences``, which must agree in kinds, layers and heads."""
    shapes = {kind: weights.shape[:2] for kind, weights in sentences[0].attention.items()}
    for one in sentences:
        if {kind: weights.shape[:2] for kind, weights in one.attention.items()} != shapes:
            raise UserError(
                f"{one.where} differs from {sentences[0].where} in its kinds of attention, layers "
                "or heads; a trace is of one model"
            )
    # WordPiece and bytes are written as SentencePiece, so that every reader knows the words.
    every = [token for s in sentences for token in (*s.source, *s.target)]
    style = None if scheme else foreign_style(every)
    scheme = scheme or ("sentencepiece" if style else detect_scheme(every))

    def side(tokens: Sequence[str]) -> Tokens:
        return group(as_sentencepiece(tokens, style, special) if style else tokens, scheme, special)

    header = Header(
        kinds={kind: Kind(normalizer, *shapes[kind]) for kind in KINDS if kind in shapes},
        model={"name": name, "sha256": sha256, "type": "imported"},
        source={"name": name, "sha256": sha256, "sentences": len(sentences)},
        target={"name": name, "sha256": sha256, "sentences": len(sentences)},
        subwords={"source": scheme, "target": scheme},
        versions={"onmt_evsoftmax": onmt_evsoftmax.__version__, "numpy": np.__version__},
    )
    with TraceWriter(path, header, restart=True) as trace:
        for index, one in enumerate(sentences):
            target = side(one.target)
            attention = {k: Attention(w, w > 0) for k, w in one.attention.items()}
            prefix = prefix_of(target, one.start) if one.target else Tokens((), ())
            record = Record(index, side(one.source), target, prefix, (), math.nan, attention)
            trace.append(encode(record))
        trace.finish()


def make_parser() -> argparse.ArgumentParser:
    """Every option of the command."""
    parser = command_line(DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="arrays in an .npz file")
    add("-o", "--output", required=True, metavar="OUT", help="trace to write")
    add(
        "--normalizer",
        default="imported",
        metavar="NAME",
        help="name shown in titles (default: %(default)s)",
    )
    add("--subwords", choices=SCHEMES, help="how tokens mark words (default: what they show)")
    add(
        "--special",
        nargs="+",
        default=[],
        metavar="TOKEN",
        help="further tokens that are not text, such as <mask>",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Check all files, then write the trace."""
    options = make_parser().parse_args(argv)
    check_outputs([options.output, str(part_of(options.output))], inputs=options.files)
    sentences = [one for path in options.files for one in read_sentences(path)]
    write_trace(
        options.output,
        sentences,
        normalizer=options.normalizer,
        name=Path(options.files[0]).name,
        sha256=checksum(options.files),
        scheme=options.subwords,
        special=[*SPECIAL, *options.special],
    )
    return 0
