"""How functions of OpenNMT-py are replaced, also where other modules hold a copy of the name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def replace(module: ModuleType, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replace ``module.name`` by ``make(original)``, and every ``from module import name`` of it.

    Modules of OpenNMT-py that are imported later take the new function from ``module`` themselves.
    """
    original = getattr(module, name)
    replacement = functools.wraps(original)(make(original))
    for other in [module, *sys.modules.values()]:
        if getattr(other, "__name__", "").partition(".")[0] == "onmt" and (
            other.__dict__.get(name) is original
        ):
            setattr(other, name, replacement)
