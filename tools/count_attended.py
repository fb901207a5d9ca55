"""``onmt_count_attended`` from a checkout: python tools/count_attended.py --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onmt_evsoftmax.attended.count_attended import entry

entry()
