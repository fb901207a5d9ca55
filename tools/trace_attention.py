"""``onmt_trace_attention`` from a checkout: python tools/trace_attention.py --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onmt_evsoftmax.trace.trace_attention import entry

entry()
