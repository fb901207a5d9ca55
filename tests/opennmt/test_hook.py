"""The start-up hook: there after any kind of install, gone after uninstall, never in the way."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest
import torch
from workbench import ROOT, hook_is_live, python

SITE = Path(torch.__file__).parents[1]
LIVE = "import sys; print('onmt_evsoftmax_hook' in sys.modules)"


class Environment:
    """A new virtual environment, and wheels of the package built without a network."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        self.site = next(folder.glob("lib/python*/site-packages"))

    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources: building leaves traces."""
    copy = tmp_path_factory.mktemp("source") / "package"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "onmt_evsoftmax_hook.py"):
        shutil.copy(ROOT / name, copy / name)
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "onmt_evsoftmax", copy / "onmt_evsoftmax", ignore=ignore)
    return copy


def build(source: Path, function: str) -> Path:
    """Call setuptools as pip does: ``build_wheel`` or ``build_editable``."""
    pytest.importorskip("setuptools", reason="building the package needs setuptools>=70")
    code = (
        "import sys, setuptools.build_meta as backend; "
        f"print('wheel:', backend.{function}(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(source / "dist")],
        cwd=source,
        capture_output=True,
        text=True,
        env={**os.environ, "CC": "false"},  # the kernels are not what is tested, and take minutes
    )
    assert done.returncode == 0, done.stderr
    return source / "dist" / done.stdout.strip().splitlines()[-1].removeprefix("wheel: ")


@pytest.mark.parametrize("function", ["build_wheel", "build_editable"])
def test_install_brings_the_hook_and_uninstall_takes_it_away(
    function: str, source: Path, tmp_path: Path
) -> None:
    wheel = build(source, function)
    environment = Environment(tmp_path / "env")
    environment.pip("install", "--no-deps", "--no-index", str(wheel))
    assert python(environment.python, LIVE).stdout == "True\n"
    assert python(environment.python, LIVE, ONMT_EVSOFTMAX="off").stdout == "True\n"
    # With torch and OpenNMT-py reachable, importing the latter brings the plugin.
    code = (
        f"import sys; sys.path.append({str(SITE)!r}); import onmt, onmt.opts; "
        "print('onmt_evsoftmax.opennmt' in sys.modules, "
        "sys.modules['onmt_evsoftmax'].__file__)"
    )
    done = python(environment.python, code)
    assert done.stdout.startswith("True "), done.stderr
    where = Path(done.stdout.split()[1])
    assert where.is_relative_to(source if function == "build_editable" else environment.site)
    environment.pip("uninstall", "-y", "onmt_evsoftmax")
    assert python(environment.python, LIVE).stdout == "False\n"
    assert not list(environment.site.glob("*evsoftmax*"))


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The hook by itself, beside packages named like the ones it waits for."""
    shutil.copy(ROOT / "onmt_evsoftmax_hook.py", tmp_path)
    (tmp_path / "onmt").mkdir()
    (tmp_path / "onmt" / "__init__.py").write_text("")
    return tmp_path


def run_alone(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python(
        sys.executable,
        f"import sys; sys.path.insert(0, {str(folder)!r}); import onmt_evsoftmax_hook\n"
        "onmt_evsoftmax_hook.start()\n" + code,
        "-S",
        **env,
    )


def test_it_imports_neither_torch_nor_the_package() -> None:
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules); "
        "import onmt_evsoftmax_hook; print(sorted(set(sys.modules) - before))"
    )
    done = python(sys.executable, code, "-S", "-I")  # os: Python has loaded it before any .pth
    assert done.stdout == "['__future__', 'onmt_evsoftmax_hook']\n", done.stderr


def test_an_error_while_joining_opennmt_stops_and_says_how_to_go_on(alone: Path) -> None:
    done = run_alone(alone, "import onmt")
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "onmt_evsoftmax could not join OpenNMT-py" in last
    assert "ONMT_EVSOFTMAX=off" in last


def test_whoever_imports_again_after_an_error_gets_it_again(alone: Path) -> None:
    code = textwrap.dedent("""
        for _ in range(2):
            try:
                import onmt
            except ImportError as error:
                print(error)
    """)
    lines = run_alone(alone, code).stdout.splitlines()
    assert len(lines) == 2
    assert all("onmt_evsoftmax could not join OpenNMT-py" in line for line in lines)


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no", "false"])
def test_the_environment_switches_it_off(alone: Path, value: str) -> None:
    done = run_alone(alone, "import onmt; print(sys.meta_path[0])", ONMT_EVSOFTMAX=value)
    assert done.returncode == 0
    assert "onmt_evsoftmax_hook" not in done.stdout


