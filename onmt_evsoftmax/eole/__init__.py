"""The plugin for eole, OpenNMT-py's successor: the same keys in ``eole train`` and ``predict``.

Installing the package is enough: the start-up hook calls :func:`patch_config` and
:func:`patch_attention` when eole imports those modules. This is the only part of the project that
knows eole.
"""

from onmt_evsoftmax.eole.attention import patch_attention
from onmt_evsoftmax.eole.config import patch_config

__all__ = ["patch_attention", "patch_config"]
