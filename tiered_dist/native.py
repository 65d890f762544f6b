"""The codec's work on all elements and on all entries in native code, where that can be had.

On a CPU it is C, compiled at first use and kept in a cache, on a GPU Triton. Where it cannot be
compiled, or does not give torch's bits, torch does the work.
"""

import contextlib
import ctypes
import dataclasses
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


class NotThisModel(ValueError):
    """A message's body has entries that the model does not."""

    def __init__(self) -> None:
        super().__init__("a message has entries that do not fit the model")


@dataclasses.dataclass(frozen=True)
class Native:
    """The functions of one kind of device; see those of this module."""

    accumulate: Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]
    decode: Callable[[Tensor, list[int], int, Tensor, Tensor, Tensor, Tensor], None]


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
    native = _native(residual.device.type) if suitable else None
    return None if native is None else native.accumulate(residual, gradient, weight, tau)


def decode(
    bodies: Tensor,
    counts: list[int],
    stretches: int,
    ends: Tensor,
    values: Tensor,
    scratch: Tensor,
    out: Tensor,
) -> bool:
    """Sum the entries of all workers' ``bodies`` ``(S, words)`` into ``out``.

    ``out`` ``(n,)`` float32 gets, where there are entries, their sum times the value of the
    parameter, and keeps what it has elsewhere. Worker w has ``counts[w]`` entries, in the 16-bit
    form if there are ``stretches``. ``ends`` (int64) are where the parameters end, ``values``
    (float32) one each, both on the CPU. ``scratch``, ``(n,)`` int32 zeros, is left as zeros.
    Returns whether native code did it; ``NotThisModel`` if a body does not fit: nothing was
    written then.
    """
    native = _native(out.device.type)
    if native is None:
        return False
    native.decode(bodies, counts, stretches, ends, values, scratch, out)
    return True


def available(device_type: str = "cpu") -> bool:
    """Whether native code serves this process; the first call compiles it."""
    return _native(device_type) is not None


@functools.cache
def _native(device_type: str) -> Native | None:
    """What serves tensors on ``device_type``; None, with the reason in the log, if nothing does."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        native = _in_triton() if device_type == "cuda" else in_c(compiled())
        agrees = _agrees_with_torch(native, device_type)
    except Exception as error:  # whatever a compiler and a loader may raise
        log.info("GTC works with torch operations, native code cannot be had: %s", error)
        return None
    if not agrees:
        log.info("GTC works with torch operations: native code rounds otherwise here")
        return None
    return native


def _in_triton() -> Native:
    from tiered_dist import triton_kernel  # needs Triton, which not every torch brings

    return Native(triton_kernel.accumulate, triton_kernel.decode)


def in_c(library: Path) -> Native:
    """The functions of a compiled library."""
    loaded = ctypes.CDLL(str(library))
    pointer, number, size = ctypes.c_void_p, ctypes.c_float, ctypes.c_int64
    encodes, decodes = loaded.accumulate, loaded.decode
    encodes.argtypes = [pointer, pointer, number, number, size, pointer, pointer]
    encodes.restype = size
    decodes.argtypes = [pointer, size, size, pointer, size, size, pointer, pointer, size]
    decodes.argtypes += [pointer, pointer]
    decodes.restype = ctypes.c_int32

    def accumulate_in_c(
        residual: Tensor, gradient: Tensor, weight: float, tau: float
    ) -> tuple[Tensor, Tensor]:
        n = residual.numel()
        # Only what is written of these costs memory.
        found, values = torch.empty(n, dtype=torch.int32), torch.empty(n)
        tensors = (residual.data_ptr(), gradient.data_ptr())
        count = encodes(*tensors, weight, tau, n, found.data_ptr(), values.data_ptr())
        return found[:count].long(), values[:count].clone()

    def decode_in_c(
        bodies: Tensor,
        counts: list[int],
        stretches: int,
        ends: Tensor,
        values: Tensor,
        scratch: Tensor,
        out: Tensor,
    ) -> None:
        numbers = torch.tensor(counts, dtype=torch.int64)
        messages = (bodies.data_ptr(), bodies.stride(0), bodies.shape[1])
        told = (numbers.data_ptr(), len(counts), stretches)
        parameters = (ends.data_ptr(), values.data_ptr())
        model = (out.numel(), scratch.data_ptr(), out.data_ptr())
        if decodes(*messages, *told, *parameters, *model):
            raise NotThisModel

    return Native(accumulate_in_c, decode_in_c)


def _agrees_with_torch(native: Native, device_type: str) -> bool:
    """Whether it gives torch's bits: where only one of the two multiplies and adds in one, no."""
    generator = torch.Generator().manual_seed(0)
    gradient, residual = torch.randn(2, 5000, generator=generator).to(device_type).unbind()
    expected = residual.add(gradient, alpha=1 / 3)
    positions, values = native.accumulate(residual, gradient, 1 / 3, 1.0)
    reaching = (expected.abs() >= 1.0).nonzero().squeeze(1)
    return (
        torch.equal(residual, expected)
        and torch.equal(positions, reaching)
        and torch.equal(values, expected[reaching])
        and all(_decodes(native, stretches, device_type) for stretches in (0, 1))
    )


def _decodes(native: Native, stretches: int, device_type: str) -> bool:
    """Whether the entries +1, +1, -4 of one worker and -4 of another give 2/3 and -2 * 1/7."""
    first, second = [1 << 1, 1 << 1, 4 << 1 | 1], [4 << 1 | 1]
    if stretches:
        halves = torch.tensor([[3, *first], [1, *second, 0, 0]], dtype=torch.int16)
        bodies = halves.view(torch.int32)
    else:
        bodies = torch.tensor([first, [*second, 0, 0]], dtype=torch.int32)
    ends, values = torch.tensor([2, 2, 6]), torch.tensor([1 / 3, 9.0, 1 / 7])
    scratch = torch.zeros(6, dtype=torch.int32, device=device_type)
    out = torch.zeros(6, device=device_type)
    native.decode(bodies.to(device_type), [3, 1], stretches, ends, values, scratch, out)
    expected = torch.zeros(6)
    expected[1], expected[4] = 2 * values[0], -2 * values[2]
    return torch.equal(out.cpu(), expected) and not scratch.any()


def compiled(*options: str) -> Path:
    """The shared library in the cache, compiled with ``options`` if it is not there.

    Of many ranks that ask at once one compiles. OSError, RuntimeError (no home directory) or
    SubprocessError if that fails.
    """
    source = SOURCE.read_bytes()
    key = hashlib.sha256(repr((source, platform.machine(), options)).encode()).hexdigest()[:16]
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
                command = [compiler, "-O3", "-shared", "-fPIC", *options, str(SOURCE)]
                command += ["-o", str(partial)]
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
