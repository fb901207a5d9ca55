"""Joint subwords: byte pair encoding (subword-nmt), or SentencePiece; and words again."""

from __future__ import annotations

import functools
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import lines_of, read_lines, replacing
from onmt_evsoftmax.report.progress import progress

KINDS = ("bpe", "sentencepiece")
MOST_SENTENCES = 5_000_000  # that SentencePiece learns from; it keeps them in memory


def learn(kind: str, texts: Sequence[Path], size: int, output: Path) -> None:
    """Learn ``size`` merges (bpe) or pieces (sentencepiece) from training text of both languages.

    The text of byte pair encoding is tokenised already; SentencePiece wants it as it is, and of
    more than ``MOST_SENTENCES`` lines every second, third, … of all the files.
    """
    sources: list[Path | list[str]] = list(texts)
    step = 1
    if kind == "sentencepiece":  # counted first; what is in a pipe can be read only once
        sources = [path if path.is_file() else read_lines(path) for path in texts]
        count = sum(1 for _ in _lines(sources))
        step = -(-count // MOST_SENTENCES)
    lines = islice(_lines(sources), 0, None, step)
    learner = _learn_bpe if kind == "bpe" else _learn_sentencepiece
    data = learner(progress(f"reading for {kind}", unit="lines", lines=lines), size)
    with replacing(output) as temporary:
        temporary.write_bytes(data)


def _lines(sources: Iterable[Path | list[str]]) -> Iterator[str]:
    for source in sources:
        yield from source if isinstance(source, list) else lines_of(source)


def _learn_bpe(lines: Iterable[str], merges: int) -> bytes:
    from subword_nmt.learn_bpe import learn_bpe

    # Counting words here keeps memory at the size of the vocabulary, not of the corpus.
    # subword-nmt reads a carriage return as the end of a line.
    words = Counter(word for line in lines for word in re.split("[ \\r]", line) if word)
    if all(len(word) == 1 for word in words):
        raise UserError("the text has no word of two letters: there is nothing to merge")
    codes = io.StringIO()
    counts = io.StringIO("".join(f"{word} {count}\n" for word, count in words.items()))
    learn_bpe(counts, codes, merges, min_frequency=2, is_dict=True)
    return codes.getvalue().encode()


def _learn_sentencepiece(lines: Iterable[str], pieces: int) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=pieces,
            model_type="unigram",
            character_coverage=1.0,  # German letters are not noise
            num_threads=os.cpu_count() or 1,
            train_extremely_large_corpus=False,
            shuffle_input_sentence=False,  # so that two runs learn the same pieces
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"SentencePiece cannot learn {pieces} pieces: {error}") from error
    return model.getvalue()


def kind_of(model: Path) -> str:
    """Which kind a model is, by its name: ``*.model`` is SentencePiece's, the rest are codes."""
    return "sentencepiece" if model.suffix == ".model" else "bpe"


@functools.cache
def encoder(model: Path) -> Callable[[str], str]:
    """What splits a line into subwords separated by spaces, read from what ``learn`` wrote.

    A model that cannot be read is refused.
    """
    from subword_nmt.apply_bpe import BPE

    try:
        data = model.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {model}: {error.strerror}") from error
    try:
        if kind_of(model) == "bpe":
            return BPE(io.StringIO(data.decode("utf-8"))).process_line
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    # SystemExit: how subword-nmt refuses a file that is no list of merges.
    except (RuntimeError, ValueError, IndexError, SystemExit) as error:
        raise UserError(
            f"{model} is not a subword model: neither BPE codes nor a SentencePiece *.model"
        ) from error
    return lambda line: " ".join(processor.encode(line, out_type=str))


def encode_line(model: Path, line: str) -> str:
    """Split one line into subwords separated by spaces."""
    return encoder(model)(line)


def vocabulary(lines: Iterable[str]) -> list[str]:
    """The lines of OpenNMT-py's vocabulary file: pieces with their counts, frequent ones first."""
    counts = Counter(piece for line in lines for piece in line.split(" ") if piece)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"{piece}\t{count}" for piece, count in ranked]
