"""Fine-tuning settings that state only what differs: later YAML files overrule earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from onmt_evsoftmax.corpora.parallel import lines_of
from onmt_evsoftmax.report.console import UserError


def read(path: Path) -> dict[str, Any]:
    """The keys of one YAML file; a key written twice is an error, not a silent replacement."""
    text = "\n".join(lines_of(path))
    try:
        node = yaml.compose(text)
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or node is None:
        raise UserError(f"{path} must be a list of keys and values")
    keys = [key.value for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{path}: the key {key!r} is written twice")
    return found


def merged(paths: Sequence[Path]) -> list[str]:
    """The lines of one YAML file with the keys of all ``paths``; the last to set a key wins."""
    settings: dict[str, Any] = {}
    for path in paths:
        settings |= read(path)
    head = f"# Made from {' and then '.join(path.name for path in paths)}; edit those instead."
    return [head, *yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).splitlines()]
