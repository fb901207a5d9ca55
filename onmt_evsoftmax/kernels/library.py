"""The compiled library: found, loaded, chosen. Without one, torch computes everything.

It is loaded after torch on purpose: both use OpenMP, and whichever is loaded second shares the
runtime, and so the threads, of the first.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch  # noqa: F401  (before the library, see above)

from onmt_evsoftmax.kernels import triton
from onmt_evsoftmax.report.console import UserError

#: The instruction sets that the library is compiled for, the widest first.
VARIANTS = ("avx512", "avx2", "portable")
#: What ``ONMT_EVSOFTMAX_BACKEND`` may say: the best there is, no kernel at all, the GPUs' kernels
#: wherever they can run, or one instruction set on CPUs (and the best on GPUs).
BACKENDS = ("auto", "torch", "triton", *VARIANTS)

_PREFIX = "onmt_evsoftmax_"
_ADDRESS, _LONG, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
#: Function → types of its arguments; every one returns an int, 0 for success.
_SIGNATURES = {
    "select": [ctypes.c_char_p],
    "rows_forward": [_INT, _INT, _LONG, _LONG, *[_ADDRESS] * 5, _REAL, _ADDRESS, _INT],
    "rows_backward": [_INT, _INT, _LONG, _LONG, *[_ADDRESS] * 3, _REAL, *[_ADDRESS] * 2, _INT],
    "attention": [
        *[_INT, _INT, *[_ADDRESS] * 5, _INT, _REAL, _REAL, ctypes.c_uint64],
        *[*[_ADDRESS] * 5, _INT],
    ],
    "single": [_INT, *[_ADDRESS] * 4, _REAL, *[_ADDRESS] * 4, _INT],
}


def _load() -> ctypes.CDLL | None:
    """The library beside this file, as ``setup.py`` builds it; None if it was not built."""
    # Built without Python's version in its name; builds of before had it.
    for suffix in (".abi3.so", *importlib.machinery.EXTENSION_SUFFIXES):
        path = Path(__file__).with_name(f"_native{suffix}")
        if path.exists():
            try:
                native = ctypes.CDLL(str(path))
            except OSError as error:
                message = f"torch computes everything, since the kernels do not load: {error}"
                warnings.warn(message, stacklevel=2)
                return None
            for name, arguments in _SIGNATURES.items():
                getattr(native, _PREFIX + name).argtypes = arguments
            for name in ("variant", "normalizers"):
                getattr(native, _PREFIX + name).restype = ctypes.c_char_p
            getattr(native, _PREFIX + "ranges").restype = ctypes.POINTER(_REAL)
            return native
    return None


_native = _load()
_active: ctypes.CDLL | None = None
_chosen = "auto"
#: Looked up once: a small call is over before an attribute of a library is found.
_functions = {name: getattr(_native, _PREFIX + name) for name in _SIGNATURES if _native}
#: Normalizers with a row kernel → their numbers, as the table in ``c/normalizers.h`` has them.
NORMALIZERS: dict[str, int] = {}
#: The least and the largest parameter that each of them takes; 0, its default, is always taken.
RANGES: dict[str, tuple[float, float]] = {}
if _native is not None:
    _ranges = getattr(_native, _PREFIX + "ranges")()
    _names = getattr(_native, _PREFIX + "normalizers")().decode().split()
    for _number, _name in enumerate(_names):
        NORMALIZERS[_name] = _number
        RANGES[_name] = (_ranges[2 * _number], _ranges[2 * _number + 1])


def active() -> ctypes.CDLL | None:
    """The library, or None where everything is to be computed by torch."""
    return _active


def chosen() -> str:
    """What was asked for, of :data:`BACKENDS`."""
    return _chosen


def choose(backend: str) -> None:
    """Compute with ``backend`` from now on; one of :data:`BACKENDS`."""
    global _active, _chosen
    if backend not in BACKENDS:
        raise ValueError(
            f"ONMT_EVSOFTMAX_BACKEND is {backend!r}; it must be one of: {', '.join(BACKENDS)}"
        )
    if backend == "triton" and not triton.available():
        raise ValueError(
            "ONMT_EVSOFTMAX_BACKEND is 'triton', which is not installed; pip install triton, or "
            "say 'auto'"
        )
    if backend in ("torch", "triton") or (backend == "auto" and _native is None):
        _active, _chosen = None, backend
        return
    if _native is None:
        raise ValueError(
            f"ONMT_EVSOFTMAX_BACKEND is {backend!r} but the kernels are not compiled; "
            "install the package where a C compiler is, or say 'torch'"
        )
    widest_first = VARIANTS if backend == "auto" else (backend,)
    select = getattr(_native, _PREFIX + "select")
    if all(select(name.encode()) != 0 for name in widest_first):
        raise ValueError(
            f"ONMT_EVSOFTMAX_BACKEND is {backend!r}, which this processor does not have; say 'auto'"
        )
    _active, _chosen = _native, backend


def backend() -> str:
    """What computes on CPUs now: torch, Triton's interpreter, or an instruction set's kernels."""
    if _active is None:
        return "triton" if _chosen == "triton" and triton.interpreted() else "torch"
    return getattr(_active, _PREFIX + "variant")().decode()


@contextmanager
def using(name: str) -> Iterator[None]:
    """Compute with another backend for a while (for tests and benchmarks; not per thread)."""
    before = _chosen
    choose(name)
    try:
        yield
    finally:
        choose(before)


def accepts(normalizer: str, parameter: float) -> bool:
    """Whether there is a row kernel for a normalizer that computes it with this parameter."""
    if normalizer not in RANGES:
        return False
    least, most = RANGES[normalizer]
    return parameter == 0.0 or least <= parameter <= most


def call(name: str, *arguments: object) -> None:
    """Call a C function by name without Python's lock; what it reports becomes an exception."""
    status = _functions[name](*arguments)
    if status == 1:
        raise MemoryError(f"no memory for the scratch space of the {name} kernel")
    if status:
        raise RuntimeError(f"a size or option is out of the range of the {name} kernel")


try:
    choose(os.environ.get("ONMT_EVSOFTMAX_BACKEND") or "auto")
except ValueError as error:
    raise UserError(str(error)) from None
