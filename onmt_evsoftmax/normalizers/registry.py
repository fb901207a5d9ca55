"""One record per normalizer, and the registry that everything else asks by name.

A record (:class:`Normalizer`) holds all that the package knows of a normalizer: its function, log
form, loss, parameters, kernels, title, colour and what it may be used for. Ours stand in the files
of this folder, one per family. Another package brings its own by an entry point::

    [project.entry-points."onmt_evsoftmax.normalizers"]
    hardmax = "their_package.module:hardmax"

where the object is a record, or simply a function ``f(scores, mask=None, dim=-1, *,
return_support=False)``. :func:`register_normalizer` does the same for the running process.

Nothing here imports torch, and titles and colours are found without it: tables and figures need
no more than those.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import math
import pkgutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onmt_evsoftmax.report.console import unknown_name

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Where other packages announce their normalizers.
GROUP = "onmt_evsoftmax.normalizers"

#: What a normalizer may be used for.
USES = ("attention", "generator", "latent", "test-time")

#: For what has no colour of its own: Okabe and Ito's, which the colour-blind can tell apart.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")


@dataclass(frozen=True)
class Parameter:
    """An option of a normalizer's function and Module."""

    name: str  #: keyword of the function and the Module
    help: str  #: one sentence for ``--help``
    parse: Callable[[str], Any]  #: what a user wrote → value; ValueError with one sentence
    default: Any
    training_only: bool = False  #: evaluation always uses the default


def number_parser(name: str, valid: str, accept: Callable[[float], bool]) -> Callable[[str], float]:
    """A ``parse`` of finite numbers that ``accept`` takes; ``valid`` says the same in words."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and accept(value)):
            raise ValueError(f"{name} must be {valid}, not {text!r}")
        return value

    return parse


#: Ratios that should not be exceeded: of the forward pass, of both passes.
Target = tuple[float | None, float | None]


@dataclass(frozen=True)
class Normalizer:
    """Everything the package knows about one normalizer."""

    name: str
    #: ``f(scores, mask=None, dim=-1, *, return_support=False, **parameters)``; mask True = takes
    #: part. A function without ``return_support`` is taken to support what is above 0.
    function: Callable[..., Any]
    #: ``module(**parameters)`` makes a Module; by default a generic one around ``function``.
    module: Callable[..., nn.Module] | None = None
    #: ``f(scores, mask=None, dim=-1, **parameters)``: log p, computed in log space.
    log_function: Callable[..., Tensor] | None = None
    #: ``loss(logits, target, *, ignore_index, reduction, label_smoothing, **parameters)``.
    loss: Callable[..., Tensor] | None = None
    parameters: tuple[Parameter, ...] = ()
    title: str = ""  #: as the paper writes it; by default the name
    colour: str = ""  #: in every figure and page; by default one of :data:`PALETTE`
    formula: str = ""  #: plain text, for tables and documentation
    #: The normalizer that trains its models, if that is another.
    trained_as: str | None = None
    #: Of :data:`USES`; by default attention, latent variables, and a generator if it has a loss.
    uses: frozenset[str] = frozenset()
    #: The distribution whose entry point brought it; None for ours.
    package: str | None = None
    #: Properties that hold in a limit only: property → (parameters near it, the limit in words).
    limits: Mapping[str, tuple[Mapping[str, float], str]] = field(default_factory=dict)
    #: The Lipschitz constant stated for rows of K entries.
    lipschitz: Callable[[int], float] = lambda size: 1.0
    order: int = 1000  #: where it stands among others, in lists and tables
    #: The row kernel and the attention kernel that compute it: a header of that name in
    #: ``kernels/c``, a file in ``kernels/triton/normalizers``, or both.
    row_kernel: str | None = None
    attention_kernel: str | None = None
    #: The parameter that the attention kernel takes, one for every head; others have their default.
    attention_parameter: str | None = None
    #: What ``bench`` expects of its kernels, as ratios (forward, both passes) to torch's softmax of
    #: rows of so many columns, and to torch's attention at a length and with a share of kept keys.
    row_target: Callable[[int], Target] = lambda columns: (None, None)
    attention_target: Callable[[int, float], Target] = lambda length, kept: (None, None)

    def __post_init__(self) -> None:
        if not _accepts(self.function, "return_support"):
            object.__setattr__(self, "function", _with_support(self.function))
        if not self.uses:
            generator = {"generator"} if self.loss is not None else set()
            object.__setattr__(self, "uses", frozenset({"attention", "latent"} | generator))
        object.__setattr__(self, "title", self.title or self.name)
        object.__setattr__(self, "colour", self.colour or _palette_colour(self.name))

    def parameter(self, name: str) -> Parameter | None:
        """Its parameter of that name, if it has one."""
        return next((p for p in self.parameters if p.name == name), None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by name: a model must not carry another package's code with it."""
        return get_record, (self.name,)

    def __deepcopy__(self, memo: Any) -> Normalizer:
        return self


