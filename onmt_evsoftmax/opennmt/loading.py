"""A checkpoint as a library object: loaded as ``onmt_translate`` does, run forced or decoding.

:class:`LoadedModel` is OpenNMT-py's :class:`onmt_evsoftmax.trace.model.Model`.
"""

from __future__ import annotations

import functools
import os
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.corpora.marks import SPECIAL_TOKENS
from onmt_evsoftmax.opennmt.generator import outputs_of
from onmt_evsoftmax.opennmt.recording import AttentionRecord, record_attention
from onmt_evsoftmax.opennmt.settings import Settings
from onmt_evsoftmax.opennmt.sites import Site, attention_sites
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace.model import Forced
from onmt_evsoftmax.trace.record import KINDS, Attention
from onmt_evsoftmax.trace.storage import Kind

Tokens = Sequence[str]

#: Kind of a site → kind of attention in a trace. The separate copy attention of RNN models is not
#: traced.
_TRACED = {**{kind: kind for kind in KINDS}, "global": "context"}


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its vocabularies and options."""

    model: nn.Module
    vocabs: Any
    options: Namespace
    _translate_options: Namespace

    @property
    def settings(self) -> Settings:
        """Which normalizer is where."""
        return Settings.of(self.options)

    @property
    def is_language_model(self) -> bool:
        """Whether there is no source: then ``sources`` below are the texts themselves."""
        return bool(self.options.model_task == "lm")

    def force(self, sources: Sequence[Tokens], targets: Sequence[Tokens] | None = None) -> Tensor:
        """Run the model on given targets; return decoder outputs (batch, queries, hidden).

        Query t of the decoder has read ``<s>`` and the first t target tokens. Texts are padded on
        the right to the longest; nothing of the padding reaches a real token's row.
        """
        device = next(self.model.parameters()).device
        if self.is_language_model:
            source, lengths = self._batch("src", [["<s>", *text] for text in sources], device)
            target = source
        else:
            if targets is None:
                raise ValueError("a translation model needs targets to be forced")
            source, lengths = self._batch("src", sources, device)
            target, _ = self._batch("tgt", [[self.start, *t, "</s>"] for t in targets], device)
        with torch.no_grad():
            output: Tensor = self.model(source, target, lengths)[0]
        return output

    def decode(self, sources: Sequence[Tokens]) -> list[list[str]]:
        """Best translation (or continuation) of each source, by the search the options chose."""
        from onmt.translate import GeneratorLM, GNMTGlobalScorer, Translator

        if self.options.copy_attn:
            raise ValueError("a copy model needs the texts themselves: use onmt_translate")
        options = self._translate_options
        kind = GeneratorLM if self.is_language_model else Translator
        translator = kind.from_opt(
            self.model,
            self.vocabs,
            options,
            self.options,
            global_scorer=GNMTGlobalScorer.from_opt(options),
        )
        device = next(self.model.parameters()).device
        texts = [["<s>", *text] for text in sources] if self.is_language_model else sources
        words = self.vocabs["tgt"].ids_to_tokens
        results = []
        for text in texts:  # one by one: order, padding and copying need no care then
            source, lengths = self._batch("src", [text], device)
            batch = {"src": source, "srclen": lengths, "indices": torch.zeros(1, dtype=torch.long)}
            found = translator.translate_batch(batch, False)["predictions"][0][0].tolist()
            tokens = [words[index] for index in found]
            results.append(tokens[: tokens.index("</s>")] if "</s>" in tokens else tokens)
        return results

    # --- what the tracer asks ---------------------------------------------------------------------

    #: The token that ends a target.
    end = "</s>"
    #: A model of OpenNMT-py always has a target, and its texts are split before.
    is_encoder = False
    special = SPECIAL_TOKENS

    def split(self, line: str, side: str) -> list[str]:
        """The text is in the model's subwords already."""
        return line.split()

    @property
    def start(self) -> str:
        """The token that the decoder reads first."""
        return str(self.vocabs.get("decoder_start_token", "<s>"))

    @functools.cached_property
    def kinds(self) -> dict[str, Kind]:
        """Kind of attention → its normalizer, layers, heads and learned alphas."""
        sites: dict[str, list[Site]] = defaultdict(list)
        for site in attention_sites(self.model):
            sites[_TRACED.get(site.kind, "")].append(site)
        return {
            kind: Kind(
                self.settings.chosen(found[0].kind),
                len(found),
                found[0].heads,
                _alphas(found) or None,
            )
            for kind, found in sites.items()
            if kind
        }

    @property
    def facts(self) -> dict[str, str]:
        """What a trace's header says about the model."""
        return {
            "type": "language model" if self.is_language_model else "translation",
            "encoder": self.options.encoder_type,
            "decoder": self.options.decoder_type,
        }

    @property
    def search(self) -> dict[str, Any]:
        """How :meth:`translate` searches."""
        chosen = self._translate_options
        names = ("beam_size", "max_length", "length_penalty", "alpha")
        return {name: getattr(chosen, name) for name in names if hasattr(chosen, name)}

    @property
    def versions(self) -> dict[str, str]:
        """The toolkit and its version."""
        try:
            return {"OpenNMT-py": metadata.version("OpenNMT-py")}
        except metadata.PackageNotFoundError:
            return {"OpenNMT-py": "not installed as a package"}

    def tokens(self, side: str) -> list[str]:
        """The vocabulary of the ``source`` or the ``target`` side."""
        return list(self.vocabs["src" if side == "source" else "tgt"].ids_to_tokens)

    def translate(self, source: Tokens) -> list[str]:
        """The model's own output for one sentence."""
        return self.decode([source])[0]

    def attend(self, source: Tokens, target: Tokens) -> Forced:
        """Force ``target`` on one sentence; return what was attended to, and the scores."""
        with record_attention(self.model) as calls:
            hidden = self.force([source], [target])
        return Forced(_collect(calls), self._scores(hidden, [*target, self.end]))

    def _scores(self, hidden: Tensor, tokens: Tokens) -> tuple[float, ...]:
        """Log-probability of each target token; a model that copies from the source has none."""
        if getattr(self.options, "copy_attn", False):
            return ()
        model: Any = self.model
        with torch.no_grad():
            logits = model.generator(hidden[0]).float()
            outputs = outputs_of(model)
            table = outputs[0].log_probabilities(logits) if outputs else logits.log_softmax(-1)
        ids = torch.tensor(self.vocabs["tgt"](list(tokens)), device=table.device)
        return tuple(table.gather(-1, ids[:, None])[:, 0].tolist())

    def _batch(
        self, side: str, texts: Sequence[Tokens], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Token ids (batch, longest, 1), padded on the right, and the lengths (batch,)."""
        vocabulary = self.vocabs[side]
        ids = [torch.tensor(vocabulary(list(text)), dtype=torch.long) for text in texts]
        lengths = torch.tensor([len(row) for row in ids])
        padded = nn.utils.rnn.pad_sequence(
            ids, batch_first=True, padding_value=vocabulary["<blank>"]
        )
        return padded.unsqueeze(-1).to(device), lengths.to(device)


def _alphas(sites: Sequence[Site]) -> list[list[float]]:
    """Learned alphas of each layer, one per head; empty if none are learned."""
    found = [getattr(part, "alpha", None) for site in sites for part in site.module.modules()]
    return [a.detach().flatten().tolist() for a in found if isinstance(a, Tensor)]


def _collect(calls: Sequence[AttentionRecord]) -> dict[str, Attention]:
    """Recorded calls of a batch of one → kind → attention of all layers."""
    parts: dict[str, dict[int, list[AttentionRecord]]] = defaultdict(lambda: defaultdict(list))
    for call in calls:
        parts[_TRACED.get(call.kind, "")][call.layer].append(call)
    # A transformer makes one call per layer; an RNN that feeds its input one per target position.
    return {
        kind: Attention(
            _stack([[c.probabilities[0] for c in layers[n]] for n in sorted(layers)]),
            _stack([[c.support[0] for c in layers[n]] for n in sorted(layers)]),
        )
        for kind, layers in parts.items()
        if kind
    }


def _stack(layers: Sequence[Sequence[Tensor]]) -> Any:
    """Tensors (heads, rows, keys), several per layer if rows came one by one → one array."""
    array = torch.stack([torch.cat(list(calls), dim=1) for calls in layers]).cpu()
    return array.numpy() if array.dtype == torch.bool else array.float().numpy()


def load_model(path: str | os.PathLike[str], gpu: int = -1, **options: Any) -> LoadedModel:
    """Load one checkpoint; ``options`` are those of ``onmt_translate``, without their dash.

    One that is None or False is not given.

    ``load_model("model.pt", attention_normalizer="evsoftmax", beam_size=1)``
    """
    from onmt_evsoftmax.opennmt import install

    install()
    import onmt.model_builder
    import onmt.opts
    from onmt.utils.parse import ArgumentParser

    parser = ArgumentParser()
    onmt.opts.translate_opts(parser)
    arguments = ["-model", os.fspath(path), "-src", "none", "-gpu", str(gpu)]
    for name, value in options.items():
        if value is not None and value is not False:
            arguments += [f"-{name}"] if value is True else [f"-{name}", str(value)]
    opt = parser.parse_args(arguments)
    try:
        vocabs, model, model_options = onmt.model_builder.load_test_model(opt)
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is not a checkpoint of OpenNMT-py ({error!r})") from error
    return LoadedModel(model, vocabs, model_options, opt)