def test_a_program_that_imports_something_else_notices_nothing(alone: Path) -> None:
    code = textwrap.dedent("""
        import json, decimal, importlib.util
        assert importlib.util.find_spec("onmt") is not None
        assert importlib.util.find_spec("no_such_module") is None
        try:
            import no_such_module
        except ModuleNotFoundError as error:
            print(error)
    """)
    assert run_alone(alone, code).stdout == "No module named 'no_such_module'\n"


def test_a_broken_hook_breaks_nothing(tmp_path: Path) -> None:
    """The line in the .pth file swallows even a hook that is not Python."""
    (line,) = [
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse((ROOT / "setup.py").read_text()))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "STARTUP"
    ]
    (tmp_path / "onmt_evsoftmax_hook.py").write_text("this is not Python")
    (tmp_path / "broken.pth").write_text(line)
    code = f"import site; site.addsitedir({str(tmp_path)!r}); print('fine')"
    done = python(sys.executable, code)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_callbacks_run_once_each_right_after_the_module(alone: Path) -> None:
    (alone / "watched.py").write_text("value = 1")
    code = textwrap.dedent("""
        from onmt_evsoftmax_hook import after_import
        seen = []
        after_import("watched", lambda module: seen.append(("first", module.value)))
        after_import("watched", lambda module: setattr(module, "value", 2))
        from watched import value
        after_import("watched", lambda module: seen.append(("late", module.value)))
        import importlib
        importlib.reload(sys.modules["watched"])
        print(value, seen)
    """)
    done = run_alone(alone, code)
    assert done.stdout == "2 [('first', 1), ('late', 2)]\n", done.stderr


def test_neither_toolkit_is_required() -> None:
    """transformers comes with the extra of its name; eole is never brought along."""
    asked = metadata.requires("onmt_evsoftmax") or []
    assert any(line.startswith("torch") for line in asked)
    for toolkit in ("transformers", "eole"):
        lines = [line for line in asked if line.startswith(toolkit)]
        assert all(f'extra == "{toolkit}"' in line for line in lines)


def test_started_twice_is_started_once(alone: Path) -> None:
    """Python reads a .pth file twice where lib64 is a link to lib."""
    code = textwrap.dedent("""
        onmt_evsoftmax_hook.start()
        print({len(waiting) for waiting in onmt_evsoftmax_hook._callbacks.values()})
    """)
    done = run_alone(alone, code)
    assert done.stdout == "{1}\n", done.stderr


def test_eole_is_joined_or_the_import_fails(alone: Path) -> None:
    for folder in (alone / "eole", alone / "eole" / "config"):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    (alone / "eole" / "config" / "models.py").write_text("")
    done = run_alone(alone, "import eole.config; print('fine'); import eole.config.models")
    assert done.stdout == "fine\n"
    assert "onmt_evsoftmax could not join eole" in done.stderr.strip().splitlines()[-1]


def test_by_hand_even_after_opennmt_was_imported() -> None:
    code = textwrap.dedent("""
        from onmt.bin.train import _get_parser, train_opts
        import onmt.model_builder, onmt.train_single, onmt.models.model_saver
        before = onmt.train_single.load_checkpoint, onmt.train_single._get_model_opts
        from onmt_evsoftmax.opennmt import install, installed
        assert not installed()
        install()
        install()
        assert installed()
        options = {text for action in _get_parser()._actions for text in action.option_strings}
        assert "--attention_normalizer" in options
        assert onmt.train_single._get_model_opts is not before[1]
        assert type(onmt.models.model_saver.torch).__name__ == "CheckpointTorch"
        print("installed")
    """)
    path = os.pathsep.join(sys.path)
    done = python(sys.executable, code, "-W", "ignore", ONMT_EVSOFTMAX="off", PYTHONPATH=path)
    assert done.stdout == "installed\n", done.stderr


def test_every_process_of_this_environment_knows_the_plugin(tmp_path: Path) -> None:
    if not hook_is_live():
        pytest.skip("the package is not installed here: pip install -e .")
    code = textwrap.dedent("""
        import multiprocessing, sys
        def child(queue):
            import onmt.opts
            queue.put("onmt_evsoftmax.opennmt" in sys.modules)
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(queue.get(timeout=120))
            process.join()
    """)
    script = tmp_path / "spawning.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=200
    )
    assert done.stdout == "True\n", done.stderr


def test_ctranslate2_alone_does_not_import_torch() -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    if not hook_is_live():
        pytest.skip("the package is not installed here: pip install -e .")
    code = (
        "import sys, ctranslate2.converters.opennmt_py as c; "
        "print(c.OpenNMTPyConverter._load.__module__, 'onmt_evsoftmax' in sys.modules)"
    )
    assert python(sys.executable, code).stdout == "onmt_evsoftmax_hook False\n"
