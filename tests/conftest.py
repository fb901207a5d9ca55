"""Shared by all tests: few threads (two cores, two workers) and hypothesis without deadlines."""

import os

import pytest
import torch
from hypothesis import settings

from onmt_evsoftmax import kernels

# On some virtual machines AMX is announced but not granted, and torch's bfloat16 products end the
# process with an illegal instruction. Subprocesses inherit this, too.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
torch.set_num_threads(1)
settings.register_profile("default", deadline=None, max_examples=60)
settings.load_profile("default")


def _instruction_sets() -> list[str]:
    found = []
    for name in kernels.library.VARIANTS:
        try:
            with kernels.using(name):
                found.append(name)
        except ValueError:
            pass
    return found


@pytest.fixture(params=_instruction_sets())
def instruction_set(request):
    """A test that asks for it runs once with each instruction set of this processor."""
    with kernels.using(request.param):
        yield request.param
