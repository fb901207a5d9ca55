"""Checkpoints: loaded without running anything they contain, saved whole or not at all.

A checkpoint is a pickle, and a pickle may run code when it is opened. Everything here goes through
torch's weights-only loading, with one class of the standard library allowed besides tensors and
plain containers: ``argparse.Namespace``, in which OpenNMT-py keeps the options.

A sparse model's options are stored as :class:`SparseOptions` instead. Where this package is
missing, opening such a checkpoint fails and the error names the package, whichever OpenNMT-py and
whichever torch it is; decoding it with softmax would go unnoticed.
"""

from __future__ import annotations

import argparse
import glob
import os
import pickle
import re
import types
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import onmt_evsoftmax_hook
from onmt_evsoftmax.normalizers.registry import broken_entry_points, get_record
from onmt_evsoftmax.opennmt.settings import (
    EXTENDED,
    PACKAGES,
    WRITTEN,
    Settings,
    differences,
    options_of,
    packages_of,
)
from onmt_evsoftmax.report.console import UserError
from onmt_evsoftmax.report.files import replacing
from onmt_evsoftmax.report.outputs import check_outputs


class SparseOptions(Namespace):
    """The options of a model that needs this package; its name in the pickle is the lock."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        from onmt_evsoftmax.opennmt import install, installed

        if not installed():
            if not onmt_evsoftmax_hook.wanted():
                raise ImportError(
                    "this checkpoint was trained with onmt_evsoftmax, which is switched off here: "
                    "unset ONMT_EVSOFTMAX, or call onmt_evsoftmax.opennmt.install() first"
                )
            install()  # OpenNMT-py is not imported yet; when it is, it will know what this needs
        self.__dict__.update(state)


# All that a checkpoint may name besides what torch itself allows.
ALLOWED = (argparse.Namespace, SparseOptions)


def stamped(options: Namespace) -> Namespace:
    """``options`` as they are to be stored: locked if sparse, else exactly OpenNMT-py's own."""
    private = (WRITTEN, PACKAGES)
    kept = {name: value for name, value in vars(options).items() if name not in private}
    settings = Settings.of(options)
    if settings.sparse:
        packages = packages_of(settings.names)
        return SparseOptions(**kept, **({PACKAGES: packages} if packages else {}))
    ours = {*options_of(options)} - {*EXTENDED}
    return Namespace(**{name: value for name, value in kept.items() if name not in ours})


def load(path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
    """Read the checkpoint at ``path``; refuse one that wants to run code, in one sentence."""
    from onmt_evsoftmax.opennmt import install

    install()  # whoever reads a sparse checkpoint through this package has the plugin
    try:
        with Path(path).open("rb") as file:
            start = file.read(2)
    except OSError as error:
        raise UserError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    try:
        with torch.serialization.safe_globals(list(ALLOWED)):
            checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        if start not in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            raise _not_a_checkpoint(path) from error
        raise UserError(_refusal(path, str(error))) from error
    except (RuntimeError, EOFError, OSError) as error:
        why = (str(error).splitlines() or ["it ends too early"])[0]
        raise UserError(
            f"{path} is not a whole checkpoint ({why}); use another one or copy it again"
        ) from error
    except Exception as error:  # whatever the unpickler makes of a text or an image
        raise _not_a_checkpoint(path) from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("opt"), Namespace):
        raise UserError(f"{path} is not an OpenNMT-py checkpoint: it has no options in it")
    _check_packages(path, checkpoint["opt"])
    return checkpoint


def _not_a_checkpoint(path: str | os.PathLike[str]) -> UserError:
    return UserError(f"{path} is not a checkpoint but some other kind of file; give a .pt file")


def _check_packages(path: str | os.PathLike[str], options: Namespace) -> None:
    """A normalizer of another package must be installed here; the checkpoint says whose it is."""
    packages = getattr(options, PACKAGES, {})
    for name in Settings.of(options).names:
        try:
            get_record(name)
        except ValueError as error:
            package = packages.get(name)
            if package is None or name in broken_entry_points():
                raise UserError(f"{path}: {error}") from error
            raise UserError(
                f"{path} needs the normalizer {name!r} of the package {package}, which is not "
                f"installed here: pip install {package}"
            ) from error


def _refusal(path: str | os.PathLike[str], message: str) -> str:
    found = re.search(r"(?:GLOBAL|class|call) ([\w.]+\.[\w.]+)", message)
    wants = f"it wants to use {found[1]}" if found else "it holds more than tensors and options"
    return (
        f"the checkpoint {path} was refused and nothing in it was run: {wants}, which no "
        "OpenNMT-py 3 checkpoint does; do not open it unless you trust whoever made it"
    )


def save(checkpoint: Any, path: str | os.PathLike[str]) -> None:
    """Write ``checkpoint``, atomically: a kill at any moment leaves the old file or the new one."""
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("opt"), Namespace):
        checkpoint = {**checkpoint, "opt": stamped(checkpoint["opt"])}
    with replacing(path) as temporary:
        try:
            torch.save(checkpoint, temporary)
        except RuntimeError as error:
            # torch's writer tells of a full disk in its own words.
            if "writ" in str(error) or "unexpected pos" in str(error):
                raise UserError(
                    f"cannot write the checkpoint {path}: is the disk full? "
                    "What was saved before is as it was"
                ) from error
            raise
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


def sweep(prefix: str | os.PathLike[str]) -> None:
    """Remove what a killed run left half-written beside ``prefix_step_N.pt``."""
    target = Path(prefix)
    for left in target.parent.glob(f".{glob.escape(target.name)}_step_*.tmp"):
        left.unlink(missing_ok=True)


class CheckpointTorch(types.ModuleType):
    """``torch`` as OpenNMT-py's checkpoint code sees it: ``load`` and ``save`` are ours."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def load(self, path: str, map_location: Any = None, **_: Any) -> dict[str, Any]:
        """As ``torch.load``, for checkpoints only."""
        return load(path, map_location)

    def save(self, checkpoint: Any, path: str, **_: Any) -> None:
        """As ``torch.save``, for checkpoints only."""
        save(checkpoint, path)


class ConvertingTorch(CheckpointTorch):
    """For commands that make a checkpoint from others: none of those is replaced by it."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[str] = []

    def load(self, path: str, map_location: Any = None, **_: Any) -> dict[str, Any]:
        """As ``torch.load``, and remember the path."""
        self.inputs.append(path)
        return load(path, map_location)

    def save(self, checkpoint: Any, path: str, **_: Any) -> None:
        """As ``torch.save``, unless ``path`` is what was loaded."""
        check_outputs([path], option="-output", inputs=self.inputs)
        save(checkpoint, path)


class AveragingTorch(ConvertingTorch):
    """Also checks that all checkpoints it loads have the same normalizers: else no mean exists."""

    def __init__(self) -> None:
        super().__init__()
        self.first: tuple[str, Settings] | None = None

    def load(self, path: str, map_location: Any = None, **_: Any) -> dict[str, Any]:
        """Load the next checkpoint to average."""
        checkpoint = super().load(path, map_location)
        # Trainings that differ in how attention was computed still have a mean.
        settings = Settings.of(checkpoint["opt"]).in_evaluation()
        if self.first is None:
            self.first = (path, settings)
        elif changes := differences(self.first[1], settings):
            raise UserError(
                f"{self.first[0]} and {path} have different normalizers ({', '.join(changes)}); "
                "average checkpoints of one training"
            )
        return checkpoint
