"""``onmt_evsoftmax corpora``."""

from onmt_evsoftmax.corpora.verbs import main
from onmt_evsoftmax.report.console import called, run

with called("onmt_evsoftmax corpora"):
    run(main)
