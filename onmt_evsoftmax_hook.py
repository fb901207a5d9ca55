"""Start-up hook: lets the stock OpenNMT-py commands find this package.

``onmt_evsoftmax.pth`` calls :func:`start` in every interpreter of the environment, so this module
must stay tiny: it imports nothing but what Python has already loaded, and it waits. Only when a
program imports OpenNMT-py, eole or CTranslate2's OpenNMT-py converter does it load the real plugin.

``ONMT_EVSOFTMAX=off`` in the environment keeps it asleep.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Module name → what to do right after that module has been executed, before its importer goes on.
_callbacks: dict[str, list[Callable[[ModuleType], None]]] = {}


class _Finder:
    """Finds nothing itself: it lets the other finders find a watched module and adds a callback."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _callbacks:
            return None
        for finder in sys.meta_path:
            if finder is _Finder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _call_back_after(name, spec.loader)
                return spec
        return None


def _call_back_after(name: str, loader: Any) -> None:
    """Make ``loader`` run the callback of ``name`` once it has executed that module."""
    if not hasattr(loader, "exec_module"):
        return
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        # A loader may serve several modules (a zip file has one for all): act on ours only.
        ours = module.__name__ == name
        if ours and name == "onmt":
            _silence_deprecations()
        execute(module)
        if ours:
            for callback in _callbacks.get(name, ()):
                callback(module)
            # Not before: where one has failed, importing the module again must fail again.
            _callbacks.pop(name, None)

    loader.exec_module = exec_module


def after_import(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call ``callback(module)`` once the module ``name`` is imported; now if it already is."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        callback(module)
        return
    waiting = _callbacks.setdefault(name, [])
    if callback not in waiting:  # Python may read one .pth file twice, as under lib and lib64
        waiting.append(callback)
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def _silence_deprecations() -> None:
    """OpenNMT-py uses old names of torch's mixed precision; users can do nothing about that."""
    import warnings

    warnings.filterwarnings("ignore", r"`torch\.cuda\.amp\.", FutureWarning, r"onmt\.")


def _install(_: ModuleType) -> None:
    try:
        from onmt_evsoftmax.opennmt import install

        install()
    except Exception as error:
        raise _failure("OpenNMT-py", error) from error


def _failure(toolkit: str, error: Exception) -> ImportError:
    """Going on would mean softmax where the user asked for something else: stop and say why."""
    return ImportError(
        f"onmt_evsoftmax could not join {toolkit} ({type(error).__name__}: {error}); "
        "run `python -m onmt_evsoftmax doctor`, or set ONMT_EVSOFTMAX=off to go without it"
    )


def _guard_converter(module: Any) -> None:
    """Check models when CTranslate2 loads one; not now, since that would import torch."""
    load = module.OpenNMTPyConverter._load
    if load.__module__ == __name__:
        return  # done already

    def _load(self: object) -> object:
        from onmt_evsoftmax.opennmt.converter import load_for_ctranslate2

        return load_for_ctranslate2(module, self, load)

    command = module.main

    def main() -> None:
        try:
            command()
        except Exception as error:
            if type(error).__name__ != "UserError":  # ours, which is not imported here
                raise
            print(f"{os.path.basename(sys.argv[0])}: error: {error}", file=sys.stderr)
            sys.exit(2)

    module.OpenNMTPyConverter._load = _load
    module.main = main


def wanted() -> bool:
    """Whether the environment leaves the hook switched on."""
    return os.environ.get("ONMT_EVSOFTMAX", "on").strip().lower() not in ("off", "0", "no", "false")


#: What the plugin for eole changes; the folder eole/ says how.
_EOLE = (
    "eole.config.models",
    "eole.config.run",
    "eole.modules.multi_headed_attn",
    "eole.models.model",
    "eole.predict.beam_search",
    "eole.predict.translator",
    "ctranslate2.converters.eole_ct2",
)


def _extend_eole(module: ModuleType) -> None:
    try:
        from onmt_evsoftmax.eole import PATCHES

        PATCHES[module.__name__](module)
    except Exception as error:
        raise _failure("eole", error) from error


def watch_converter() -> None:
    """Wait for CTranslate2's converter."""
    after_import("ctranslate2.converters.opennmt_py", _guard_converter)


def start() -> None:
    """Wait for OpenNMT-py, eole and CTranslate2's converter, unless switched off."""
    if wanted():
        after_import("onmt", _install)
        for name in _EOLE:
            after_import(name, _extend_eole)
        watch_converter()
