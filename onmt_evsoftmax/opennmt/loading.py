"""A checkpoint as a library object: loaded as ``onmt_translate`` does, run forced or decoding."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.opennmt.settings import Settings

Tokens = Sequence[str]


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
        return self.options.model_task == "lm"

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
            target, _ = self._batch("tgt", [[self._start, *t, "</s>"] for t in targets], device)
        with torch.no_grad():
            output, _ = self.model(source, target, lengths)
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

    @property
    def _start(self) -> str:
        return self.vocabs.get("decoder_start_token", "<s>")

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


def load_model(path: str | os.PathLike[str], gpu: int = -1, **options: Any) -> LoadedModel:
    """Load one checkpoint; ``options`` are those of ``onmt_translate``, without their dash.

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
        arguments += [f"-{name}"] if value is True else [f"-{name}", str(value)]
    opt = parser.parse_args(arguments)
    vocabs, model, model_options = onmt.model_builder.load_test_model(opt)
    return LoadedModel(model, vocabs, model_options, opt)
