"""Elements a second of GTC's encoding and decoding, as multiples of ``residual.add_(gradient)``.

    PYTHONPATH=. python benchmarks/codec.py [--elements 24000000] [--repeats 9] [--workers 4]

Encoding is everything between a gradient and the entries to send; that much reads the gradient
once and reads and writes the residual once, as ``add_`` does. Decoding is everything between the
entries of all workers and a dense mean gradient, the zeros between them included. Each figure is
the median of the repeats, which take turns, on one thread. On x86-64 the native code is compiled
for AVX2 (x86-64-v3) once more, for processors that have no AVX-512.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch

from tiered_dist import codec, entries, native

DENSITIES = (1e-4, 1e-3, 1e-2, 1e-1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=24_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--workers", type=int, default=4, help="whose entries are decoded")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.elements} elements, {torch.backends.cpu.get_cpu_capability()}")
    print(f"{'density':>8} {'what':<22} {'ms':>9} {'M elements/s':>13} {'of add_':>8}")
    for density in DENSITIES:
        seconds = measure(arguments.elements, density, arguments.repeats, arguments.workers)
        for what, value in seconds.items():
            rate = arguments.elements / value / 1e6
            share = seconds["add_"] / value
            print(f"{density:>8g} {what:<22} {1e3 * value:>9.2f} {rate:>13.0f} {share:>8.2f}")


def measure(elements: int, density: float, repeats: int, workers: int) -> dict[str, float]:
    """Median seconds of each way, by name."""
    generator = torch.Generator().manual_seed(0)
    start = torch.zeros(elements)
    gradient = torch.randn(elements, generator=generator)
    tau = float(gradient[:1_000_000].abs().quantile(1 - density))
    residual, out = start.clone(), torch.empty(elements)
    scratch = torch.zeros(elements, dtype=torch.int32)
    body, count = encode(start.clone(), gradient, tau)
    bodies, ends, value = body.repeat(workers, 1), torch.tensor([elements]), torch.tensor([tau])

    def decode() -> None:
        entries.decode(bodies, [count] * workers, count, ends, value, scratch, out)

    ways: dict[str, Callable[[], object]] = {"add_": lambda: residual.add_(gradient)}
    for name, functions in implementations().items():
        ways[f"encode, {name}"] = using(functions, lambda: encode(residual, gradient, tau))
        ways[f"decode, {name}"] = using(functions, decode)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            residual.copy_(start)
            begin = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in taken.items()}


def implementations() -> dict[str, native.Native | None]:
    """The codec's native functions by name; None stands for torch's operations."""
    found: dict[str, native.Native | None] = {"torch": None}
    if native.available():
        found["native"] = native._native("cpu")
        if platform.machine() == "x86_64":
            options = ("-march=x86-64-v3", "-D", "FOR_EVERY_PROCESSOR=")
            found["native, AVX2"] = native.in_c(native.compiled(*options))
    return found


def using(functions: native.Native | None, action: Callable[[], object]) -> Callable[[], None]:
    """``action`` with these native functions in place of what was found for this machine."""

    def act() -> None:
        with mock.patch.object(native, "_native", lambda device_type: functions):
            action()

    return act


def encode(residual: torch.Tensor, gradient: torch.Tensor, tau: float) -> tuple[torch.Tensor, int]:
    """One worker's entries in words, as tier 1 makes them for one parameter, and their number."""
    positions, quanta = codec.accumulate(residual, gradient, 1.0, tau, max_quanta=1)
    count = positions.numel()
    quanta = codec.limit(quanta, count, first=0)
    codec.subtract(residual, positions, quanta, torch.full((count,), tau))
    return entries.to_words(positions, quanta, residual.numel(), count), count


if __name__ == "__main__":
    main()
