"""The codec's one pass over all elements in native code, where that can be had.

On a CPU it is C, compiled at first use and kept in a cache, on a GPU Triton. Where it cannot be
compiled, or does not give torch's bits, torch does the work.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("native.c")
SWITCH = "TIERED_DIST_NATIVE"  # 0: never compile or use it
COMPILE_SECONDS = 120
log = logging.getLogger("tiered_dist")


# Adds weight * gradient to residual in place; positions where its magnitude is now tau or more,
# and its values there.
Accumulate = Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]


def accumulate(
    residual: Tensor, gradient: Tensor, weight: float, tau: float
) -> tuple[Tensor, Tensor] | None:
    """Add ``weight * gradient`` to ``residual``, both ``(n,)``, in place.

    Returns the ascending positions (int64) where its magnitude is now ``tau`` or more, and its
    values there; or None if native code cannot do it: then nothing was changed.
    """
    suitable = all(
        tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in (residual, gradient)
    )
    function = _function(residual.device.type) if suitable else None
    return None if function is None else function(residual, gradient, weight, tau)


def available(device_type: str = "cpu") -> bool:
    """Whether native code serves this process; the first call compiles it."""
    return _function(device_type) is not None


@functools.cache
def _function(device_type: str) -> Accumulate | None:
    """What serves tensors on ``device_type``; None, with the reason in the log, if nothing does."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        function = _in_triton() if device_type == "cuda" else _in_c()
        agrees = _agrees_with_torch(function, device_type)
    except Exception as error:  # whatever a compiler and a loader may raise
        log.info("GTC encodes with torch operations, native code cannot be had: %s", error)
        return None
    if not agrees:
        log.info("GTC encodes with torch operations: native code rounds otherwise here")
        return None
    return function


def _in_triton() -> Accumulate:
    from tiered_dist import triton_kernel  # needs Triton, which not every torch brings

    return triton_kernel.accumulate


def _in_c() -> Accumulate:
    in_c = ctypes.CDLL(str(_compiled())).accumulate
    pointer, number = ctypes.c_void_p, ctypes.c_float
    in_c.argtypes = [pointer, pointer, number, number, ctypes.c_int64, pointer, pointer]
    in_c.restype = ctypes.c_int64

    def accumulate_in_c(
        residual: Tensor, gradient: Tensor, weight: float, tau: float
    ) -> tuple[Tensor, Tensor]:
        n = residual.numel()
        # Only what is written of these costs memory.
        found, values = torch.empty(n, dtype=torch.int32), torch.empty(n)
        tensors = (residual.data_ptr(), gradient.data_ptr())
        count = in_c(*tensors, weight, tau, n, found.data_ptr(), values.data_ptr())
        return found[:count].long(), values[:count].clone()

    return accumulate_in_c


def _agrees_with_torch(function: Accumulate, device_type: str) -> bool:
    """Whether it gives torch's bits: where only one of the two multiplies and adds in one, no."""
    generator = torch.Generator().manual_seed(0)
    gradient, residual = torch.randn(2, 5000, generator=generator).to(device_type).unbind()
    expected = residual.add(gradient, alpha=1 / 3)
    positions, values = function(residual, gradient, 1 / 3, 1.0)
    reaching = (expected.abs() >= 1.0).nonzero().squeeze(1)
    return (
        torch.equal(residual, expected)
        and torch.equal(positions, reaching)
        and torch.equal(values, expected[reaching])
    )


def _compiled() -> Path:
    """The shared library in the cache, compiled if it is not there.

    Of many ranks that ask at once one compiles. OSError, RuntimeError (no home directory) or
    SubprocessError if that fails.
    """
    source = SOURCE.read_bytes()
    key = hashlib.sha256(source + platform.machine().encode()).hexdigest()[:16]
    library = _cache() / f"native-{key}.so"
    if library.exists():
        return library
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc, gcc or clang) on PATH")
    with _lock(library.with_suffix(".lock")):
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=library.parent) as folder:
                partial = Path(folder, library.name)
                command = [compiler, "-O3", "-shared", "-fPIC", str(SOURCE), "-o", str(partial)]
                subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)
                os.replace(partial, library)
    return library


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(root, "tiered_dist")
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl  # Windows has none, nor comes here

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
