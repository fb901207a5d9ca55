"""Mermaid's flow charts as inline SVG, from top to bottom: nothing is fetched or run to show them.

What our pages use of Mermaid is understood and the rest is an error: ``flowchart LR``, nodes
``a[text]``, ``a([text])``, ``a{text}``, ``a[(text)]``, and edges ``a -->|text| b``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from docutils import nodes
from sphinx.errors import ExtensionError

LINE, CHARACTER, GAP = 17, 6.7, 26  # height of a line, width of a character, distance of boxes
SHAPES = (("([", "])", "round"), ("[(", ")]", "store"), ("[", "]", "box"), ("{", "}", "choice"))
EDGE = re.compile(r"\s*-->\s*(?:\|(?P<label>[^|]*)\|)?\s*")
NAME = re.compile(r"\w+")


@dataclass
class Box:
    """A node of the chart, and where it is drawn."""

    lines: list[str]
    shape: str = "box"
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    inputs: list[str] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * CHARACTER + 24

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + 14


Chart = tuple[dict[str, Box], list[tuple[str, str, list[str]]]]


def parse(text: str) -> Chart:
    """Boxes by name, and edges (from, to, lines of the label)."""
    first, *rest = [line.strip() for line in text.splitlines() if line.strip()]
    if first != "flowchart LR":
        raise ExtensionError(f"only 'flowchart LR' is drawn, not {first!r}")
    boxes: dict[str, Box] = {}
    edges: list[tuple[str, str, list[str]]] = []
    for line in rest:
        source, at = _node(line, 0, boxes)
        while at < len(line):
            arrow = EDGE.match(line, at)
            if arrow is None:
                raise ExtensionError(f"cannot draw {line!r}: expected --> at {line[at:]!r}")
            target, at = _node(line, arrow.end(), boxes)
            edges.append((source, target, _lines(arrow["label"] or "")))
            boxes[target].inputs.append(source)
            source = target
    return boxes, edges


def _lines(text: str) -> list[str]:
    return [line.strip() for line in re.split(r"<br\s*/?>", text.strip('" ')) if line.strip()]


def _node(line: str, at: int, boxes: dict[str, Box]) -> tuple[str, int]:
    name = NAME.match(line, at)
    if name is None:
        raise ExtensionError(f"cannot draw {line!r}: no node at {line[at:]!r}")
    at = name.end()
    for opening, closing, shape in SHAPES:
        if line.startswith(opening, at):
            end = line.index(closing, at + len(opening))
            boxes[name[0]] = Box(_lines(line[at + len(opening) : end]), shape)
            return name[0], end + len(closing)
    boxes.setdefault(name[0], Box([name[0]]))
    return name[0], at


def _place(chart: Chart) -> tuple[float, float]:
    """Layers by the longest way to a box, then coordinates; returns the chart's size."""
    boxes, edges = chart
    for _ in boxes:  # as many rounds as there are boxes settle every way without a circle
        for source, target, _label in edges:
            boxes[target].layer = max(boxes[target].layer, boxes[source].layer + 1)
    if any(box.layer > len(boxes) for box in boxes.values()):
        raise ExtensionError("a flow chart with a circle is not drawn")
    # What leads somewhere stands right above it, not at the top.
    for source, _, _label in reversed(edges):
        after = [boxes[target].layer for name, target, _ in edges if name == source]
        boxes[source].layer = min(after) - 1
    layers: dict[int, list[Box]] = {}
    for box in boxes.values():
        layers.setdefault(box.layer, []).append(box)
    room = {name: _label_width(name, edges) for name in boxes}
    names = {id(box): name for name, box in boxes.items()}
    wide = {
        n: sum(max(b.width, room[names[id(b)]]) + GAP for b in row) for n, row in layers.items()
    }
    width = max(wide.values())
    y = 4.0
    for number in sorted(layers):
        row = layers[number]
        # Below what they come from, in that order.
        row.sort(key=lambda box: _centre([boxes[name] for name in box.inputs]))
        if y > 4:
            lines = max((len(label) for _, t, label in edges if boxes[t] in row), default=0)
            y += 30 + lines * LINE
        x = (width - wide[number]) / 2
        for box in row:
            share = max(box.width, room[names[id(box)]]) + GAP
            box.x, box.y = x + (share - box.width) / 2, y
            x += share
        y += max(box.height for box in row)
    return width, y + 4


