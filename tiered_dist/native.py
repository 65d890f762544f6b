"""The codec's one pass over all elements in C, compiled at first use and kept in a cache.

Where there is no compiler, or what it made does not give torch's bits, torch does the work.
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


def accumulate(residual: Tensor, gradient: Tensor, weight: float, tau: float) -> Tensor | None:
    """Add ``weight * gradient`` to ``residual``, both ``(n,)``, in place.

    Returns the ascending positions (int64) whose magnitude is now ``tau`` or more, or None if
    native code cannot do it: then nothing was changed.
    """
    suitable = all(
        tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
        for tensor in (residual, gradient)
    )
    function = _function() if suitable else None
    return None if function is None else _call(function, residual, gradient, weight, tau)


def available() -> bool:
    """Whether native code serves this process; the first call compiles it."""
    return _function() is not None


def _call(
    function: Callable[..., int],
    residual: Tensor,
    gradient: Tensor,
    weight: float,
    tau: float,
) -> Tensor:
    found = torch.empty(residual.numel(), dtype=torch.int32)  # only what is written costs memory
    count = function(
        residual.data_ptr(),
        gradient.data_ptr(),
        weight,
        tau,
        residual.numel(),
        found.data_ptr(),
    )
    return found[:count].long()


@functools.cache
def _function() -> Callable[..., int] | None:
    """The compiled function; None, with the reason in the log, where it cannot be had."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        function = ctypes.CDLL(str(_compiled())).accumulate
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        log.info("GTC encodes with torch operations, native code cannot be had: %s", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_float
    function.argtypes = [pointer, pointer, number, number, ctypes.c_int64, pointer]
    function.restype = ctypes.c_int64
    if not _agrees_with_torch(function):
        log.info("GTC encodes with torch operations: native code rounds otherwise here")
        return None
    return function


def _agrees_with_torch(function: Callable[..., int]) -> bool:
    """Whether it gives torch's bits: where only one of the two multiplies and adds in one, no."""
    generator = torch.Generator().manual_seed(0)
    gradient, residual = torch.randn(2, 1000, generator=generator).unbind()
    expected = residual.add(gradient, alpha=1 / 3)
    positions = _call(function, residual, gradient, 1 / 3, 1.0)
    reaching = (expected.abs() >= 1.0).nonzero().squeeze(1)
    return torch.equal(residual, expected) and torch.equal(positions, reaching)


def _compiled() -> Path:
    """The shared library in the cache, compiled if it is not there.

    OSError, RuntimeError (no home directory) or SubprocessError if that fails. Of many ranks that
    ask at once one compiles.
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
