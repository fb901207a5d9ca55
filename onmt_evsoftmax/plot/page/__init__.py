"""One self-contained HTML file to explore traces: nothing fetched, data decoded on demand.

Every sentence of every trace is one compressed block of text inside the file; the browser unpacks
the block it shows. Weights have one byte each, enough for the two digits the page prints: 0 is an
exact zero, any other byte *b* the weight ((b − 1) / 254)².
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import onmt_evsoftmax
from onmt_evsoftmax.attended.alignment import Gold, gold_of
from onmt_evsoftmax.corpora.marks import labels, word_texts
from onmt_evsoftmax.report import palette
from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.trace import KINDS, Attention, Header, Record, Tokens
from onmt_evsoftmax.trace.derived import rollout, rollout_kinds
from onmt_evsoftmax.trace.source import Source

_SCRIPTS = ("data.js", "matrix.js", "lines.js", "panel.js", "finder.js", "app.js")


def write_page(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    lines: Sequence[int],
    *,
    title: str = "Attention",
    kinds: Sequence[str] = KINDS,
    level: str = "subword",
    gold: Sequence[Gold] | None = None,
    gold_name: str = "gold alignment",
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Write the page of ``lines`` (source lines, from 1) of all traces, side by side.

    ``level``: the units it first shows; both can be chosen on the page.
    """
    headers = [source.trace.header for source in sources]
    colours = palette.colours([header.label for header in headers])
    present = [kind for kind in KINDS if kind in kinds and any(kind in h.kinds for h in headers)]
    script = "\n".join(["'use strict';", *(_asset(name) for name in _SCRIPTS)])
    shades = {f"ramp-{i}": colour for i, colour in enumerate(palette.WEIGHTS)}
    light = "".join(
        f"--{name}: {colour}; " for name, colour in {**shades, "gold": palette.GOLD}.items()
    )
    style = f":root {{ {light}}}\n{_asset('page.css')}"
    values = {
        "title": html.escape(title),
        "version": html.escape(onmt_evsoftmax.__version__),
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
    }
    before, after = (
        re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], part)
        for part in _asset("page.html").split("{{data}}")
    )
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(before.encode())
        texts = []
        for position, line in enumerate(lines):
            for number, source in enumerate(sources):
                record = source.sentence(line)
                links = _links(gold_of(record, gold, gold_name)) if gold is not None else None
                block = encode_sentence(record, source.trace.header, present, links)
                _write_block(file, f"s{number}.{position}", block)
            # A language model has only a target to find the sentence by.
            side = "source" if record.source.tokens else "target"
            words = word_texts(getattr(record, side), source.trace.header.subwords[side])
            texts.append({"line": line, "text": " ".join(words)})
            progress()
        book = {
            "about": headers[0].source.get("name", ""),
            "kinds": present,
            "rollouts": [k for k in present if any(k in rollout_kinds(h.kinds) for h in headers)],
            "units": level,
            "traces": [_about(*pair) for pair in zip(sources, colours, strict=True)],
            "sentences": texts,
        }
        _write_block(file, "book", json.dumps(book, ensure_ascii=False).encode())
        file.write(after.encode())


def encode_sentence(
    record: Record, header: Header, kinds: Sequence[str], gold: list[list[int]] | None = None
) -> bytes:
    """What the page needs of one sentence: a length, JSON, then one byte per weight."""
    chosen = {kind: a for kind, a in record.attention.items() if kind in kinds}
    for kind, attention in rollout(record).attention.items():
        if kind in kinds:
            chosen[f"{kind} rollout"] = attention
    facts: dict[str, Any] = {
        "source": _side(record.source, header.subwords["source"]),
        "target": _side(record.target, header.subwords["target"]),
        "start": record.prefix.tokens[0] if record.prefix.tokens else "",
        "attention": {kind: attention.shape for kind, attention in chosen.items()},
    }
    if gold is not None:
        facts["gold"] = gold
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()
    codes = b"".join(quantise(attention).tobytes() for attention in chosen.values())
    return struct.pack("<I", len(text)) + text + codes


def quantise(attention: Attention) -> NDArray[np.uint8]:
    """One byte per weight, in steps of its square root; only an exact zero becomes 0."""
    steps = 1 + np.rint(np.sqrt(np.clip(attention.weights, 0, 1)) * 254)
    return np.where(attention.support, steps, 0).astype(np.uint8)


def _side(side: Tokens, scheme: str) -> dict[str, Any]:
    return {"names": labels(side, scheme), "words": side.words, "texts": word_texts(side, scheme)}


def _links(gold: Gold) -> list[list[int]]:
    """(source word, target word, 1 if sure) of every link."""
    return [[*link, int(link in gold.sure)] for link in sorted(gold.possible)]


def _about(source: Source, colour: str) -> dict[str, Any]:
    header = source.trace.header
    return {
        "name": source.name,
        "colour": colour,
        "model": str(header.model.get("name", "")),
        "hash": f"sha256 {header.model.get('sha256', '')}",
        "kinds": {
            kind: {
                "normalizer": about.normalizer,
                "layers": about.layers,
                "heads": about.heads,
                "alphas": about.alphas,
            }
            for kind, about in header.kinds.items()
        },
    }


def _write_block(file: BinaryIO, name: str, data: bytes) -> None:
    # An unknown type keeps the browser from reading the block as a program.
    packed = base64.b64encode(zlib.compress(data, 6))
    file.write(f'<script type="text/x-block" id="{name}">'.encode() + packed + b"</script>\n")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
