"""How a toolkit's functions are wrapped in ours, also where other modules hold a copy of them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def around(owner: Any, *names: str) -> Callable[[Function], Function]:
    """Call the decorated function in place of one of ``owner``, a module or a class.

    That is the function of the same name, or each of ``names``. The original is the first argument,
    before those of the call::

        @around(module.BeamSearch)
        def advance(original, self, *args): ...
    """

    def decorate(function: Function) -> Function:
        for name in names or (function.__name__,):
            _replace(owner, name, function)
        return function

    return decorate


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    stored = inspect.getattr_static(owner, name)
    original = stored.__func__ if isinstance(stored, classmethod) else stored

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    setattr(owner, name, classmethod(replacement) if original is not stored else replacement)
    # Modules that are imported later take it from its own module themselves.
    if original.__module__ == getattr(owner, "__name__", None):
        toolkit = owner.__name__.partition(".")[0]
        for other in list(sys.modules.values()):
            if getattr(other, "__name__", "").partition(".")[0] == toolkit and (
                other.__dict__.get(name) is original
            ):
                setattr(other, name, replacement)
