"""``python -m onmt_evsoftmax.corpora``."""

from onmt_evsoftmax.corpora.verbs import main
from onmt_evsoftmax.report.console import run

run(main)
