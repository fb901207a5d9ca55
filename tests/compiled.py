"""Marks for tests that need the compiled kernels: they say loudly why they are skipped."""

import pytest

from onmt_evsoftmax import kernels

needs_kernels = pytest.mark.skipif(
    not kernels.available(),
    reason="the kernels are not compiled or not in use: install with a C compiler (pip install "
    "-e .) and leave ONMT_EVSOFTMAX_BACKEND unset",
)

#: For the top of a test file.
with_each_instruction_set = [needs_kernels, pytest.mark.usefixtures("instruction_set")]
