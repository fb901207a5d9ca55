"""The plugin for eole, OpenNMT-py's successor: the same keys in ``eole train`` and ``predict``.

Installing the package is enough: the start-up hook calls what :data:`PATCHES` lists when a program
imports those modules. This is the only part of the project that knows eole.
"""

from collections.abc import Callable
from typing import Any

from onmt_evsoftmax.eole.attention import patch_attention, patch_initialization
from onmt_evsoftmax.eole.config import patch_models, patch_run
from onmt_evsoftmax.eole.ctranslate2 import patch_converter
from onmt_evsoftmax.eole.search import patch_search, patch_translator

#: Module → what to do to it once it is imported.
PATCHES: dict[str, Callable[[Any], None]] = {
    "eole.config.models": patch_models,
    "eole.config.run": patch_run,
    "eole.modules.multi_headed_attn": patch_attention,
    "eole.models.model": patch_initialization,
    "eole.predict.beam_search": patch_search,
    "eole.predict.translator": patch_translator,
    "ctranslate2.converters.eole_ct2": patch_converter,
}
