"""A saved model of transformers and its tokenizer, as the tracer asks for them.

:class:`LoadedModel` is transformers' :class:`onmt_evsoftmax.trace.model.Model`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from onmt_evsoftmax.corpora.marks import SPACE, as_sentencepiece, foreign_style
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace.model import Forced
from onmt_evsoftmax.trace.record import Attention
from onmt_evsoftmax.trace.storage import Kind
from onmt_evsoftmax.transformers.attention import STOCK, record_attention
from onmt_evsoftmax.transformers.choice import chosen_normalizers, use
from onmt_evsoftmax.transformers.sites import attention_sites


class Piece(str):
    """A token as it is shown, with the number it has in the model's vocabulary."""

    __slots__ = ("id",)
    id: int

    def __new__(cls, text: str, number: int) -> Piece:
        piece = super().__new__(cls, text)
        piece.id = number
        return piece


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its tokenizer."""

    model: Any  # PreTrainedModel
    tokenizer: Any  # PreTrainedTokenizerBase
    beam_size: int
    max_length: int

    @functools.cached_property
    def _sites(self) -> dict[str, list[nn.Module]]:
        """Kind → its attention modules, layer by layer."""
        found: dict[str, list[nn.Module]] = defaultdict(list)
        for module, kind in attention_sites(self.model).items():
            found[kind].append(module)
        return found

    @functools.cached_property
    def kinds(self) -> dict[str, Kind]:
        """Kind of attention → its normalizer, layers and heads."""
        names = chosen_normalizers(self.model.config)
        return {
            kind: Kind(
                "softmax" if names[kind] == STOCK else names[kind], len(modules), _heads(modules)
            )
            for kind, modules in self._sites.items()
        }

    @property
    def is_encoder(self) -> bool:
        """Whether there is only an encoder."""
        return not self.model.config.is_encoder_decoder and set(self.kinds) == {"encoder"}

    @property
    def is_language_model(self) -> bool:
        """Whether a text is read from its start on, and each token predicted from those before."""
        return not self.model.config.is_encoder_decoder and not self.is_encoder

    @functools.cached_property
    def special(self) -> frozenset[str]:
        """Tokens that the tokenizer adds around a text."""
        return frozenset(self.tokenizer.all_special_tokens)

    @functools.cached_property
    def _start(self) -> int:
        settings = (self.model.generation_config, self.model.config, self.tokenizer)
        wanted = ("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id")
        names = wanted[int(self.is_language_model) :]
        found = (getattr(owner, name, None) for name in names for owner in settings)
        return int(next(number for number in found if isinstance(number, int)))

    @functools.cached_property
    def _end(self) -> int:
        number = self.tokenizer.eos_token_id
        return int(self.tokenizer.sep_token_id if number is None else number)

    @property
    def start(self) -> str:
        """The token that the decoder reads first."""
        return "" if self.is_encoder else str(self._pieces([self._start])[0])

    @property
    def end(self) -> str:
        """The token that ends a target."""
        return "" if self.is_encoder else str(self._pieces([self._end])[0])

    @property
    def facts(self) -> dict[str, str]:
        """What a trace's header says about the model."""
        kinds = {"encoder": self.is_encoder, "language model": self.is_language_model}
        what = next((name for name, so in kinds.items() if so), "translation")
        return {"type": what, "architecture": type(self.model).__name__}

    @property
    def search(self) -> dict[str, Any]:
        """How :meth:`translate` searches."""
        return {"beam_size": self.beam_size, "max_length": self.max_length}

    @property
    def versions(self) -> dict[str, str]:
        """The toolkit and its version."""
        return {"transformers": transformers.__version__}

    @functools.cached_property
    def _style(self) -> str | None:
        return foreign_style(list(self.tokenizer.get_vocab()))

    def tokens(self, side: str) -> list[str]:
        """The vocabulary, as far as it shows how words are marked."""
        return [SPACE] if self._style else list(self.tokenizer.get_vocab())

    def _pieces(self, numbers: Sequence[int]) -> list[Piece]:
        texts = self.tokenizer.convert_ids_to_tokens(list(numbers))
        # A model may have more rows in its embedding than its tokenizer has tokens.
        texts = [text or f"<{n}>" for text, n in zip(texts, numbers, strict=True)]
        if self._style:
            texts = as_sentencepiece(texts, self._style, self.special)
        return [Piece(text, number) for text, number in zip(texts, numbers, strict=True)]

    def _numbers(self, tokens: Sequence[str]) -> list[int]:
        convert = self.tokenizer.convert_tokens_to_ids
        return [t.id if isinstance(t, Piece) else int(convert(t)) for t in tokens]

    def split(self, line: str, side: str) -> list[str]:
        """A line of plain text as the model's subwords, with what the tokenizer puts around it."""
        if not line.strip():
            return []
        if self.is_language_model:
            return [*self._pieces(self.tokenizer(line, add_special_tokens=False)["input_ids"])]
        if side == "source":
            return [*self._pieces(self.tokenizer(line)["input_ids"])]
        numbers = self.tokenizer(text_target=line)["input_ids"]
        return [*self._pieces(numbers[:-1] if numbers[-1:] == [self._end] else numbers)]

    def translate(self, source: Sequence[str]) -> list[str]:
        """The model's own output for one sentence."""
        given = self._tensor(self._numbers(source))
        numbers = self.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            num_beams=self.beam_size,
            max_new_tokens=self.max_length,
            do_sample=False,
        )[0].tolist()[1:]
        return [
            *self._pieces(numbers[: numbers.index(self._end)] if self._end in numbers else numbers)
        ]

    def attend(self, source: Sequence[str], target: Sequence[str]) -> Forced:
        """Force ``target`` on one sentence; return what was attended to, and the scores."""
        made = self._numbers(target)
        read = self._tensor([self._start, *made]) if not self.is_encoder else None
        with torch.no_grad(), record_attention() as recorded:
            if self.is_encoder:
                out = self.model(self._tensor(self._numbers(source)))
            elif self.is_language_model:
                out = self.model(read, use_cache=False)
            else:
                given = self._tensor(self._numbers(source))
                out = self.model(given, decoder_input_ids=read, use_cache=False)
        attention = {}
        for kind, modules in self._sites.items():
            weights = torch.stack([recorded[module].weights[0] for module in modules])
            support = torch.stack([recorded[module].support[0] for module in modules])
            attention[kind] = Attention(weights.float().cpu().numpy(), support.cpu().numpy())
        logits = None if self.is_encoder else getattr(out, "logits", None)
        if logits is None:
            return Forced(attention, ())
        table = logits[0].float().log_softmax(-1)
        wanted = torch.tensor([*made, self._end], device=table.device)
        return Forced(attention, tuple(table.gather(-1, wanted[:, None])[:, 0].tolist()))

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor([list(numbers)], device=self.model.device)


