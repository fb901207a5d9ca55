"""Checkpoints: nothing in them runs, none is half-written, and sparse ones are locked."""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import textwrap
from argparse import Namespace
from pathlib import Path
from typing import Any

import onmt.bin.average_models
import onmt.models.model_saver
import pytest
import torch
from models import TRANSFORMER, build, flags, parse
from workbench import python

from onmt_evsoftmax.opennmt import checkpoint as checkpoints
from onmt_evsoftmax.opennmt.checkpoint import SparseOptions, load, save, stamped, sweep
from onmt_evsoftmax.opennmt.settings import EXTENDED, Settings, options_of
from onmt_evsoftmax.report.console import UserError

SITE = Path(torch.__file__).parents[1]


def example(*arguments: str) -> dict[str, Any]:
    return {
        "model": {"weight": torch.arange(6.0).reshape(2, 3)},
        "generator": {"bias": torch.ones(2)},
        "vocab": {"src": ["a"], "tgt": ["b"], "data_task": "seq2seq"},
        "opt": parse(*TRANSFORMER, *arguments),
        "optim": {"training_step": 3, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}},
    }


SPARSE = [
    flags(attention_normalizer="evsoftmax"),
    flags(context_attention_normalizer="sparsemax"),
    flags(generator_function="entmax15"),
    flags(global_attention_function="evsoftmax"),
]


def test_softmax_is_stored_exactly_as_opennmt_stores_it(tmp_path: Path) -> None:
    written = example("-attention_normalizer", "softmax")
    save(written, tmp_path / "model.pt")
    options = load(tmp_path / "model.pt")["opt"]
    assert type(options) is Namespace
    ours = set(options_of(options)) - set(EXTENDED)
    assert not [name for name in vars(options) if name in ours or "evsoftmax" in name]
    with torch.serialization.safe_globals([argparse.Namespace]):
        plain = torch.load(tmp_path / "model.pt", weights_only=True)
    assert plain["opt"] == options


@pytest.mark.parametrize("arguments", SPARSE)
def test_sparse_options_come_back_locked_and_the_same(tmp_path: Path, arguments: list[str]) -> None:
    written = example(*arguments)
    save(written, tmp_path / "model.pt")
    restored = load(tmp_path / "model.pt")
    assert type(restored["opt"]) is SparseOptions
    assert Settings.of(restored["opt"]) == Settings.of(written["opt"])
    assert type(written["opt"]) is Namespace  # the running training keeps its own
    assert torch.equal(restored["model"]["weight"], written["model"]["weight"])


