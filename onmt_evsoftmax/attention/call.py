"""One call of attention, checked, as the backends take it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onmt_evsoftmax.attention.positions import Positions
from onmt_evsoftmax.normalizers.module import NormalizerModule
from onmt_evsoftmax.normalizers.registry import Normalizer, get_record


class Choice(NamedTuple):
    """The normalizer of a call."""

    function: Callable[..., Any]  # (scores, mask, dim) → probabilities
    record: Normalizer | None  # None: somebody's function that is not registered
    parameters: dict[str, Any]  # of the record, as far as they are known

    @classmethod
    def of(cls, normalizer: str | Normalizer | Callable[..., Any]) -> Choice:
        """A name, a record, a Module, or any function (scores, mask, dim) → probabilities."""
        if isinstance(normalizer, str):
            normalizer = get_record(normalizer)
        if isinstance(normalizer, Normalizer):
            return cls(normalizer.function, normalizer, {})
        if isinstance(normalizer, NormalizerModule):
            return cls(normalizer, normalizer.record, normalizer.options())
        if not callable(normalizer):
            raise TypeError(
                "normalizer must be a name, a record, a Module or a function, not "
                f"{type(normalizer).__name__}"
            )
        return cls(normalizer, None, {})

    @property
    def attention_kernel(self) -> str:
        """The name of the record's attention kernel, which must have one."""
        assert self.record is not None
        assert self.record.attention_kernel is not None
        return self.record.attention_kernel

    def kernel_parameter(self) -> Any:
        """The parameter that the record's attention kernel takes, if it takes one."""
        if self.record is None or self.record.attention_parameter is None:
            return None
        parameter = self.record.parameter(self.record.attention_parameter)
        assert parameter is not None
        return self.parameters.get(parameter.name, parameter.default)

    def with_parameter(self, value: Any) -> Choice:
        """With another value of the parameter that the attention kernel takes."""
        assert self.record is not None
        assert self.record.attention_parameter is not None
        chosen = {self.record.attention_parameter: value}
        return self._replace(
            function=functools.partial(self.record.function, **chosen), parameters=chosen
        )

    @property
    def name(self) -> str:
        """For messages."""
        if self.record is not None:
            return self.record.name
        owner = type(self.function) if isinstance(self.function, nn.Module) else self.function
        return getattr(owner, "__name__", "this normalizer")


class Call(NamedTuple):
    """Shapes: query (…, L, E), key (…, S, E), value (…, S, V), all of one type.

    Key and value have as many heads (dimension −3) as the query, or fewer: ``heads_per_key``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None  # broadcastable to (…, L, S): True = takes part, or a bias
    key_mask: Tensor | None  # (…, S), if the mask is boolean and the same for every query
    is_causal: bool
    scale: float
    dropout_p: float
    seed: Tensor | None  # what is dropped follows from it; None: nothing
    choice: Choice
    leading: torch.Size  # the dimensions before (length, size), broadcast
    positions: Positions | None = None
    #: Where this is part of a call: its first query, and of how many; what is dropped is the same.
    rows: tuple[int, int] | None = None
    #: How many neighbouring heads of the query share one head of key and value.
    heads_per_key: int = 1

    def repeated(self) -> Call:
        """With as many heads of key and value as the query has."""
        if self.heads_per_key == 1:
            return self
        key, value = (t.repeat_interleave(self.heads_per_key, -3) for t in (self.key, self.value))
        return self._replace(key=key, value=value, heads_per_key=1)

    def expanded(self) -> Call:
        """With all tensors in the whole of the leading dimensions."""
        shared = self.leading
        if self.heads_per_key > 1:
            shared = torch.Size((*shared[:-1], shared[-1] // self.heads_per_key))
        q, k, v = (
            t if t.shape[:-2] == leading else t.expand(*leading, *t.shape[-2:])
            for t, leading in zip(self[:3], (self.leading, shared, shared), strict=True)
        )
        key_mask = self.key_mask
        if key_mask is not None:
            key_mask = key_mask.expand(*self.leading, k.size(-2))
        return self._replace(query=q, key=k, value=v, key_mask=key_mask)
