"""Runs the stock commands in forks of one process that has imported OpenNMT-py already.

Importing it takes longer than all that a test's command does. A command forked here has started
from the same installed script's module, hook included, and ends with its exit code. Reads one JSON
object per line (command, arguments, cwd, stdout, stderr: files) and answers with the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

import torch
import torch._dynamo  # the optimizer would import it, slowly, in every child

COMMANDS = ("train", "translate", "build_vocab", "average_models", "release_model")


def child(request: dict[str, object]) -> int:
    os.chdir(str(request["cwd"]))
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(str(name), flags), number)
    command = str(request["command"])
    sys.argv = [os.path.join(os.path.dirname(sys.executable), f"onmt_{command}")]
    sys.argv += list(request["arguments"])  # type: ignore[call-overload]
    try:
        sys.exit(importlib.import_module(f"onmt.bin.{command}").main())
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def serve() -> None:
    torch.set_num_threads(1)
    for command in COMMANDS:
        importlib.import_module(f"onmt.bin.{command}")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = child(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
