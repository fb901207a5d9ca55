"""A checkpoint that tells what it attends to, sentence by sentence.

Every sentence runs through the model alone, without padding, so its record cannot depend on a batch
size. If no target is given the model first translates; then that output is forced through the same
modules, which record. (Decoding step by step with a cache computes the same attention.)
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import onmt_evsoftmax
from onmt_evsoftmax.corpora.marks import Tokens, detect_scheme, group
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace.record import KINDS, Attention, Record, prefix_of
from onmt_evsoftmax.trace.storage import Header, Kind
from onmt_evsoftmax.trace.text import Split, Text

#: Sites of OpenNMT-py's models by the plugin's name → kind of attention in a trace. The separate
#: copy attention of RNN models is not traced.
_KIND = {**{kind: kind for kind in KINDS}, "global": "context"}


class Tracer:
    """One loaded checkpoint. ``options`` are those of ``onmt_translate``, without their dash."""

    def __init__(
        self,
        path: str,
        kinds: Sequence[str] = KINDS,
        schemes: Mapping[str, str] | None = None,
        gpu: int = -1,
        **options: Any,
    ) -> None:
        from onmt_evsoftmax.opennmt import load_model

        self.path, self.options = path, options
        self.sha256 = _checksum(path)
        try:
            self.loaded = load_model(path, gpu, **options)
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise UserError(f"{path} is not a checkpoint of OpenNMT-py ({error!r})") from error
        self.kinds = self._kinds(kinds)
        vocabs = self.loaded.vocabs
        self.subwords = {
            "source": (schemes or {}).get("source") or detect_scheme(vocabs["src"].ids_to_tokens),
            "target": (schemes or {}).get("target") or detect_scheme(vocabs["tgt"].ids_to_tokens),
        }

    def header(self, source: Text, target: Text | None, precision: str = "float32") -> Header:
        """What a trace of these texts says about the run."""
        if self.loaded.is_language_model:
            if target:
                raise UserError(f"{self.path} is a language model: it reads --src, without --tgt")
            target = source
        return Header(
            kinds=self.kinds,
            model={
                "name": Path(self.path).name,
                "sha256": self.sha256,
                "type": "language model" if self.loaded.is_language_model else "translation",
                "encoder": self.loaded.options.encoder_type,
                "decoder": self.loaded.options.decoder_type,
                "overrides": {k: v for k, v in self.options.items() if "normalizer" in k},
            },
            source=source.facts(),
            target=target.facts() if target else {"search": self._search()},
            subwords=self.subwords,
            precision=precision,
            versions=_versions(),
        )

    def records(
        self, source: Text, target: Text | None, split: tuple[Split, Split], start: int = 0
    ) -> Iterator[Record]:
        """The record of every line from ``start`` (from 0) on, in order."""
        targets = target.lines(start) if target else None
        for index, line in enumerate(source.lines(start), start):
            forced = split[1](next(targets)) if targets else None
            try:
                yield self.record(index, split[0](line), forced)
            except (UserError, TypeError, AttributeError, KeyError, AssertionError):
                raise
            except Exception as error:
                # Out of memory, or OpenNMT-py's own "too long", which is a plain Exception.
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise UserError(
                    f"{source.path}, line {index + 1}: the model cannot run on this sentence of "
                    f"{len(split[0](line))} tokens ({reason}); shorten it or leave it out"
                ) from error

    def record(
        self, index: int, source: Sequence[str], target: Sequence[str] | None = None
    ) -> Record:
        """Trace one sentence of subwords; without ``target`` the model's own output is forced."""
        if not source:
            return self._blank(index)
        loaded = self.loaded
        source_side: Sequence[str] = () if loaded.is_language_model else source
        if loaded.is_language_model:
            text = source
        else:
            text = loaded.decode([source])[0] if target is None else target
        from onmt_evsoftmax.opennmt import record_attention

        with record_attention(loaded.model) as calls:
            hidden = loaded.force([source], [text])
        target_side = group([*text, "</s>"], self.subwords["target"])
        scores = self._scores(hidden, target_side.tokens)
        start = loaded.vocabs.get("decoder_start_token", "<s>")
        return Record(
            index=index,
            source=group(source_side, self.subwords["source"]),
            target=target_side,
            prefix=prefix_of(target_side, start),
            scores=scores,
            score=math.fsum(scores) if scores else math.nan,
            attention=_collect(calls, self.kinds),
        )

    def _scores(self, hidden: Tensor, tokens: Sequence[str]) -> tuple[float, ...]:
        """Log-probability of each target token; a model that copies from the source has none."""
        if getattr(self.loaded.options, "copy_attn", False):
            return ()
        model: Any = self.loaded.model
        with torch.no_grad():
            logits = model.generator(hidden[0]).float()
            output = getattr(model, "output_normalizer", None)
            table = output.log_probabilities(logits) if output else logits.log_softmax(-1)
        ids = torch.tensor(self.loaded.vocabs["tgt"](list(tokens)), device=table.device)
        return tuple(table.gather(-1, ids[:, None])[:, 0].tolist())

    def _kinds(self, wanted: Sequence[str]) -> dict[str, Kind]:
        """Shape, normalizer and learned alphas of each kind of attention the model has."""
        from onmt_evsoftmax.opennmt.swap import attention_sites

        settings = self.loaded.settings
        names: dict[str, str] = {}
        heads: dict[str, int] = {}
        layers: dict[str, int] = defaultdict(int)
        alphas: dict[str, list[list[float]]] = defaultdict(list)
        for site in attention_sites(self.loaded.model):
            kind = _KIND.get(site.kind)
            if kind is None:
                continue
            names[kind] = str(settings.attention.get(site.kind, settings.global_attention))
            heads[kind] = getattr(site.module, "head_count", 1)
            layers[kind] += 1
            for part in site.module.modules():
                if isinstance(alpha := getattr(part, "alpha", None), Tensor):
                    alphas[kind].append(alpha.detach().flatten().tolist())
        present = {
            kind: Kind(names[kind], layers[kind], heads[kind], alphas.get(kind))
            for kind in KINDS
            if kind in names
        }
        if not present:
            raise UserError(f"{self.path}: this model has no attention to trace")
        chosen = {kind: about for kind, about in present.items() if kind in wanted}
        if not chosen:
            raise UserError(
                f"{self.path} has no {' or '.join(wanted)} attention, only {', '.join(present)}"
            )
        return chosen

    def _search(self) -> dict[str, Any]:
        chosen = self.loaded._translate_options
        return {
            name: getattr(chosen, name)
            for name in ("beam_size", "max_length", "length_penalty", "alpha")
            if hasattr(chosen, name)
        }

    def _blank(self, index: int) -> Record:
        nothing = Tokens((), ())
        attention = {}
        for kind, about in self.kinds.items():
            shape = (about.layers, about.heads, 0, 0)
            attention[kind] = Attention(np.zeros(shape, np.float32), np.zeros(shape, bool))
        return Record(index, nothing, nothing, nothing, (), 0.0, attention)


