"""``onmt_plot_attention`` from a checkout: python tools/plot_attention.py --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onmt_evsoftmax.plot.plot_attention import entry

entry()
