"""What the tracer asks of a model, whichever toolkit it comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace.record import Attention
from onmt_evsoftmax.trace.storage import Kind


@dataclass(frozen=True)
class Forced:
    """What a model computed while it was made to read one sentence and predict a given target."""

    #: Kind of attention → weights and support of all layers and heads, before dropout. Row t of
    #: decoder and context attention predicts target token t, the last one the end token.
    attention: Mapping[str, Attention]
    #: Natural log-probability of each target token and of the end token; empty if there is none.
    scores: tuple[float, ...]


class Model(Protocol):
    """A loaded model in evaluation mode. A toolkit joins the tools by one class like this.

    Sentences go in and out as the model's own subwords. Each runs alone, without padding. A toolkit
    implements the class in its own folder and is added to :func:`load`; the tracer, and with it
    ``trace`` and ``count``, needs nothing else.
    """

    @property
    def is_language_model(self) -> bool:
        """Whether there is no source: then a text is forced as its own target."""
        ...

    @property
    def is_encoder(self) -> bool:
        """Whether there is only an encoder: then there is no target."""
        ...

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Of encoder, decoder and context attention, those the model has: normalizer, layers, heads
        and learned alphas."""
        ...

    @property
    def start(self) -> str:
        """The token that the decoder reads first."""
        ...

    @property
    def end(self) -> str:
        """The token that ends a target."""
        ...

    @property
    def special(self) -> Collection[str]:
        """Tokens that the model adds around a text."""
        ...

    @property
    def facts(self) -> Mapping[str, str]:
        """What a trace's header says about the model besides its file: type, encoder, decoder."""
        ...

    @property
    def search(self) -> Mapping[str, Any]:
        """How :meth:`translate` searches, for the header."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """The toolkit's name → its version."""
        ...

    def tokens(self, side: str) -> Sequence[str]:
        """The vocabulary of the ``source`` or the ``target`` side."""
        ...

    def split(self, line: str, side: str) -> list[str]:
        """A line of the ``source`` or ``target`` text as the model's subwords, without its end."""
        ...

    def translate(self, source: Sequence[str]) -> list[str]:
        """The model's own output for one sentence, without start and end tokens."""
        ...

    def attend(self, source: Sequence[str], target: Sequence[str]) -> Forced:
        """Force ``target`` (without its end) on one sentence; return what was attended to.

        A language model gets its text in both places.
        """
        ...


def load(path: str, gpu: int = -1, **options: Any) -> Model:
    """The model at ``path``; ``options`` are those of its toolkit's translation.

    A file is OpenNMT-py's checkpoint, a folder a model of transformers.
    """
    if Path(path).is_dir():
        try:
            from onmt_evsoftmax.transformers.loading import load_folder
        except ImportError as error:
            raise UserError(
                f"{path} is a folder, as models of transformers are, which cannot be used here "
                f"({error}): pip install 'onmt_evsoftmax[transformers]'"
            ) from error
        return load_folder(path, gpu, **options)
    from onmt_evsoftmax.opennmt import load_model

    return load_model(path, gpu, **options)
