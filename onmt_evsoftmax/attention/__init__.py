"""Attention for every normalizer: one function, one list of backends."""

from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention

__all__ = ["evsoftmax_attention"]