def without_the_package(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with torch and OpenNMT-py but where ``import onmt_evsoftmax`` finds nothing."""
    blocked = (
        "import sys\n"
        f"sys.path.append({str(SITE)!r})\n"
        "class Absent:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name.partition('.')[0].startswith('onmt_evsoftmax'):\n"
        "            raise ModuleNotFoundError(f\"No module named '{name.partition('.')[0]}'\")\n"
        "sys.meta_path.insert(0, Absent)\n"
    )
    return python(sys.executable, blocked + code, "-S", "-W", "ignore")


def with_the_package(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` where everything is found that this process finds."""
    path = os.pathsep.join(sys.path)
    return python(sys.executable, code, "-W", "ignore", PYTHONPATH=path, **env)


# The three ways in which somebody may open a checkpoint: torch of today, the same with the class
# that OpenNMT-py needs allowed, and torch before 2.6.
OPEN = """
import argparse, torch
for number in range(3):
    if number == 1:
        torch.serialization.add_safe_globals([argparse.Namespace])
    try:
        torch.load({path!r}, weights_only=number < 2)
        print("opened")
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
"""


@pytest.mark.parametrize("change", ["as saved", "averaged", "released"])
def test_without_the_package_the_error_names_it(tmp_path: Path, change: str) -> None:
    path = tmp_path / "model.pt"
    save(example("-attention_normalizer", "evsoftmax"), path)
    if change == "averaged":
        module = onmt.bin.average_models
        module.torch.save(module.average_models([str(path), str(path)]), path)
    elif change == "released":
        model = onmt.models.model_saver.torch.load(path)
        model["optim"] = None
        onmt.models.model_saver.torch.save(model, path)
    today, allowed, old = without_the_package(OPEN.format(path=str(path))).stdout.splitlines()
    for error in (today, allowed):
        assert "GLOBAL onmt_evsoftmax.opennmt.checkpoint.SparseOptions was not" in error
    assert old == "ModuleNotFoundError No module named 'onmt_evsoftmax'"


def test_without_the_package_softmax_checkpoints_open(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save(example(), path)
    _, *others = without_the_package(OPEN.format(path=str(path))).stdout.splitlines()
    assert others == ["opened", "opened"]


def test_switched_off_the_lock_holds_even_for_old_style_loading(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save(example("-attention_normalizer", "evsoftmax"), path)
    code = f"import torch; torch.load({str(path)!r}, weights_only=False)"
    done = with_the_package(code, ONMT_EVSOFTMAX="off")
    assert done.returncode != 0
    assert "onmt_evsoftmax, which is switched off here" in done.stderr


def test_installed_but_not_imported_it_opens(tmp_path: Path) -> None:
    """Whoever reads a checkpoint by hand, before OpenNMT-py is imported, has the plugin."""
    path = tmp_path / "model.pt"
    save(example("-attention_normalizer", "evsoftmax"), path)
    code = (
        f"import sys, torch; c = torch.load({str(path)!r}, weights_only=False); "
        "from onmt_evsoftmax.opennmt import installed; "
        "print(c['opt'].attention_normalizer, installed())"
    )
    done = with_the_package(code, ONMT_EVSOFTMAX="on")
    assert done.stdout == "evsoftmax True\n", done.stderr


class Payload:
    """Unpickling it creates a file: the mark that code has run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("place", ["opt", "optim", "model", "nested"])
def test_a_malicious_checkpoint_is_refused_and_does_not_run(tmp_path: Path, place: str) -> None:
    path, mark = tmp_path / "model.pt", tmp_path / "code-has-run"
    bad = example()
    if place == "nested":
        bad["opt"].data = {"corpus": [Payload(mark)]}
    else:
        bad[place] = Payload(mark)
    torch.save(bad, path)
    with pytest.raises(UserError, match=r"was refused and nothing in it was run: .*mkdir"):
        load(path)
    with pytest.raises(UserError, match="was refused"):
        onmt.models.model_saver.load_checkpoint(str(path))
    with pytest.raises(UserError, match="was refused"):
        onmt.bin.average_models.average_models([str(path)])
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()  # it would have


def test_a_plain_pickle_is_refused_as_well(tmp_path: Path) -> None:
    path, mark = tmp_path / "model.pt", tmp_path / "code-has-run"
    path.write_bytes(pickle.dumps({"opt": Payload(mark)}))
    with pytest.raises(UserError, match="was refused"):
        load(path)
    assert not mark.exists()


def test_a_broken_or_missing_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(UserError, match=r"model\.pt: No such file"):
        load(path)
    save(example(), path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match="is not a whole checkpoint"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="is not a whole checkpoint"):
        load(path)
    torch.save({"weights": torch.ones(3)}, path)
    with pytest.raises(UserError, match="not an OpenNMT-py checkpoint"):
        load(path)
    for content in (b"hello\n", b"{}", b"\x89PNG\r\n", b"e" * 5000, "größer".encode()):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"model\.pt"):
            load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt"
    save(example(), path)
    before = path.read_bytes()

    def half(obj: Any, file: Any) -> None:
        Path(file).write_bytes(b"half")
        raise RuntimeError("no space left")

    monkeypatch.setattr(checkpoints.torch, "save", half)
    with pytest.raises(RuntimeError):
        save(example("-attention_normalizer", "evsoftmax"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a small disk."""
    code = textwrap.dedent(f"""
        import resource, signal, torch
        from onmt_evsoftmax.opennmt.checkpoint import save
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            save({{"model": torch.zeros(100_000)}}, {str(tmp_path / "model.pt")!r})
        except Exception as error:
            print(type(error).__name__, error)
    """)
    done = with_the_package(code)
    assert done.stdout.startswith("UserError cannot write"), done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_sweeping_removes_only_what_a_killed_run_left(tmp_path: Path) -> None:
    left = tmp_path / ".model_step_20.pt.abcd1234.tmp"
    others = [
        tmp_path / name
        for name in ("model_step_10.pt", ".other_step_20.pt.abcd1234.tmp", ".model.tmp")
    ]
    for path in (left, *others):
        path.write_text("x")
    sweep(tmp_path / "model")
    assert sorted(tmp_path.iterdir()) == sorted(others)
    left = tmp_path / ".a[1]_step_20.pt.abcd1234.tmp"
    left.write_text("x")
    sweep(tmp_path / "a[1]")
    assert not left.exists()


def test_weights_in_a_file_of_their_own_are_whole_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver_class = onmt.models.model_saver.ModelSaver
    if not hasattr(saver_class, "_st_save"):
        pytest.skip("only OpenNMT-py 3.5.1 saves safetensors")
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = build(*TRANSFORMER, "-attention_normalizer", "evsoftmax")
    optimizer = Namespace(state_dict=dict)
    base = str(tmp_path / "model")
    saver = saver_class(base, model, model.options, model.vocabs, optimizer, -1, "safetensors")
    saver.save(1)
    assert torch.equal(
        library.load_file(tmp_path / "model_step_1.safetensors")["generator.bias"],
        model.generator.bias,
    )
    assert type(load(tmp_path / "model_step_1.pt")["opt"]) is SparseOptions

    def half(weights: Any, path: Any) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("no space left")

    monkeypatch.setattr(library, "save_file", half)
    with pytest.raises(RuntimeError):
        saver.save(2)
    assert not (tmp_path / "model_step_2.safetensors").exists()
    assert not list(tmp_path.glob(".*"))


def test_checkpoints_of_different_normalizers_have_no_mean(tmp_path: Path) -> None:
    save(example("-attention_normalizer", "evsoftmax"), tmp_path / "a.pt")
    save(example("-attention_normalizer", "sparsemax"), tmp_path / "b.pt")
    with pytest.raises(UserError, match="different normalizers"):
        onmt.bin.average_models.average_models([str(tmp_path / "a.pt"), str(tmp_path / "b.pt")])


@pytest.mark.parametrize("difference", [("attention_backend", "explicit"), ("attention_eps", 0.1)])
def test_how_a_model_was_trained_does_not_keep_it_from_a_mean(
    tmp_path: Path, difference: tuple[str, Any]
) -> None:
    one = flags(attention_normalizer="evsoftmax")
    save(example(*one), tmp_path / "a.pt")
    save(example(*one, f"-{difference[0]}", str(difference[1])), tmp_path / "b.pt")
    paths = [str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]
    mean = onmt.bin.average_models.average_models(paths)
    assert torch.equal(mean["model"]["weight"], example()["model"]["weight"])


def test_the_record_of_what_was_written_is_not_stored() -> None:
    options = parse("-attention_normalizer", "evsoftmax")
    assert "_evsoftmax_written" in vars(options)
    assert "_evsoftmax_written" not in vars(stamped(options))


def test_only_two_classes_are_allowed() -> None:
    assert set(checkpoints.ALLOWED) == {argparse.Namespace, SparseOptions}