def _collect(calls: Sequence[Any], kinds: Mapping[str, Kind]) -> dict[str, Attention]:
    """Recorded calls of a batch of one → kind → attention of all layers."""
    parts: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for call in calls:
        kind = _KIND.get(call.kind, "")
        if kind in kinds:
            parts[kind][call.layer].append(call)
    # A transformer makes one call per layer; an RNN that feeds its input one per target position.
    return {
        kind: Attention(
            _stack([[c.probabilities[0] for c in parts[kind][n]] for n in sorted(parts[kind])]),
            _stack([[c.support[0] for c in parts[kind][n]] for n in sorted(parts[kind])]),
        )
        for kind in kinds
    }


def _stack(layers: Sequence[Sequence[Tensor]]) -> Any:
    """Tensors (heads, rows, keys), several per layer if rows came one by one → one array."""
    array = torch.stack([torch.cat(list(calls), dim=1) for calls in layers]).cpu()
    return array.numpy() if array.dtype == torch.bool else array.float().numpy()


def _checksum(path: str) -> str:
    """SHA-256 of a checkpoint, which is what makes a trace say of which model it is."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    found = {"onmt_evsoftmax": onmt_evsoftmax.__version__, "torch": torch.__version__}
    try:
        found["OpenNMT-py"] = version("OpenNMT-py")
    except PackageNotFoundError:
        found["OpenNMT-py"] = "not installed as a package"
    return found
