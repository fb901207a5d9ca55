"""A normalizer that another, pip-installed package brings by nothing but an entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from models import TRANSFORMER, build, flags, parse
from workbench import Workbench

from onmt_evsoftmax.normalizers import registry
from onmt_evsoftmax.opennmt.checkpoint import load, save
from onmt_evsoftmax.opennmt.settings import PACKAGES, Settings

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-normalizers"
version = "1.0"

[project.entry-points."onmt_evsoftmax.normalizers"]
halfmax = "tiny_normalizers:halfmax"
tempered = "tiny_normalizers:TEMPERED"
broken = "tiny_normalizers:nowhere"

[tool.setuptools]
py-modules = ["tiny_normalizers"]
"""

MODULE = '''
import torch

from onmt_evsoftmax.normalizers.registry import Normalizer, Parameter


def halfmax(scores, mask=None, dim=-1, *, return_support=False):
    """Softmax of the scores that are less than 1/2 below the highest."""
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    kept = scores >= scores.amax(dim, keepdim=True) - 0.5
    kept = kept if mask is None else kept & mask
    p = torch.softmax(scores.masked_fill(~kept, -1e30), dim) * kept
    return (p, kept) if return_support else p


def tempered(scores, mask=None, dim=-1, *, return_support=False, temperature=1.0):
    return halfmax(scores / temperature, mask, dim, return_support=return_support)


def loss(logits, target, *, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    return torch.nn.functional.cross_entropy(
        logits, target, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )


TEMPERED = Normalizer(
    name="tempered",
    function=tempered,
    loss=loss,
    parameters=(Parameter("temperature", "what scores are divided by", float, 1.0),),
    title="Tempered half-max",
)
'''


@pytest.fixture(scope="session")
def package(bench: Workbench) -> Path:
    """The folder that a tiny package was installed into; no network, no other environment."""
    source, target = bench.folder / "tiny", bench.folder / "site"
    with FileLock(bench.folder / "tiny.lock"):
        if not target.exists():
            source.mkdir()
            (source / "pyproject.toml").write_text(PROJECT)
            (source / "tiny_normalizers.py").write_text(MODULE)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
            command += ["--no-build-isolation", "--target", str(target), str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def env(package: Path) -> dict[str, str]:
    """What an environment has in which the package is installed."""
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path.rstrip(os.pathsep)}


@pytest.fixture(scope="session")
def trained(bench: Workbench, env: dict[str, str]) -> Path:
    """A model with nothing but the other package's normalizers."""
    return bench.train(
        "tempered",
        env=env,
        train_steps=20,
        save_checkpoint_steps=10,
        attention_normalizer="tempered",
        attention_temperature=0.5,
        context_attention_normalizer="halfmax",
        generator_function="tempered",
    )


