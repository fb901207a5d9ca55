"""From traces and options to heatmaps and bars."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onmt_evsoftmax.attended.alignment import Gold, gold_of
from onmt_evsoftmax.normalizers.registry import PALETTE
from onmt_evsoftmax.plot import bars, choice, panels
from onmt_evsoftmax.report import style
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.trace import Grid, Record, grid
from onmt_evsoftmax.trace.derived import DERIVED
from onmt_evsoftmax.trace.source import Source


def make(sources: Sequence[Source], options: Namespace, gold: Sequence[Gold] | None) -> None:
    """Draw ``options.output`` (.png, .svg or .pdf)."""
    count = min(len(source.trace) for source in sources)
    line = choice.one(options.sentence or "1", count, "--sentence")
    kind = options.kind or _default_kind(sources)
    if gold is not None and kind != "context":
        raise UserError(f"--align outlines links in heatmaps of context attention, not of {kind}'s")
    views = [(source, *_view(source, line, kind, options.level)) for source in sources]
    if options.bars is not None:
        _bars(views, kind, options)
    else:
        _heatmaps(views, kind, options, gold)


def _default_kind(sources: Sequence[Source]) -> str:
    kinds = sources[0].trace.header.kinds
    return "context" if "context" in kinds else next(iter(kinds))


def _view(source: Source, line: int, kind: str, level: str) -> tuple[Record, Grid]:
    record = source.sentence(line)
    if kind not in record.attention:
        have = ", ".join(record.attention) or "none"
        raise UserError(f"{source.trace.path} has no {kind} attention, only {have}; see --kind")
    view = grid(record, kind, level, source.trace.header.subwords)
    if not view.rows or not view.keys:
        raise UserError(f"{source.trace.path}: sentence {line} is empty; choose another")
    return record, view


def _heads(
    source: Source, record: Record, view: Grid, kind: str, options: Namespace
) -> list[tuple[str, NDArray[np.floating], NDArray[np.bool_]]]:
    """(name, weights, support) of every layer and head that was asked for."""
    layers, heads = view.weights.shape[:2]
    wanted = [
        (choice.DERIVED[head], _derived(source, record, kind, choice.DERIVED[head], options), 0)
        if head in choice.DERIVED
        else (f"head {head + 1}", view, head)
        for head in choice.parse(options.head, heads, "--head", derived=True)
    ]
    return [
        (f"layer {layer + 1}, {name}", of.weights[layer, head], of.support[layer, head])
        for layer in choice.parse(options.layer, layers, "--layer")
        for name, of, head in wanted
    ]


def _derived(source: Source, record: Record, kind: str, name: str, options: Namespace) -> Grid:
    made = DERIVED[name](record)
    if kind not in made.attention:
        raise UserError(
            f"{source.trace.path}: the {name} of {kind} attention goes through the encoder's, "
            "which was not traced"
        )
    return grid(made, kind, options.level, source.trace.header.subwords)


def _heatmaps(
    views: Sequence[tuple[Source, Record, Grid]],
    kind: str,
    options: Namespace,
    gold: Sequence[Gold] | None,
) -> None:
    several = len(views) > 1
    lines = []
    for source, record, view in views:
        outlines = None
        if gold is not None:
            links = gold_of(record, gold, options.align)
            outlines = panels.gold_cells(links, view.row_words, view.key_words)
        lines.append(
            [
                panels.Panel(
                    f"{source.name}\n{name}" if several else f"{kind}, {name}",
                    weights,
                    support,
                    view.available,
                    view.rows,
                    view.keys,
                    outlines,
                )
                for name, weights, support in _heads(source, record, view, kind, options)
            ]
        )
    if several:
        # Traces across, heads down, so that neighbours differ in the normalizer.
        if len({len(line) for line in lines}) > 1:
            raise UserError("the models differ in layers or heads; choose them by number")
        chosen = [line[i] for i in range(len(lines[0])) for line in lines]
    else:
        chosen = lines[0]
    texts = [text for panel in chosen for text in (panel.title, *panel.rows, *panel.keys)]
    with style.readable(texts):
        columns = options.columns or (len(lines) if several else None)
        figure = panels.draw(chosen, columns, options.values)
        style.save(figure, options.output)


def _bars(views: Sequence[tuple[Source, Record, Grid]], kind: str, options: Namespace) -> None:
    keys = views[0][2].keys
    rows = []
    for source, record, view in views:
        if view.keys != keys:
            raise UserError(
                f"{views[0][0].trace.path} and {source.trace.path} differ in their tokens; bars "
                "need the same keys: trace the same text, or try --level word"
            )
        if not 1 <= options.bars <= len(view.rows):
            raise UserError(f"--bars {options.bars}: there are {len(view.rows)} rows, from 1")
        row = options.bars - 1
        normalizer = source.trace.header.kinds[kind].normalizer
        for name, weights, support in _heads(source, record, view, kind, options):
            title = source.name if len(views) > 1 else name
            rows.append(bars.Row(title, normalizer, view.rows[row], weights[row], support[row]))
    if len(rows) > len(PALETTE):
        raise UserError(f"{len(rows)} bars per token are unreadable; choose fewer heads")
    with style.readable([*keys, *(text for row in rows for text in (row.name, row.word))]):
        style.save(bars.draw(rows, keys), options.output)
