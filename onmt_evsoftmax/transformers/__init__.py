"""Sparse attention in Hugging Face transformers.

Importing this module registers every normalizer as an ``attn_implementation``, with its mask:

>>> import onmt_evsoftmax.transformers                             # doctest: +SKIP
>>> model = AutoModelForSeq2SeqLM.from_pretrained(
...     "facebook/bart-base", attn_implementation="evsoftmax")     # doctest: +SKIP

:func:`use` chooses for a model that is loaded already, and for encoder, decoder and context
attention separately. This is the only part of the project that imports ``transformers``.
"""

from __future__ import annotations

from onmt_evsoftmax.transformers.attention import Recorded, record_attention
from onmt_evsoftmax.transformers.choice import install, use
from onmt_evsoftmax.transformers.sites import attention_sites

__all__ = ["Recorded", "attention_sites", "record_attention", "use"]

install()
