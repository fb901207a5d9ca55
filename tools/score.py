"""``onmt_score`` from a checkout: python tools/score.py --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onmt_evsoftmax.score import entry

entry()
