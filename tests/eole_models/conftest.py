"""Only for ``make test-eole``. The folder is not called "eole": it would pass for the package."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("eole") else ["test_*.py"]