@pytest.fixture
def in_this_process(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is installed for the tests' own process."""

    def forget() -> None:
        registry._entry_points.cache_clear()
        registry._from_entry_point.cache_clear()

    monkeypatch.syspath_prepend(str(package))
    forget()
    yield
    monkeypatch.undo()
    forget()


def python(code: str, env: dict[str, str], cwd: Path) -> Any:
    """Run code that prints JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class TestStockCommands:
    def test_training_says_what_took_effect(self, bench: Workbench, trained: Path) -> None:
        log = bench.log("tempered")
        assert "encoder attention tempered(temperature=0.5)" in log
        assert "context attention halfmax, generator tempered" in log

    def test_translating(self, bench: Workbench, trained: Path, env: dict[str, str]) -> None:
        assert len(bench.translate(trained, "-beam_size", "2", env=env)) == 32

    def test_at_test_time_only(self, bench: Workbench, package: Path, env: dict[str, str]) -> None:
        model = bench.train("softmax")
        options = ("-attention_normalizer", "tempered", "-attention_temperature", "0.25")
        lines = bench.translate(model, "-beam_size", "2", *options, env=env)
        assert lines != bench.translate(model, "-beam_size", "2")

    @pytest.mark.usefixtures("in_this_process")
    def test_resuming_and_averaging(
        self, bench: Workbench, trained: Path, env: dict[str, str]
    ) -> None:
        end = bench.train("tempered-on", env=env, train_from=str(trained), train_steps=25)
        assert "wins over" not in bench.log("tempered-on")
        assert Settings.of(load(end)["opt"]) == Settings.of(load(trained)["opt"])
        assert Settings.of(load(end)["opt"]).parameters == {"temperature": 0.5}
        mean = bench.folder / f"tempered-mean-{os.getpid()}.pt"
        bench.run("average_models", "-models", trained, end, "-o", mean, env=env)
        assert getattr(load(mean)["opt"], PACKAGES) == {
            "halfmax": "tiny-normalizers",
            "tempered": "tiny-normalizers",
        }

    def test_help_lists_it(self, bench: Workbench, env: dict[str, str]) -> None:
        help_text = " ".join(bench.run("train", "--help", env=env).stdout.split())
        assert "softmax, evsoftmax" in help_text
        assert "halfmax, tempered" in help_text
        assert "broken" not in help_text


class TestMissing:
    """Without the package, and with a broken one."""

    @pytest.mark.parametrize("command", ["translate", "train", "average_models"])
    def test_a_checkpoint_says_which_package_it_needs(
        self, bench: Workbench, trained: Path, command: str
    ) -> None:
        config = bench.config(f"needs-{os.getpid()}", train_from=str(trained))
        arguments: dict[str, tuple[object, ...]] = {
            "translate": ("-model", trained, "-src", "test.src", "-output", "none.out"),
            "train": ("-config", config.name),
            "average_models": ("-models", trained, trained, "-o", "none.pt"),
        }
        done = bench.run(command, *arguments[command], code=2)
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"onmt_{command}: error: {trained} needs the normalizer ")
        assert last.endswith(
            "of the package tiny-normalizers, which is not installed here: "
            "pip install tiny-normalizers"
        )

    def test_a_broken_entry_point_is_named_when_it_is_used(
        self, bench: Workbench, env: dict[str, str]
    ) -> None:
        config = bench.config(f"broken-{os.getpid()}", attention_normalizer="broken")
        done = bench.run("train", "-config", config.name, code=2, env=env)
        last = done.stderr.splitlines()[-1]
        assert "attention_normalizer: the normalizer 'broken' of tiny-normalizers" in last
        assert "nowhere" in last

    @pytest.mark.usefixtures("in_this_process")
    def test_unknown_names_are_compared_with_its_names(self) -> None:
        from onmt_evsoftmax.report.console import UserError

        with pytest.raises(UserError, match="did you mean halfmax"):
            parse("-attention_normalizer", "halfmx")
        with pytest.raises(UserError, match="halfmax has no loss of its own"):
            parse("-generator_function", "halfmax")
        with pytest.raises(UserError, match=r"-attention_temperatur is unknown"):
            parse("-attention_normalizer", "tempered", "-attention_temperatur", "2")


@pytest.mark.usefixtures("in_this_process")
def test_its_parameters_are_options(tmp_path: Path) -> None:
    model = build(
        *TRANSFORMER, *flags(attention_normalizer="tempered", attention_temperature="0.25")
    )
    settings = Settings.of(model.options)
    assert settings.parameters == {"temperature": 0.25}
    save({"model": {}, "opt": model.options}, tmp_path / "model.pt")
    stored = load(tmp_path / "model.pt")["opt"]
    assert Settings.of(stored) == settings
    assert getattr(stored, PACKAGES) == {"tempered": "tiny-normalizers"}


def test_the_tools_know_it(bench: Workbench, trained: Path, env: dict[str, str]) -> None:
    code = f"""
        import json
        from onmt_evsoftmax.trace import trace_attention, TraceReader
        from onmt_evsoftmax.attended import count_attended
        path = "tempered-{os.getpid()}.trace"
        text = ["--src", "valid.src", "--tgt", "valid.tgt"]
        trace_attention.main(["--model", {str(trained)!r}, *text, "-o", path, "--quiet"])
        count_attended.main(["tempered=" + path, "-o", path + ".json"])
        with TraceReader(path) as trace:
            sparse = {{kind: float(a.support.mean()) for kind, a in trace[0].attention.items()}}
            names = {{kind: about.normalizer for kind, about in trace.header.kinds.items()}}
        print(json.dumps([sparse, names]))
    """
    sparse, names = python(code, env, bench.folder)
    assert names == {"encoder": "tempered", "decoder": "tempered", "context": "halfmax"}
    assert all(0 < share < 1 for share in sparse.values())


def test_the_vaes_and_the_figures_know_it(bench: Workbench, env: dict[str, str]) -> None:
    code = """
        import json, torch
        from onmt_evsoftmax.normalizers.registry import title_of
        from onmt_evsoftmax.vae import experiment, latent
        experiment.check_normalizer("halfmax")
        experiment.check_normalizer("tempered")
        p = latent.log_probabilities("halfmax", torch.tensor([[0.0, 0.1, 3.0]]), 1e-6).exp()
        print(json.dumps([p.round(decimals=3).tolist(), title_of("tempered")]))
    """
    p, title = python(code, env, bench.folder)
    assert p == [[0.0, 0.0, 1.0]]
    assert title == "Tempered half-max"


def test_nothing_is_looked_for_unless_a_foreign_name_is_asked_for(bench: Workbench) -> None:
    """Neither when the commands start, nor while they build a model of ours."""
    code = """
        from importlib import metadata
        def entry_points(*, group="", **_):
            assert group != "onmt_evsoftmax.normalizers", "entry points were read"
            return found(group=group)
        found, metadata.entry_points = metadata.entry_points, entry_points
        import sys
        sys.path += PATHS
        import onmt.bin.train, onmt.bin.translate
        from models import TRANSFORMER, build, flags, parse
        build(*TRANSFORMER, *flags(attention_normalizer="entmax", attention_alpha=1.3))
        parse("-generator_function", "sparsemax", "-attention_normalizer", "evsoftmax")
        print(1)
    """
    paths = [str(Path(__file__).parent)]
    assert python(code.replace("PATHS", repr(paths)), {}, bench.folder) == 1
