"""docs/extending.md: its files are written into a copy of the project, its commands run there."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import traces
import yaml

from onmt_evsoftmax.kernels.triton import available

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FENCED = re.compile(r"(?:`([^`\n]+)`:\n\n)?```(\w+)\n(.*?)```", re.DOTALL)

#: Runs in the copy: every record's promises on random rows, against their plain statement.
CHECK = """
import torch
from onmt_evsoftmax import get_normalizer, kernels
from onmt_evsoftmax.normalizers.registry import get_record
torch.manual_seed(1)
for dtype in (torch.float32, torch.float64):
    for columns in (1, 7, 33, 300):
        scores = 2 * torch.randn(40, columns, dtype=dtype)
        mask = torch.rand(40, columns) > 0.3
        p, support = get_record("nearmax").function(scores, mask, width=1.5, return_support=True)
        top = scores.masked_fill(~mask, -torch.inf)
        kept = mask & (top >= top.amax(-1, keepdim=True) - 1.5)
        assert torch.equal(support, kept)
        assert torch.equal(p > 0, kept)
        expected = torch.softmax(top.double().masked_fill(~kept, -torch.inf), -1).nan_to_num(0)
        torch.testing.assert_close(p.double(), expected, atol=1e-6, rtol=1e-5)
scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
module = get_normalizer("nearmax", width="2")
assert torch.autograd.gradcheck(module, scores)
poisoned = module(torch.tensor([[1.0, float("nan"), 0.0], [0.0, 1.0, 2.0]]))
assert poisoned[0].isnan().all() and not poisoned[1].isnan().any()
print("kernel" if kernels.serves("nearmax", torch.zeros(3), 1.5) else "torch")
"""


@dataclass
class Copy:
    """A copy of the project with a section's files in it."""

    folder: Path

    def write(self, section: str) -> None:
        for path, _, text in FENCED.findall(section):
            if path:
                target = self.folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")

    def run(self, command: str) -> str:
        """What a command prints, on both streams."""
        env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(self.folder / "installed")]),
            "PIP_TARGET": str(self.folder / "installed"),
            "PIP_NO_INDEX": "1",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def check(self, section: str) -> None:
        """Run the section's commands; every line below one must be in what it prints."""
        (text,) = [text for _, language, text in FENCED.findall(section) if language == "console"]
        printed = ""
        for line in text.splitlines():
            if line.startswith("$ "):
                printed = " ".join(self.run(line[2:]).split())
            else:
                assert " ".join(line.split()) in printed


