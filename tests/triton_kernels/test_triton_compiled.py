"""Every shipped configuration, compiled for GPUs that are not here: nothing is spilled.

A kernel that spills registers is correct and several times slower, which no other test would see.
Needs a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import pytest

from onmt_evsoftmax.kernels.triton import available, interpreted

if not available() or interpreted():
    pytest.skip("needs Triton (make test-triton), not interpreted", allow_module_level=True)

from compilation import PAGE, SHARED_MEMORY, compile_for, configurations, in_ci, row_of

CASES = [
    pytest.param(
        capability,
        one,
        id=f"sm_{capability}-" + "-".join(row_of(one)),
        marks=() if in_ci(capability, one) else pytest.mark.slow,
    )
    for capability in SHARED_MEMORY
    for one in configurations(capability)
]


@pytest.mark.parametrize(("capability", "configuration"), CASES)
def test_nothing_is_spilled(capability, configuration):
    found = compile_for(configuration.launch, capability)
    print(f"sm_{capability}", *row_of(configuration), *found, sep=" | ")
    assert found.spilled == 0
    assert found.shared <= SHARED_MEMORY[capability]
    sums = ("rows", "key_sums", "distance_totals")
    assert bool(found.tensor_cores) != any(name in configuration.kernel for name in sums)


def test_the_documentation_lists_every_configuration():
    text = PAGE.read_text(encoding="utf-8")
    for case in CASES:
        assert "| " + " | ".join(row_of(case.values[1])) + " |" in text
