"""Counts of one or several traces as tables and as JSON, every aggregate named."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onmt_evsoftmax.attended.alignment import RULES, AlignmentScores
from onmt_evsoftmax.attended.counts import Counts, KindCounts
from onmt_evsoftmax.attended.moments import Summary
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.statistics import Mean, number
from onmt_evsoftmax.report.table import Table, as_json
from onmt_evsoftmax.trace import Kind

TABLES = ("kind", "layer", "head", "length", "position", "derived", "paper")
_COLUMNS = ("attended", "sd", "available", "density", "entropy", "diversity")
#: The count of the paper's Table 3: the first head of the last layer of context attention.
PAPER = "last layer, first head (the paper's)"


@dataclass(frozen=True)
class Entry:
    """One trace under the name it has in the tables."""

    name: str
    counts: Counts
    alignment: AlignmentScores | None = None


@dataclass(frozen=True)
class Report:
    """What ``count_attended`` prints."""

    entries: Sequence[Entry]

    def tables(self, by: Sequence[str] = ("kind", "layer")) -> list[Table]:
        """The tables named in ``by``, and the alignment scores if there are any."""
        makers = {
            "kind": self._by_kind,
            "layer": self._by_layer,
            "head": self._by_head,
            "length": lambda: self._by_group("length"),
            "position": lambda: self._by_group("position"),
            "derived": self._derived,
            "paper": self._paper,
        }
        tables = [makers[name]() for name in TABLES if name in by]
        if any(entry.alignment for entry in self.entries):
            tables.append(self._alignment())
        return tables

    def json(self) -> str:
        """Everything, with full precision."""
        return as_json([_entry_json(entry) for entry in self.entries])

    def _notes(self) -> list[str]:
        counts = self.entries[0].counts
        unit = counts.level + "s"
        rows = "every decoding step, </s> included" if counts.specials else "text, without </s>"
        return [
            f"attended, available: {unit} per row, ± standard error (sentences as clusters); "
            "sd: standard deviation over rows",
            f"rows: {rows}; entropy and diversity (Jensen–Shannon, between heads) in nats",
            "sentences: " + ", ".join(f"{e.name} {e.counts.sentences}" for e in self.entries),
        ]

    def _table(self, title: str, labels: Sequence[str], rows: list[list[str]]) -> Table:
        columns = ["trace", "attention", *labels, *_COLUMNS]
        # Only a model that learns them has alphas, and only a layer of several heads diversity.
        used = [i for i in range(len(columns)) if not rows or any(row[i] != "–" for row in rows)]
        names = sum(i < 2 + len(labels) for i in used)
        rows = [[row[i] for i in used] for row in rows]
        return Table(title, [columns[i] for i in used], rows, names, self._notes())

    def _by_kind(self) -> Table:
        rows = []
        for entry, kind, counts in self._each_kind():
            rows.append([entry.name, kind, "all layers and heads", *_cells(counts)])
            if kind == "context":
                last = counts.layers - 1
                rows.append([entry.name, kind, PAPER, *_cells(counts, last, 0)])
        return self._table("Attended tokens by kind of attention", ["heads"], rows)

    def _by_layer(self) -> Table:
        rows = [
            [entry.name, kind, str(layer + 1), *_cells(counts, layer)]
            for entry, kind, counts in self._each_kind()
            for layer in range(counts.layers)
        ]
        return self._table("Attended tokens by layer, all heads", ["layer"], rows)

    def _by_head(self) -> Table:
        rows = []
        for entry, kind, counts in self._each_kind():
            alphas = entry.counts.header.kinds[kind].alphas
            for layer in range(counts.layers):
                for head in range(counts.heads):
                    alpha = number(alphas[layer][head], 3) if alphas else "–"
                    where = [str(layer + 1), str(head + 1), alpha]
                    rows.append([entry.name, kind, *where, *_cells(counts, layer, head)])
        return self._table("Attended tokens by head", ["layer", "head", "alpha"], rows)

    def _by_group(self, by: str) -> Table:
        rows = []
        for entry, kind, counts in self._each_kind():
            groups = counts.length_groups() if by == "length" else counts.position_groups()
            for group, name in groups:
                rows.append([entry.name, kind, name, *_cells(counts, group=group)])
        label = "source length" if by == "length" else "position of the row"
        return self._table(f"Attended tokens by {label}, all layers and heads", [label], rows)

    def _derived(self) -> Table:
        rows = [
            [entry.name, kind, name, str(layer + 1), *_cells(counts, layer)]
            for entry in self.entries
            for name, kinds in entry.counts.derived.items()
            for kind, counts in kinds.items()
            for layer in range(counts.layers)
        ]
        table = self._table("Attended tokens of derived rows", ["row", "layer"], rows)
        note = "rollout: attention through all layers up to this one (Abnar and Zuidema, 2020)"
        return dataclasses.replace(table, notes=[*table.notes, note])

    def _paper(self) -> Table:
        """The last row of the paper's translation table: one column per trace."""
        with_context = [e for e in self.entries if "context" in e.counts.kinds]
        if not with_context:
            raise UserError("the paper counts context attention, which these traces do not have")
        summaries = [_paper_summary(entry.counts) for entry in with_context]
        rows = [
            ["# attended ± sd", *(Mean(s.mean, s.sd).text(1) for s in summaries)],
            ["# attended ± se", *(Mean(s.mean, s.se).text(2) for s in summaries)],
        ]
        title = "Attended source tokens, context attention, last layer, first head"
        return Table(title, ["", *(e.name for e in with_context)], rows, 1, self._notes()[:1])

    def _alignment(self) -> Table:
        rows = []
        for entry in self.entries:
            if entry.alignment is None:
                continue
            for rule in RULES:
                for name, scores in _alignment_rows(entry.alignment, rule):
                    cells = [number(100 * scores[key], 1) for key in ("aer", "precision", "recall")]
                    rows.append([entry.name, rule, name, *cells])
        return Table(
            "Context attention as word alignment, %",
            ["trace", "links", "head", "AER", "precision", "recall"],
            rows,
            3,
            [
                "links: argmax, the source word with the largest weight; support, all attended",
                "AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|); best: the head with the lowest AER here",
            ],
        )

    def _each_kind(self) -> list[tuple[Entry, str, KindCounts]]:
        return [(e, kind, counts) for e in self.entries for kind, counts in e.counts.kinds.items()]


