"""Notebooks without Jupyter: run one and keep its outputs, and show one as a page.

Running is what a kernel does with plain cells: one namespace, the value of a last expression is
shown. It needs no Jupyter (some thirty packages), so that the tests can run the notebook anywhere.

    python docs/_site/notebook.py docs/quickstart.ipynb     # run it and keep its outputs
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

#: How an object can show itself, best first, as Jupyter asks it.
SHOWS = {"_repr_svg_": "image/svg+xml", "_repr_png_": "image/png"}


def run(path: Path, folder: Path) -> dict[str, Any]:
    """Run every cell in ``folder``; the notebook with its outputs. An error in a cell is raised."""
    book: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    with contextlib.chdir(folder):
        for cell in book["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell["execution_count"] = count
                cell["outputs"] = _run_cell("".join(cell["source"]), names, count)
    return book


def _run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source, f"cell {count}")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = _shown(value)
        result = {"data": data, "execution_count": count, "metadata": {}}
        outputs.append({"output_type": "execute_result", **result})
    return outputs


def _shown(value: object) -> dict[str, Any]:
    text = re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))  # the same in every run
    data: dict[str, Any] = {"text/plain": text.splitlines(keepends=True)}
    for method, kind in SHOWS.items():
        drawn = getattr(value, method, lambda: None)()
        if drawn is not None:
            data[kind] = base64.b64encode(drawn).decode() if isinstance(drawn, bytes) else drawn
            break
    return data


def as_markdown(text: str, images: Path) -> str:
    """The notebook as a page; its pictures are written into ``images``, beside the page."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts.append(_output(output, images))
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any], images: Path) -> str:
    data = output.get("data", {})
    for kind, ending in (("image/svg+xml", "svg"), ("image/png", "png")):
        if kind in data:
            drawn = "".join(data[kind])
            content = drawn.encode() if ending == "svg" else base64.b64decode(drawn)
            name = f"{hashlib.sha256(content).hexdigest()[:12]}.{ending}"
            images.mkdir(parents=True, exist_ok=True)
            (images / name).write_bytes(content)
            # Relative to the notebook, as the links in its text are.
            return f"![output of the cell above]({images.parent.name}/{images.name}/{name})"
    text = "".join(output.get("text") or data.get("text/plain") or "").rstrip()
    return f"```text\n{text}\n```"


def main(path: Path) -> None:
    """Run the notebook and write it back with its outputs."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        book = run(path.resolve(), Path(folder))
    text = json.dumps(book, ensure_ascii=False, indent=1) + "\n"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
