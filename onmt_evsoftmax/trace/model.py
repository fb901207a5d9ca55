"""What the tracer asks of a model, whichever toolkit it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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

    def translate(self, source: Sequence[str]) -> list[str]:
        """The model's own output for one sentence, without start and end tokens."""
        ...

    def attend(self, source: Sequence[str], target: Sequence[str]) -> Forced:
        """Force ``target`` (without its end) on one sentence; return what was attended to.

        A language model gets its text in both places.
        """
        ...


def load(path: str, gpu: int = -1, **options: Any) -> Model:
    """The model in the file ``path``; ``options`` are those of its toolkit's translation."""
    from onmt_evsoftmax.opennmt import load_model

    return load_model(path, gpu, **options)
