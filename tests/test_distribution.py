"""The source distribution holds everything that git holds, and says whose it is."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import onmt_evsoftmax

ROOT = Path(__file__).parents[1]
#: What only the project's own machines need.
NOT_SHIPPED = (".ci/", ".gitignore", ".github/")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> tarfile.TarFile:
    """Built from a copy: a build writes metadata beside the sources."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "copy"
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    code = f"from setuptools.build_meta import build_sdist; print(build_sdist({str(folder)!r}))"
    built = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-2000:]
    return tarfile.open(folder / built.stdout.splitlines()[-1])


def inside(sdist: tarfile.TarFile) -> set[str]:
    return {name.partition("/")[2] for name in sdist.getnames()}


def test_everything_in_git_is_in_the_sdist(sdist: tarfile.TarFile) -> None:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True
    )
    names = {name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()}
    missing = {name for name in names if not name.startswith(NOT_SHIPPED)} - inside(sdist)
    assert not missing


def test_what_the_readme_speaks_of_is_there(sdist: tarfile.TarFile) -> None:
    for name in (
        "data/README.md",
        "docs/images/speed.svg",
        "docs/index.md",
        "docs/trace-format.md",
        "SECURITY.md",
        "recipes/README.md",
        "tests/legacy/evsoftmax_step_30.pt",
        "tools/score.py",
        "constraints.txt",
        "requirements-onmt35.txt",
        "Makefile",
        "onmt_evsoftmax/plot/page/page.css",
        "onmt_evsoftmax/kernels/c/rows.h",
    ):
        assert name in inside(sdist), name


def test_nothing_that_was_built_is_shipped(sdist: tarfile.TarFile) -> None:
    assert not [n for n in inside(sdist) if n.endswith((".so", ".pyc")) or "__pycache__" in n]


def test_the_metadata_say_whose_it_is(sdist: tarfile.TarFile) -> None:
    member = next(name for name in sdist.getnames() if name.count("/") == 1 and "PKG-INFO" in name)
    file = sdist.extractfile(member)
    assert file is not None
    told = Parser().parsestr(file.read().decode("utf-8"))
    assert told["Author"] == "The onmt_evsoftmax authors"
    assert told["License-Expression"] == "MIT"
    assert told["License-File"] == "LICENSE"
    assert "Paper, https://arxiv.org/abs/2110.14182" in told.get_all("Project-URL")
    assert "Programming Language :: Python :: 3.12" in told.get_all("Classifier")
    assert sorted(told["Requires-Python"].split(",")) == ["<3.13", ">=3.11"]


def test_the_version_is_the_same_everywhere() -> None:
    assert metadata.version("onmt_evsoftmax") == onmt_evsoftmax.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == onmt_evsoftmax.__version__
    assert {"cff-version", "message", "title", "authors", "preferred-citation"} <= set(citation)
    assert f"## {citation['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"version = {{{citation['version']}}}" in readme
