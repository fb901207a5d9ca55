"""Every test of the kernels that asks for ``instruction_set`` runs once with each that is here."""

from __future__ import annotations

import pytest

from onmt_evsoftmax import kernels


def instruction_sets() -> list[str]:
    found = []
    for name in kernels.BACKENDS[2:]:
        try:
            with kernels.using(name):
                found.append(name)
        except ValueError:
            pass
    return found


@pytest.fixture(params=instruction_sets())
def instruction_set(request):
    with kernels.using(request.param):
        yield request.param