def _accepts(function: Callable[..., Any], keyword: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature
        return False
    return any(p.name == keyword or p.kind is p.VAR_KEYWORD for p in parameters)


def _with_support(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(
        scores: Tensor,
        mask: Tensor | None = None,
        dim: int = -1,
        *,
        return_support: bool = False,
        **parameters: Any,
    ) -> Any:
        p = function(scores, mask, dim, **parameters)
        return (p, p > 0) if return_support else p

    return wrapped


def _parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """What somebody else's function or Module takes besides the contract, as far as it says."""
    known = ("scores", "mask", "dim", "return_support")
    return tuple(
        Parameter(p.name, f"{p.name} of {getattr(function, '__name__', 'it')}", float, p.default)
        for p in inspect.signature(function).parameters.values()
        if p.name not in known and p.default is not p.empty
    )


# --- what is registered ---------------------------------------------------------------------------

#: What :func:`register_normalizer` added.
_REGISTERED: dict[str, Normalizer] = {}


#: The ``RECORDS`` of every file in this folder: a new one is found by being there.
_OURS: dict[str, Normalizer] = {}


def _ours() -> dict[str, Normalizer]:
    if not _OURS:
        found: list[Normalizer] = []
        for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
            family = importlib.import_module(f"{__package__}.{module.name}")
            found += getattr(family, "RECORDS", ())
        # At once: another thread must not see a part of them.
        _OURS.update({record.name: record for record in sorted(found, key=lambda r: r.order)})
    return _OURS


def register_normalizer(
    record: Normalizer | str,
    module: Callable[..., nn.Module] | None = None,
    loss: Callable[..., Tensor] | None = None,
) -> None:
    """Add a normalizer for this process: a record, or a name with what makes its Module.

    ``module(**options)`` makes a Module with ``forward(scores, mask=None, dim=-1)``;
    ``loss(logits, target, *, ignore_index, reduction, label_smoothing, **options)`` is what a
    generator that uses it is trained with. An installed package should rather have an entry point:
    a program that never imports it finds it then.
    """
    if isinstance(record, str):
        if module is None:
            raise TypeError(f"register_normalizer({record!r}, …) needs what makes its Module")
        record = _from_module(record, module, loss)
    if record.name in {**_ours(), **_REGISTERED}:
        raise ValueError(f"a normalizer named {record.name!r} is registered already")
    _REGISTERED[record.name] = record


def _from_module(
    name: str, module: Callable[..., nn.Module], loss: Callable[..., Tensor] | None
) -> Normalizer:
    def function(
        scores: Tensor, mask: Tensor | None = None, dim: int = -1, **options: Any
    ) -> Tensor:
        return module(**options)(scores, mask, dim)

    return Normalizer(
        name, _with_support(function), module, loss=loss, parameters=_parameters_of(module)
    )


@functools.cache
def _entry_points() -> dict[str, metadata.EntryPoint]:
    """Name → entry point; of two with one name, the first that Python finds."""
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUP):
        found.setdefault(entry.name, entry)
    return found


@functools.cache
def _from_entry_point(name: str) -> Normalizer | str:
    """The record that an entry point stands for, or a sentence that says why there is none."""
    entry = _entry_points()[name]
    package = None if entry.dist is None else entry.dist.name
    origin = f"the normalizer {name!r} of {package or 'another package'} ({entry.value})"
    if name in _ours():
        return f"{origin} is ignored: this package has one of that name"
    try:
        found = entry.load()
        if isinstance(found, Normalizer):
            return dataclasses.replace(found, name=name, package=package)
        if callable(found) and not isinstance(found, type):
            return Normalizer(name, found, parameters=_parameters_of(found), package=package)
    except Exception as error:  # anything may go wrong in somebody else's code
        return f"{origin} cannot be loaded: {type(error).__name__}: {error}"
    return f"{origin} is neither a record nor a function, but {type(found).__name__}"


def broken_entry_points() -> dict[str, str]:
    """Name → what is wrong, for entry points that bring no normalizer."""
    loaded = {name: _from_entry_point(name) for name in _entry_points()}
    return {name: found for name, found in loaded.items() if isinstance(found, str)}


# --- asking ---------------------------------------------------------------------------------------


def own_records() -> list[Normalizer]:
    """Our records and those registered in this process; entry points are not read."""
    return [*_ours().values(), *_REGISTERED.values()]


def records() -> list[Normalizer]:
    """Every record: ours in order, then what was registered, then those of other packages."""
    found = {**_ours(), **_REGISTERED}
    for name in _entry_points():
        record = _from_entry_point(name)
        if isinstance(record, Normalizer):
            found.setdefault(name, record)
    return list(found.values())


def get_record(name: str) -> Normalizer:
    """The record of that name; a ValueError names the nearest known one."""
    record = _ours().get(name) or _REGISTERED.get(name)
    if record is not None:
        return record
    if name not in _entry_points():
        raise ValueError(unknown_name("normalizer", name, normalizer_names()))
    found = _from_entry_point(name)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def normalizer_names(use: str | None = None) -> list[str]:
    """Names of all normalizers, or of those for one of :data:`USES`, in order."""
    return [record.name for record in records() if use is None or use in record.uses]


def get_normalizer(name: str | Normalizer, **options: Any) -> nn.Module:
    """A new Module of that name; an unknown name or option is a ValueError that helps."""
    record = get_record(name) if isinstance(name, str) else name
    if record.module is not None:
        _check_options(f"normalizer {record.name!r}", record.module, options)
        return record.module(**options)
    for option in options:
        if record.parameter(option) is None:
            known = [parameter.name for parameter in record.parameters]
            raise ValueError(unknown_name(f"option of normalizer {record.name!r}:", option, known))
    from onmt_evsoftmax.normalizers.module import NormalizerModule

    return NormalizerModule(record, **options)


def get_loss(name: str | Normalizer, **options: Any) -> Callable[..., Tensor]:
    """The loss that trains the normalizer of that name, its options bound."""
    record = get_record(name) if isinstance(name, str) else name
    if record.loss is None:
        having = [other.name for other in records() if other.loss is not None]
        raise ValueError(
            f"{record.name} has no loss of its own; use it inside a network, or train with one of: "
            + ", ".join(having)
        )
    _check_options(f"the loss of {record.name!r}", record.loss, options)
    return functools.partial(record.loss, **options)


def _check_options(owner: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    valid = [p.name for p in parameters if p.name not in ("logits", "target")]
    for option in options:
        if option not in valid:
            raise ValueError(unknown_name(f"option of {owner}:", option, valid))


# --- titles and colours, without torch ------------------------------------------------------------


def title_of(name: str) -> str:
    """What a reader sees for a normalizer's name; any other text stays as it is."""
    return look(name).get("title") or name


def colour_of(name: str) -> str:
    """The colour of a normalizer in every figure; any other name has one of the palette's."""
    return look(name).get("colour") or _palette_colour(name)


def _palette_colour(name: str) -> str:
    return PALETTE[zlib.crc32(name.encode()) % len(PALETTE)]


def look(name: str) -> dict[str, Any]:
    """The plain fields of a record, or nothing for a name that is none."""
    if name in _REGISTERED:
        return vars(_REGISTERED[name])
    if name in _written_fields():
        return _written_fields()[name]
    found = _from_entry_point(name) if name in _entry_points() else None
    return vars(found) if isinstance(found, Normalizer) else {}


@functools.cache
def _written_fields() -> dict[str, dict[str, Any]]:
    """Name → the constants in our records, read from the source: importing it would take torch,
    and so longer than all that a table or a figure does."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Normalizer":
                fields = {
                    keyword.arg: keyword.value.value
                    for keyword in node.keywords
                    if keyword.arg and isinstance(keyword.value, ast.Constant)
                }
                found[str(fields.get("name"))] = fields
    return found
