"""One registry: name → Module that normalizes scores, and the loss that trains it.

Attention, generators and VAEs all take their normalizer from here by name::

    normalizer = get_normalizer("entmax", alpha="learn", heads=8)
    probabilities = normalizer(scores, mask)  # mask: True = takes part

A third party adds its own with :func:`register_normalizer`; the name then works wherever a
normalizer's name is asked for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onmt_evsoftmax.normalizers import functional, losses
from onmt_evsoftmax.report.console import unknown_name

Loss = Callable[..., Tensor]


class Normalizer(nn.Module):
    """``forward(scores, mask=None, dim=-1)``: a function of :mod:`functional` with its options."""

    function: Callable[..., Any]

    def __init__(self) -> None:
        # Said here because nn.Module's own signature would take any keyword.
        super().__init__()

    def options(self) -> dict[str, Any]:
        """Keyword arguments for the function, which may depend on parameters or on training."""
        return {}

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        dim: int = -1,
        *,
        return_support: bool = False,
    ) -> Any:
        function = type(self).function
        return function(scores, mask, dim, return_support=return_support, **self.options())

    def extra_repr(self) -> str:
        return ", ".join(
            f"{key}={value:g}" for key, value in self.options().items() if isinstance(value, float)
        )


class Softmax(Normalizer):
    """p ∝ exp(v)."""

    function = staticmethod(functional.softmax)


class EvSoftmax(Normalizer):
    """Evidential softmax; ``eps > 0`` is used in training mode only, evaluation is exact."""

    function = staticmethod(functional.evsoftmax)

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        functional.evsoftmax(torch.zeros(1), eps=eps)  # refuses a bad eps here, not in a batch
        self.eps = float(eps)

    def options(self) -> dict[str, Any]:
        return {"eps": self.eps if self.training else 0.0}


class Sparsemax(Normalizer):
    """Euclidean projection onto the simplex."""

    function = staticmethod(functional.sparsemax)


class Entmax15(Normalizer):
    """1.5-entmax."""

    function = staticmethod(functional.entmax15)


class Entmax(Normalizer):
    """alpha-entmax; ``alpha="learn"`` trains alpha = 1 + sigmoid(a), one per head, from 1.5 on.

    With ``heads`` the scores must be (…, heads, queries, keys); without, one alpha serves all.
    """

    function = staticmethod(functional.entmax)

    def __init__(self, alpha: float | str = 1.5, heads: int | None = None) -> None:
        super().__init__()
        if alpha == "learn":
            shape = () if heads is None else (heads, 1, 1)
            self.pre_alpha = nn.Parameter(torch.zeros(shape))
        else:
            try:
                self.fixed = float(alpha)
            except ValueError:
                raise ValueError(f"alpha must be a number or 'learn', not {alpha!r}") from None
            functional.entmax(torch.zeros(1), alpha=self.fixed)
            self.register_parameter("pre_alpha", None)

    @property
    def alpha(self) -> float | Tensor:
        """The number, or the learned values: a tensor of shape (heads, 1, 1) or ()."""
        return self.fixed if self.pre_alpha is None else 1.0 + torch.sigmoid(self.pre_alpha)

    def options(self) -> dict[str, Any]:
        return {"alpha": self.alpha}


class SparseHourglass(Normalizer):
    """Sparsehourglass with its trade-off ``q``."""

    function = staticmethod(functional.sparsehourglass)

    def __init__(self, q: float = 1.0) -> None:
        super().__init__()
        functional.sparsehourglass(torch.zeros(1), q=q)
        self.q = float(q)

    def options(self) -> dict[str, Any]:
        return {"q": self.q}


class _Entry(NamedTuple):
    module: Callable[..., nn.Module]
    loss: Loss | None


_REGISTRY: dict[str, _Entry] = {}


def register_normalizer(
    name: str, module: Callable[..., nn.Module], loss: Loss | None = None
) -> None:
    """Add a normalizer: ``module(**options)`` makes a Module with ``forward(scores, mask, dim)``.

    ``loss(logits, target, *, ignore_index, reduction, label_smoothing, **options)`` is what a
    generator that uses it is trained with; None if there is none.
    """
    if name in _REGISTRY:
        raise ValueError(f"a normalizer named {name!r} is registered already")
    _REGISTRY[name] = _Entry(module, loss)


register_normalizer("softmax", Softmax, losses.softmax_loss)
register_normalizer("evsoftmax", EvSoftmax, losses.evsoftmax_loss)
register_normalizer("sparsemax", Sparsemax, losses.sparsemax_loss)
register_normalizer("entmax15", Entmax15, losses.entmax15_loss)
register_normalizer("entmax", Entmax, losses.entmax_loss)
register_normalizer("sparsehourglass", SparseHourglass)


def normalizer_names() -> list[str]:
    """Every registered name, in the order of registration."""
    return list(_REGISTRY)


def get_normalizer(name: str, **options: Any) -> nn.Module:
    """A new Module of that name; an unknown name or option is a ValueError that helps."""
    module = _entry(name).module
    _check_options(f"normalizer {name!r}", module, options)
    return module(**options)


def get_loss(name: str, **options: Any) -> Loss:
    """The loss that trains the normalizer of that name, its options bound."""
    loss = _entry(name).loss
    if loss is None:
        having = [other for other, entry in _REGISTRY.items() if entry.loss is not None]
        raise ValueError(
            f"{name} has no loss of its own; use it inside a network, or train with one of: "
            + ", ".join(having)
        )
    _check_options(f"the loss of {name!r}", loss, options)
    return functools.partial(loss, **options)


def _entry(name: str) -> _Entry:
    try:
        return _REGISTRY[name]
    except KeyError:
        raise ValueError(unknown_name("normalizer", name, _REGISTRY)) from None


def _check_options(owner: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    valid = [p.name for p in parameters if p.name not in ("logits", "target")]
    for option in options:
        if option not in valid:
            raise ValueError(unknown_name(f"option of {owner}:", option, valid))
