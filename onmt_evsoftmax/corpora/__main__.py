"""``python -m onmt_evsoftmax.corpora``."""

from onmt_evsoftmax.console import run
from onmt_evsoftmax.corpora.command import main

run(main)
