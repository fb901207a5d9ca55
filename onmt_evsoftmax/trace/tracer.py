"""Writes down what a model attends to, sentence by sentence; :mod:`.model` says what it asks of it.

Every sentence runs through the model alone, without padding, so its record cannot depend on a batch
size. If no target is given the model first translates; then that output is forced through the same
modules, which record. (Decoding step by step with a cache computes the same attention.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import onmt_evsoftmax
from onmt_evsoftmax.corpora.marks import Tokens, detect_scheme, group
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace.model import load
from onmt_evsoftmax.trace.record import KINDS, Attention, Record, prefix_of
from onmt_evsoftmax.trace.storage import Header, Kind
from onmt_evsoftmax.trace.text import Split, Text, checksum


class Tracer:
    """One loaded model. ``options`` are those of its toolkit's translation (``beam_size=1``)."""

    def __init__(
        self,
        path: str,
        kinds: Sequence[str] = KINDS,
        schemes: Mapping[str, str] | None = None,
        gpu: int = -1,
        **options: Any,
    ) -> None:
        self.path, self.options = path, options
        folder = Path(path).iterdir() if Path(path).is_dir() else ()
        self.sha256 = checksum(sorted(part for part in folder if part.is_file()) or [path])
        self.model = load(path, gpu, **options)
        self.kinds = self._chosen(kinds)
        self.subwords = {
            side: (schemes or {}).get(side) or detect_scheme(self.model.tokens(side))
            for side in ("source", "target")
        }

    def header(self, source: Text, target: Text | None, precision: str = "float32") -> Header:
        """What a trace of these texts says about the run."""
        if self.model.is_language_model or self.model.is_encoder:
            if target:
                what = "an encoder" if self.model.is_encoder else "a language model"
                raise UserError(f"{self.path} is {what}: it reads --src, without --tgt")
            target = source
        return Header(
            kinds=self.kinds,
            model={
                "name": Path(self.path).name,
                "sha256": self.sha256,
                **self.model.facts,
                "overrides": {k: v for k, v in self.options.items() if "normalizer" in k},
            },
            source=source.facts(),
            target=target.facts() if target else {"search": dict(self.model.search)},
            subwords=self.subwords,
            precision=precision,
            versions={
                "onmt_evsoftmax": onmt_evsoftmax.__version__,
                "torch": torch.__version__,
                **self.model.versions,
            },
        )

    def records(
        self, source: Text, target: Text | None, split: Split | None = None, start: int = 0
    ) -> Iterator[Record]:
        """The record of every line from ``start`` (from 0) on, in order."""
        targets = target.lines(start) if target else None
        for index, line in enumerate(source.lines(start), start):
            given = split(line) if split else self.model.split(line, "source")
            forced = None
            if targets:
                text = next(targets)
                forced = split(text) if split else self.model.split(text, "target")
            try:
                yield self.record(index, given, forced)
            except (UserError, TypeError, AttributeError, KeyError, AssertionError):
                raise
            except Exception as error:
                # Out of memory, or OpenNMT-py's own "too long", which is a plain Exception.
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise UserError(
                    f"{source.path}, line {index + 1}: the model cannot run on this sentence of "
                    f"{len(given)} tokens ({reason}); shorten it or leave it out"
                ) from error

    def record(
        self, index: int, source: Sequence[str], target: Sequence[str] | None = None
    ) -> Record:
        """Trace one sentence of subwords; without ``target`` the model's own output is forced."""
        if not source:
            return self._blank(index)
        model = self.model
        text = source if model.is_language_model else () if model.is_encoder else target
        if text is None:
            text = model.translate(source)
        forced = model.attend(source, text)
        read = () if model.is_language_model else source
        made = () if model.is_encoder else (*text, model.end)
        target_side = group(made, self.subwords["target"], model.special)
        return Record(
            index=index,
            source=group(read, self.subwords["source"], model.special),
            target=target_side,
            prefix=prefix_of(target_side, model.start) if made else Tokens((), ()),
            scores=forced.scores,
            score=math.fsum(forced.scores) if forced.scores else math.nan,
            attention={kind: forced.attention[kind] for kind in self.kinds},
        )

    def _chosen(self, wanted: Sequence[str]) -> dict[str, Kind]:
        """Of the kinds of attention the model has, those that are wanted."""
        present = self.model.kinds
        if not present:
            raise UserError(f"{self.path}: this model has no attention to trace")
        chosen = {kind: present[kind] for kind in KINDS if kind in present and kind in wanted}
        if not chosen:
            raise UserError(
                f"{self.path} has no {' or '.join(wanted)} attention, only {', '.join(present)}"
            )
        return chosen

    def _blank(self, index: int) -> Record:
        nothing = Tokens((), ())
        attention = {}
        for kind, about in self.kinds.items():
            shape = (about.layers, about.heads, 0, 0)
            attention[kind] = Attention(np.zeros(shape, np.float32), np.zeros(shape, bool))
        return Record(index, nothing, nothing, nothing, (), 0.0, attention)
