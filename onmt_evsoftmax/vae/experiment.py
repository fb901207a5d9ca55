"""What an experiment is: a class to fill in, one file per experiment.

A file in ``experiments/`` with an ``EXPERIMENT`` is all it takes: the command line, the jobs, which
can be resumed, tables and figures find it there. The normalizers come from the registry.
"""

from __future__ import annotations

import abc
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from onmt_evsoftmax.normalizers.registry import get_loss, get_record, normalizer_names, records
from onmt_evsoftmax.report.console import unknown_name
from onmt_evsoftmax.vae import data
from onmt_evsoftmax.vae.configuration import check_numbers
from onmt_evsoftmax.vae.data import DataSet
from onmt_evsoftmax.vae.training import History, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The contents of ``results.json`` files, see :mod:`onmt_evsoftmax.vae.results`.
Results = list[dict[str, Any]]


def _default_normalizers() -> list[str]:
    """Ours that need no number chosen for them and that a classifier can be trained with."""
    return [
        record.name
        for record in records()
        if record.package is None
        and "latent" in record.uses
        and record.loss is not None
        and all(parameter.training_only for parameter in record.parameters)
    ]


@dataclass
class Configuration:
    """The keys that every experiment has; an experiment's own class adds its own.

    ``recipes/vae/EXPERIMENT.yaml`` explains each key and states its default.
    """

    #: Keys that choose jobs: which of them are run changes none of them.
    choices: ClassVar[tuple[str, ...]] = ("normalizers", "seeds")
    #: Data sets that the experiment makes sense on.
    data_sets: ClassVar[tuple[str, ...]] = ("digits", "mnist")
    #: Keys that may be 0, or an empty list.
    may_be_zero: ClassVar[tuple[str, ...]] = ()
    #: Whether a normalizer must have a loss of its own.
    needs_loss: ClassVar[bool] = True

    data: str = "digits"
    normalizers: list[str] = field(default_factory=_default_normalizers)
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    shared_seed: int = 0
    epochs: int = 20
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in self.normalizers:
            check_normalizer(name)
            if self.needs_loss:
                get_loss(name)
        if self.data not in self.data_sets:
            raise ValueError(unknown_name("data set", self.data, self.data_sets))
        check_numbers(self, *self.may_be_zero)

    def methods(self) -> list[str]:
        """What the jobs are named after, in order."""
        kinds = [key for key in self.choices if key != "seeds"]
        return [method for key in kinds for method in getattr(self, key)]


def check_normalizer(name: str) -> None:
    """Refuse a name that no latent variable can be made with."""
    known = normalizer_names("latent")
    if name in known:
        return
    trained_as = get_record(name).trained_as if name in normalizer_names() else None
    if trained_as is None:
        raise ValueError(unknown_name("normalizer", name, known))
    raise ValueError(
        f"{name} is not trained: the jobs of {trained_as} give it, ask for {trained_as}"
    )


@dataclass
class Outcome:
    """What a job found out about one method.

    ``metrics`` are the numbers of its row in the table, ``history`` the evaluations of the training
    (empty if there was none), and ``shown`` what else the figures draw.
    """

    metrics: dict[str, float]
    history: History = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return {"metrics": self.metrics, "history": self.history, **self.shown}


C = TypeVar("C", bound=Configuration)


class Experiment(abc.ABC, Generic[C]):
    """An experiment: methods × seeds, each a job of its own, with what they share.

    To add one, write ``experiments/NAME.py`` with a subclass and ``EXPERIMENT = Subclass()``, and
    ``recipes/vae/NAME.yaml`` that explains the keys.
    """

    #: One line for ``--help``.
    help: ClassVar[str]
    #: The class of its settings.
    configuration: type[C]
    #: Metric → (title, decimals), in the order of the table.
    metrics: ClassVar[Mapping[str, tuple[str, int]]]
    #: File name → what draws that figure from the results of the jobs.
    figures: ClassVar[Mapping[str, Callable[[Results], Figure]]]
    #: Threads that pay on a CPU.
    threads: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """That of its file."""
        return type(self).__module__.rpartition(".")[2]

    def load(self, c: C, folder: str | Path | None, *, fetch: bool = False) -> DataSet:
        """Read the data set from its folder."""
        return data.load(c.data, folder, fetch=fetch)

    def check(self, c: C, images: DataSet) -> None:
        """Refuse, with a UserError, settings that these images cannot be used with."""

    @abc.abstractmethod
    def prepare(self, shared: Run, c: C, images: DataSet) -> None:
        """Train what all jobs share."""

    @abc.abstractmethod
    def job(self, run: Run, shared: Run, c: C, images: DataSet, method: str) -> dict[str, Outcome]:
        """Train and judge one model, with ``run.seed``; train what is shared if it is missing.

        One model may be judged as several methods, each with an outcome.
        """


@functools.cache
def experiments() -> dict[str, Experiment[Any]]:
    """Every experiment by name."""
    package = importlib.import_module(f"{__package__}.experiments")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    found = (importlib.import_module(f"{package.__name__}.{name}").EXPERIMENT for name in names)
    return dict(zip(names, found, strict=True))
