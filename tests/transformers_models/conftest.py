"""Only for ``make test-transformers``. The folder is not called "transformers": as part of Python's
path it would pass for the package.
"""

import importlib.util
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "plot"))  # which has a browser
collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]
