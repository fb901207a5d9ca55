"""Cases are shared with the tests of the CPU kernels, so their folders can be imported from.

This folder is not called "triton": as part of Python's path it would pass for the package.
"""

import sys
from pathlib import Path

for folder in ("kernels", "attention"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
