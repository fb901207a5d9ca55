"""Whether ``onmt_train`` knows a key and takes its value, asked of its own parser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onmt.opts import train_opts
from onmt.utils.parse import ArgumentParser

from onmt_evsoftmax.report.console import UserError


class _Parser(ArgumentParser):  # type: ignore[misc]
    def error(self, message: str) -> None:
        raise UserError(message)


def check_training_keys(changes: Mapping[str, Any]) -> None:
    """Refuse keys and values that ``onmt_train`` would refuse hours later."""
    parser = _Parser()
    train_opts(parser)
    required = (action.option_strings[0] for action in parser._actions if action.required)
    words = [word for option in required for word in (option, "x")]
    for key, value in changes.items():
        listed = value if isinstance(value, list) else [value]
        words += [f"-{key}", *map(str, listed)] if value is not True else [f"-{key}"]
    try:
        parser.parse_args(words)
    except UserError as error:
        raise UserError(f"--set: {error}") from error
