"""Only for ``make test-eole``. The folder is not called "eole": it would pass for the package."""

import importlib.util
import subprocess
import sys

import pytest
from eole_runs import LEGACY, ROOT, eole, settings

collect_ignore_glob = [] if importlib.util.find_spec("eole") else ["test_*.py"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The embedded corpus, small."""
    folder = tmp_path_factory.mktemp("corpus")
    program = ROOT / "data" / "make_corpus.py"
    sizes = ["--train", "200", "--valid", "10", "--test", "10", "--test-hard", "2"]
    subprocess.run([sys.executable, program, "-o", folder, *sizes], check=True, capture_output=True)
    return _with_vocabularies(folder)


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """Sentences of a few words that a small model learns in seconds."""
    folder = tmp_path_factory.mktemp("toy")
    for name, content in (("train.en", "t.en"), ("train.de", "t.de"), ("test.en", "t.en")):
        (folder / name).write_bytes((LEGACY / content).read_bytes())
    return _with_vocabularies(folder)


def _with_vocabularies(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings(folder, "evsoftmax")
        eole("build_vocab -config c.yaml -n_sample -1")
    return folder