def _label_width(name: str, edges: list[tuple[str, str, list[str]]]) -> float:
    """Of the labels on the edges into a box, side by side."""
    labels = [label for _, target, label in edges if target == name and label]
    return sum(max(map(len, label)) * CHARACTER + 30 for label in labels)


def _centre(boxes: list[Box]) -> float:
    return sum(box.x + box.width / 2 for box in boxes) / len(boxes) if boxes else 0.0


def draw(text: str) -> str:
    """The chart as SVG; its colours are the theme's."""
    chart = parse(text)
    width, height = _place(chart)
    return "\n".join(
        [
            f'<div class="diagram"><svg viewBox="0 0 {width:.0f} {height:.0f}" '
            f'style="width:{width:.0f}px" role="img" aria-label="flow chart">',
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
            *_edges(chart),
            *(_box(box) for box in chart[0].values()),
            "</svg></div>",
        ]
    )


def _edges(chart: Chart) -> Iterator[str]:
    boxes, edges = chart
    for number, (source, target, label) in enumerate(edges):
        start, end = boxes[source], boxes[target]
        into = [n for n, edge in enumerate(edges) if edge[1] == target]
        into.sort(key=lambda n: _centre([boxes[edges[n][0]]]))
        # Several edges into a box end side by side, so that their labels stand apart.
        place = (into.index(number) + 1) / (len(into) + 1)
        share = max(end.width, _label_width(target, edges))
        x, y = start.x + start.width / 2, start.y + start.height
        to_x, to_y = end.x + end.width / 2 + share * (place - 0.5), end.y - 1
        inside = min(max(to_x, end.x + 10), end.x + end.width - 10)
        bend = (to_y - y) / 2
        way = (x, y, x, y + bend, inside, to_y - bend, inside, to_y)
        path = "M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}".format(*way)
        yield f'<path class="edge" d="{path}" marker-end="url(#arrow)"/>'
        if label:
            at = to_y - 14 - (len(label) - 1) * LINE / 2
            yield _text(label, to_x, at, "label")


def _text(lines: list[str], x: float, y: float, kind: str) -> str:
    top = y - (len(lines) - 1) * LINE / 2 + 4
    spans = "".join(
        f'<tspan x="{x:.1f}" y="{top + number * LINE:.1f}">{html.escape(line)}</tspan>'
        for number, line in enumerate(lines)
    )
    return f'<text class="{kind}">{spans}</text>'


def _box(box: Box) -> str:
    x, y, w, h = box.x, box.y, box.width, box.height
    text = _text(box.lines, x + w / 2, y + h / 2, "node")
    if box.shape == "choice":
        xs = (x + 9, x + w - 9, x + w, x + w - 9, x + 9, x)
        ys = (y, y, y + h / 2, y + h, y + h, y + h / 2)
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in zip(xs, ys, strict=True))
        return f'<polygon class="box" points="{points}"/>{text}'
    radius = {"round": h / 2, "store": 12, "box": 3}[box.shape]
    double = ' stroke-dasharray="4 2"' if box.shape == "store" else ""
    return (
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" '
        f'rx="{radius:.1f}"{double}/>{text}'
    )


def _replace(app: Any, tree: nodes.document) -> None:
    for block in list(tree.findall(nodes.literal_block)):
        if block.get("language") == "mermaid":
            block.replace_self(nodes.raw("", draw(block.astext()), format="html"))


def setup(app: Any) -> dict[str, bool]:
    """Draw every block of language ``mermaid``."""
    app.connect("doctree-read", _replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