def _heads(modules: Sequence[nn.Module]) -> int:
    """How many heads every one of these modules has; they call it by several names."""
    names = ("num_heads", "n_heads", "num_attention_heads", "n_head")
    found = {
        next(getattr(o, n) for n in names for o in (module, module.config) if hasattr(o, n))
        for module in modules
    }
    if len(found) > 1:
        raise UserError("the layers of this model differ in their number of heads")
    return int(found.pop())


def load_folder(
    path: str,
    gpu: int = -1,
    *,
    beam_size: int = 5,
    max_length: int = 250,
    attention_normalizer: str | None = None,
) -> LoadedModel:
    """The model that ``save_pretrained`` wrote into the folder ``path``, with its tokenizer.

    Code that a folder may bring with it is never run.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        names = AutoConfig.from_pretrained(path, local_files_only=True).architectures or [""]
        model_class = getattr(transformers, names[0], None)
        if model_class is None:
            raise ValueError(f"it names no architecture of transformers, but {names[0]!r}")
        model: PreTrainedModel = model_class.from_pretrained(path, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        if model.main_input_name != "input_ids":
            raise ValueError(f"it reads {model.main_input_name}, not text")
        if attention_normalizer:
            use(model, attention_normalizer)
        elif set(chosen_normalizers(model.config).values()) == {STOCK}:
            use(model, "softmax")  # the same, by code that records
    except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{path}: this model of transformers cannot be used: {reason}") from error
    model.eval().to("cpu" if gpu < 0 else f"cuda:{gpu}")
    return LoadedModel(model, tokenizer, beam_size, max_length)
