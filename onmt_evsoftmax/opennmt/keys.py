"""A key in a YAML file, or an option, that no OpenNMT-py command knows is an error.

OpenNMT-py's training drops what it does not know without a word: a misspelt normalizer would leave
the model with softmax.
"""

from __future__ import annotations

import difflib
import functools
from argparse import Namespace
from typing import Any

from onmt_evsoftmax.opennmt import versions
from onmt_evsoftmax.report.console import UserError


def patch_parse(module: Any) -> None:
    """``onmt.utils.parse``: an option that no command knows is an error, not silence."""
    parser_class = module.ArgumentParser
    original = parser_class.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> tuple[Namespace, list[str]]:
        options, left = original(self, *args, **kwargs)
        _refuse_unknown(self, parser_class, left)
        return options, left

    parser_class.parse_known_args = parse_known_args


def _refuse_unknown(parser: Any, parser_class: Any, left: list[str]) -> None:
    keys = [token.lstrip("-").split("=")[0] for token in left if _is_option(token)]
    if not keys:
        return
    known = known_keys(parser_class) | {
        text.lstrip("-") for action in parser._actions for text in action.option_strings
    }
    sources = {
        key: source.split("|")[-1]
        for source, settings in parser._source_to_settings.items()
        if source.startswith("config_file")
        for key in settings
    }
    for key in keys:
        if key not in known:
            raise UserError(_unknown_key(key, sources.get(key), known))


def _is_option(token: str) -> bool:
    if not token.startswith("-") or len(token.lstrip("-")) == 0:
        return False
    try:
        float(token)
    except ValueError:
        return True
    return False


def _unknown_key(key: str, source: str | None, known: set[str]) -> str:
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    where = f"{source}: the key {key!r}" if source else f"the option -{key}"
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{where} is unknown to every OpenNMT-py command{hint}"


@functools.cache
def known_keys(parser_class: Any) -> set[str]:
    """Every key that some command takes, so that commands can share one YAML file."""
    import onmt.opts as opts

    parsers = [parser_class() for _ in range(3)]
    opts.train_opts(parsers[0])
    versions.vocabulary_options(opts)(parsers[1], build_vocab_only=True)
    opts.translate_opts(parsers[2], **versions.all_translation_options(opts))
    return {
        text.lstrip("-")
        for parser in parsers
        for action in parser._actions
        for text in action.option_strings
    }