def section(title: str) -> str:
    """A section of the page by its title."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    skipped = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in ("onmt_evsoftmax", "recipes", "data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skipped)
    return Copy(tmp_path)


def test_every_row_of_the_table_has_its_section_and_every_section_a_test() -> None:
    titles = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    anchors = re.findall(r"\(#([\w-]+)\)", PAGE.split("\n## ")[0])
    assert anchors == [title.lower().replace(" ", "-").replace(".", "") for title in titles]
    tested = Path(__file__).read_text(encoding="utf-8")
    assert all(f'section("{title}")' in tested for title in titles)


def test_normalizer(copy: Copy) -> None:
    copy.write(section("A normalizer"))
    copy.check(section("A normalizer"))
    (copy.folder / "check.py").write_text(CHECK)
    assert copy.run("python check.py").strip() == "torch"


def write_calls(copy: Copy) -> None:
    """nearmax with the functions that try a kernel first."""
    copy.write(section("A normalizer"))
    page = section("With a kernel for CPUs")
    (code,) = [text for path, kind, text in FENCED.findall(page) if kind == "python"]
    module = copy.folder / "onmt_evsoftmax/normalizers/nearmax.py"
    before, after = module.read_text().split("@masked.row_function")
    rest = after[after.index("\n\ndef nearmax_loss") :].replace(
        "order=80,", 'order=80, row_kernel="nearmax",'
    )
    module.write_text(f"{before}{code}{rest}")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="NO COMPILER, the kernel was not compiled")
def test_kernel(copy: Copy) -> None:
    shutil.copy(ROOT / "setup.py", copy.folder)
    shutil.copy(ROOT / "onmt_evsoftmax_hook.py", copy.folder)
    (copy.folder / "README.md").touch()
    write_calls(copy)
    copy.write(section("With a kernel for CPUs"))
    table = copy.folder / "onmt_evsoftmax/kernels/c/normalizers.h"
    text = table.read_text()
    include = '#include "rows_entmax15.h"'
    text = text.replace("X(entmax15)", "X(entmax15) \\\n    X(nearmax)", 1)
    text = text.replace(include, f'{include}\n#include "rows_nearmax.h"', 1)
    table.write_text(text)
    for library in (copy.folder / "onmt_evsoftmax/kernels").glob("_native*"):
        library.unlink()
    copy.run("python setup.py build_ext --inplace")
    (copy.folder / "check.py").write_text(CHECK)
    assert copy.run("python check.py").strip() == "kernel"


@pytest.mark.skipif(
    not available(), reason="NO TRITON, the GPU kernel was not run: make test-triton"
)
def test_gpu_kernel(copy: Copy) -> None:
    write_calls(copy)
    copy.write(section("With a kernel for GPUs"))
    (copy.folder / "check.py").write_text(CHECK)
    settings = "TRITON_INTERPRET=1 ONMT_EVSOFTMAX_BACKEND=triton"
    assert copy.run(f"{settings} python -W ignore check.py").strip() == "kernel"


def test_another_package(copy: Copy) -> None:
    pytest.importorskip("onmt")
    page = section("A normalizer of your own package")
    copy.write(page)
    words = [f"w{number}" for number in range(20)]
    lines = [" ".join(words[start : start + 5]) + "\n" for start in range(15)]
    for name in ("src", "tgt"):
        (copy.folder / name).write_text("".join(lines))
    (copy.folder / "vocab").write_text("".join(f"{word}\t1\n" for word in words))
    model = {"layers": 1, "heads": 2, "hidden_size": 8, "word_vec_size": 8, "transformer_ff": 8}
    training = {"train_steps": 2, "batch_size": 4, "num_workers": 0, "save_model": "model"}
    both = {"encoder_type": "transformer", "decoder_type": "transformer"}
    data = {"corpus": {"path_src": "src", "path_tgt": "tgt"}}
    files = {"data": data, "src_vocab": "vocab", "tgt_vocab": "vocab"}
    (copy.folder / "recipe.yaml").write_text(yaml.safe_dump(model | training | both | files))
    copy.check(page)


def test_another_version() -> None:
    """The probe on the page is one of ours."""
    (code,) = [text for *_, text in FENCED.findall(section("Another version of OpenNMT-py"))]
    versions = (ROOT / "onmt_evsoftmax/opennmt/versions.py").read_text(encoding="utf-8")
    assert code in versions


def test_metric(copy: Copy) -> None:
    page = section("A metric")
    (code,) = [text for _, kind, text in FENCED.findall(page) if kind == "python"]
    path = copy.folder / "onmt_evsoftmax/score/metrics.py"
    path.write_text(path.read_text(encoding="utf-8") + "\n\n" + code, encoding="utf-8")
    for name in ("test.de", "translated.de"):
        (copy.folder / name).write_text("Das ist ein kurzer Satz.\nUnd noch einer, hier.\n")
    copy.check(page)


def test_corpus(copy: Copy) -> None:
    page = section("A corpus")
    copy.write(page)
    pairs = {"fi": "koira juoksee metsässä", "et": "koer jookseb metsas"}
    for code, text in pairs.items():
        for part, count in (("train", 60), ("test", 5)):
            lines = "".join(f"{text} {number} {number * 7}\n" for number in range(count))
            (copy.folder / "archives").mkdir(exist_ok=True)
            path = copy.folder / "archives" / f"{part}.{code}.gz"
            path.write_bytes(gzip.compress(lines.encode()))
    copy.check(page)
    assert (copy.folder / "out/data/train.fi").read_text().count("\n") == 60


def test_experiment(copy: Copy) -> None:
    page = section("An experiment")
    copy.write(page)
    copy.check(page)


def test_figure(copy: Copy) -> None:
    page = section("A figure")
    copy.write(page)
    traces.write(copy.folder / "demo.trace")
    copy.check(page)
    assert (copy.folder / "sharpest.png").stat().st_size > 5000


def test_the_map_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/]+\.py|\b\w+/c/|vae/experiments/", text))
    assert len(named) > 30
    missing = [
        name
        for name in named
        if not (ROOT / "onmt_evsoftmax" / name).exists() and not (ROOT / name).exists()
    ]
    assert not missing