def _cells(counts: KindCounts, layer: int = -1, head: int = -1, group: int = 0) -> list[str]:
    """The number columns of one row of a table."""
    summary = {name: means.summary(layer, head, group) for name, means in counts.measures.items()}
    attended = summary["attended"]
    # Diversity is a property of a layer, not of one of its heads.
    diversity = counts.diversity.summary(layer, group=group).mean if head == -1 else np.nan
    return [
        Mean(attended.mean, attended.se).text(),
        number(attended.sd),
        number(summary["available"].mean),
        number(summary["density"].mean, 3),
        number(summary["entropy"].mean, 3),
        number(diversity, 3),
    ]


def _paper_summary(counts: Counts) -> Summary:
    context = counts.kinds["context"]
    return context.measures["attended"].summary(context.layers - 1, 0)


def _alignment_rows(scores: AlignmentScores, rule: str) -> list[tuple[str, dict[str, float]]]:
    """The mean head of every layer, then the single head with the lowest error rate."""
    links = scores.links[rule]
    heads = links.error_rate[:, :-1]
    defined = np.where(np.isnan(heads), np.inf, heads)
    best = divmod(int(defined.argmin()), heads.shape[1])
    places = [(f"layer {layer + 1}, mean", (layer, -1)) for layer in range(len(heads))]
    places.append((f"best: layer {best[0] + 1}, head {best[1] + 1}", best))
    return [
        (
            name,
            {
                "aer": float(links.error_rate[at]),
                "precision": float(links.precision[at]),
                "recall": float(links.recall[at]),
            },
        )
        for name, at in places
    ]


def _entry_json(entry: Entry) -> dict[str, Any]:
    counts, header = entry.counts, entry.counts.header
    result: dict[str, Any] = {
        "name": entry.name,
        "model": dict(header.model),
        "source": dict(header.source),
        "target": dict(header.target),
        "level": counts.level,
        "rows": "all" if counts.specials else "text",
        "sentences": counts.sentences,
        "empty_sentences": counts.empty,
        "definitions": {
            "attended": "keys in the support of a row",
            "se": "standard error of the mean over rows, sentences as clusters",
            "sd": "standard deviation over rows",
            "diversity": "Jensen-Shannon divergence between the heads of a layer, nats",
            "paper": "context attention, last layer, first head (head 0), over real tokens only",
        },
        "kinds": {
            kind: {
                **_kind_json(one, header.kinds[kind]),
                "derived": {
                    name: [
                        {"layer": layer + 1, **_measures(kinds[kind], layer)}
                        for layer in range(one.layers)
                    ]
                    for name, kinds in counts.derived.items()
                    if kind in kinds
                },
            }
            for kind, one in counts.kinds.items()
        },
    }
    if "context" in counts.kinds:
        result["paper"] = _paper_summary(counts).json()
    if entry.alignment is not None:
        result["alignment"] = {
            rule: {
                "aer": _matrix(links.error_rate),
                "precision": _matrix(links.precision),
                "recall": _matrix(links.recall),
            }
            for rule, links in entry.alignment.links.items()
        }
        result["definitions"]["alignment"] = "[layer][head]; the last column is the mean of heads"
    return result


def _measures(
    counts: KindCounts, layer: int = -1, head: int = -1, group: int = 0
) -> dict[str, Any]:
    return {n: m.summary(layer, head, group).json() for n, m in counts.measures.items()}


def _kind_json(counts: KindCounts, about: Kind) -> dict[str, Any]:
    layers = []
    for layer in range(counts.layers):
        heads = []
        for head in range(counts.heads):
            one = {"head": head + 1, **_measures(counts, layer, head)}
            one["histogram"] = counts.histogram[layer, head].tolist()
            if about.alphas:
                one["alpha"] = about.alphas[layer][head]
            heads.append(one)
        diversity = counts.diversity.summary(layer).json()
        measures = _measures(counts, layer)
        layers.append({"layer": layer + 1, **measures, "diversity": diversity, "heads": heads})
    return {
        "normalizer": about.normalizer,
        "all": {**_measures(counts), "diversity": counts.diversity.summary().json()},
        "layers": layers,
        "by_source_length": {n: _measures(counts, group=g) for g, n in counts.length_groups()},
        "by_position": {n: _measures(counts, group=g) for g, n in counts.position_groups()},
    }


def _matrix(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(v) else float(v) for v in row] for row in values]
