"""Whole programs are measured in turns: only one runs at a time, and only its turns count."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from onmt_evsoftmax.bench import endtoend, turns
from onmt_evsoftmax.bench.turns import Program, run_in_turns
from onmt_evsoftmax.report.console import UserError

TICKS = """
import time
for _ in range(60):
    print("tick", time.perf_counter(), flush=True)
    time.sleep(0.01)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def recorded(spans: list[tuple[float, float]], log: list[tuple[float, str]]) -> Program:
    """A program that has ended, with these turns and this log."""
    program = Program.__new__(Program)
    program.command, program.turns, program.log = ["onmt_train"], spans, log
    return program


@pytest.mark.skipif(sys.platform != "linux", reason="processes share a clock on Linux")
def test_only_one_program_runs_at_a_time(tmp_path):
    programs = run_in_turns({"a": python(TICKS), "b": python(TICKS)}, tmp_path)
    for mine, other in (("a", "b"), ("b", "a")):
        ticks = [float(match[1]) for _, match in programs[mine].find(r"tick (.*)")]
        assert len(ticks) == 60
        assert len(programs[mine].turns) > 2
        # A signal takes its time to arrive, on a busy machine too.
        for start, end in programs[other].turns:
            assert not any(start + 0.1 < tick < end - 0.01 for tick in ticks)


def test_time_in_which_a_program_was_stopped_does_not_count():
    program = recorded([(0.0, 1.0), (2.0, 3.0), (5.0, 6.0)], [])
    assert program.ran(0.5, 2.25) == 0.75
    assert program.ran(-1.0, 10.0) == 3.0
    assert program.ran(3.0, 5.0) == 0.0


def test_programs_have_the_threads_of_the_benchmark(monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    code = "import os; print('threads', os.environ['OMP_NUM_THREADS'])"
    (program,) = run_in_turns({"": python(code)}, tmp_path).values()
    assert program.find(r"threads (\d)")[0][1][1] == "3"


@pytest.mark.parametrize(
    ("code", "said"),
    [("import sys; sys.exit(1)", "it did not say why"), ("import sys; sys.exit('bad')", "bad")],
)
def test_a_program_that_fails_is_reported_and_ends_the_others(monkeypatch, tmp_path, code, said):
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(turns.subprocess, "Popen", start)
    with pytest.raises(UserError, match=f"python.* failed: {said}"):
        run_in_turns({"a": python("import time; time.sleep(600)"), "b": python(code)}, tmp_path)
    assert [process.poll() is not None for process in started] == [True, True]


def test_a_log_that_says_something_else_is_an_error():
    with pytest.raises(UserError, match="onmt_train did not log 'Step', as the versions known"):
        recorded([], [(0.0, "step 1")]).find("Step")


def test_speed_of_training_is_that_of_the_steps_after_the_warm_up():
    line = "Step {0}/ 9; acc: 0.1; lr: 0.0001; sents: 32; bsz:  990/ 100/32; 1/1 tok/s; {0} sec;"
    log = [(float(step), line.format(step)) for step in range(1, 10)]
    program = recorded([(0.0, endtoend.WARM_UP + 1.0), (9.0, 9.0)], log)
    # Four steps of 100 tokens, and of their time the program ran one second.
    assert endtoend._training_speed(program) == 400.0


def test_time_of_translating_ends_where_it_is_reported():
    # 40 sentences of 100 ms: from 5 to 9, of which the program ran a second and a half. The total,
    # which OpenNMT-py rounds to tenths of a second, is not used: it may be nothing.
    said = ("Total translation time (s): 0.0", "Average translation time (ms): 100.0")
    log = [(1.0, "loading"), *((9.0, line) for line in said)]
    program = recorded([(0.0, 6.0), (8.5, 9.5)], log)
    assert endtoend._translating_speed(program, 40) == 40 * endtoend.LENGTH / 1.5


def test_too_little_to_measure_is_an_error_and_no_division_by_zero():
    with pytest.raises(UserError, match="onmt_train had too little to do to be measured"):
        recorded([(0.0, 1.0)], []).speed(9, 1.5, 1.6)


def test_what_a_program_says_last_belongs_to_its_last_turn(tmp_path):
    (program,) = run_in_turns({"a": python("print('end')")}, tmp_path).values()
    ((when, _),) = program.find("end")
    assert program.turns[-1][0] <= when <= program.turns[-1][1]
