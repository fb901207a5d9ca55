"""Where the kernels run in a test: on a GPU if there is one, else in Triton's interpreter."""

import pytest
import torch

from onmt_evsoftmax.kernels.triton import available, interpreted
from onmt_evsoftmax.kernels.triton.serving import served

DEVICE = "cuda" if torch.cuda.is_available() and not interpreted() else "cpu"

ATTENTION = list(served("attention_kernel"))

#: For the top of a test file that runs kernels.
runs_kernels = pytest.mark.skipif(
    not available() or (DEVICE == "cpu" and not interpreted()),
    reason="needs Triton (make test-triton), and a GPU or TRITON_INTERPRET=1",
)
