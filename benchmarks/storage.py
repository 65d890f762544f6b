"""What features cost to keep and to read: raw float32, raw float16, Lhotse's lilcom, Lhotse Shar.

    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/storage.py FOLDER [--seconds 3600]

FOLDER holds FLAC files of speech, anywhere below; the features of the first ``--seconds`` are
computed once and then written and read by every store, in turn, ``--rounds`` times; printed are the
medians. Lhotse's stores need its package lilcom (pip install lilcom).

    MB an hour     of audio, features alone
    write          times real time, from memory to files that are on disk (fsync)
    random         microseconds to read one utterance, in random order; of Shar, which is read in
                   its own order, in that
    cold           the same, after the kernel has been asked to forget the files
    error          the greatest difference from float32, in natural log of energy
"""

import argparse
import functools
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import torch
from lhotse import CutSet, Features, MonoCut
from lhotse.features.io import LilcomChunkyReader, LilcomChunkyWriter, MemoryRawWriter
from lhotse.shar import SharWriter

from asr.filterbank.fbank import LogMelFbank
from asr.filterbank.storage import Extent, FlatFeaturesWriter, read_features

RATE = 16000
# From an order of utterances to their numbers and features.
Read = Callable[[np.ndarray], Iterator[tuple[int, np.ndarray]]]

Store = Callable[[Path, list[np.ndarray]], Read]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    features, seconds = compute(arguments.folder, arguments.seconds)
    print(f"{len(features)} utterances, {seconds:.0f} s, {sum(map(len, features))} frames")
    columns = ("MB an hour", "write", "random us", "cold us", "error")
    print(f"{'store':<16}" + "".join(f"{column:>12}" for column in columns))
    stores: dict[str, Store] = {
        "float32": functools.partial(flat, suffix=".f32"),
        "float16": functools.partial(flat, suffix=".f16"),
    }
    if importlib.util.find_spec("lilcom"):
        stores |= {"lilcom_chunky": lilcom, "Shar": shar}
    rows: dict[str, list[list[float]]] = {name: [] for name in stores}
    for number in range(arguments.rounds):
        for name, store in stores.items():
            with tempfile.TemporaryDirectory() as folder:
                rows[name].append(measure(Path(folder), store, features, seconds, number))
    for name, measured in rows.items():
        medians = [statistics.median(column) for column in zip(*measured, strict=True)]
        formats = (",.1f", ",.0f", ",.0f", ",.0f", ".4f")
        cells = [f"{value:>12{style}}" for value, style in zip(medians, formats, strict=True)]
        print(f"{name:<16}" + "".join(cells))


def compute(folder: Path, seconds: float) -> tuple[list[np.ndarray], float]:
    """Features of the first FLAC files, and their seconds in all."""
    extractor, features, taken = LogMelFbank(), [], 0.0
    for path in sorted(folder.rglob("*.flac")):
        if taken >= seconds:
            break
        samples, rate = soundfile.read(path, dtype="float32")
        if rate == RATE:
            features.append(extractor.extract(samples, RATE))
            taken += len(samples) / RATE
    if not features:
        raise SystemExit(f"{folder}: no FLAC files of {RATE} Hz")
    return features, taken


def measure(
    folder: Path,
    store: Store,
    features: list[np.ndarray],
    seconds: float,
    seed: int,
) -> list[float]:
    """The columns of one row."""
    begin = time.perf_counter()
    read = store(folder, features)
    flush(folder)
    written = time.perf_counter() - begin
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    order = np.random.default_rng(seed).permutation(len(features))
    error = max(float(np.abs(features[index] - found).max()) for index, found in read(order))
    warm = time_reading(read, order)
    flush(folder, forget=True)
    cold = time_reading(read, order)
    return [size / 1e6 / (seconds / 3600), seconds / written, warm, cold, error]


def time_reading(read: Read, order: np.ndarray) -> float:
    """Microseconds an utterance."""
    begin = time.perf_counter()
    for _ in read(order):
        pass
    return 1e6 * (time.perf_counter() - begin) / len(order)


def flush(folder: Path, forget: bool = False) -> None:
    """Put the files on disk, and out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                if forget:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def flat(folder: Path, features: list[np.ndarray], suffix: str) -> Read:
    """A shard of stage 2."""
    path = folder / f"00000{suffix}"
    with FlatFeaturesWriter(path) as writer:
        extents = [Extent.parse(writer.write("", value)) for value in features]
    return lambda order: ((index, read_features(path, extents[index])) for index in order)


def lilcom(folder: Path, features: list[np.ndarray]) -> Read:
    """Lhotse's usual archive: compressed to steps that grow with the range of a chunk."""
    path = folder / "store.lca"
    with LilcomChunkyWriter(path) as writer:
        # A copy each, since lilcom leaves its steps in the array that it is given.
        keys = [writer.write(str(number), value.copy()) for number, value in enumerate(features)]
    reader = LilcomChunkyReader(path)
    return lambda order: ((index, reader.read(keys[index])) for index in order)


def shar(folder: Path, features: list[np.ndarray]) -> Read:
    """Tar files of 1,000 utterances, read in their own order whatever ``order`` is."""
    with SharWriter(folder, fields={"features": "lilcom"}, shard_size=1000) as writer:
        for number, value in enumerate(features):
            writer.write(in_memory(number, value.copy()))

    def read(order: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        for cut in CutSet.from_shar(in_dir=folder):
            yield int(cut.id), cut.load_features()

    return read


def in_memory(number: int, value: np.ndarray) -> MonoCut:
    """A cut that holds its features."""
    frames, bins = value.shape
    features = Features(
        type="fbank",
        num_frames=frames,
        num_features=bins,
        frame_shift=0.01,
        sampling_rate=RATE,
        start=0.0,
        duration=frames / 100,
        storage_type="memory_raw",
        storage_path="",
        storage_key=MemoryRawWriter().write("", value),
        channels=0,
    )
    return MonoCut(str(number), 0.0, frames / 100, 0, features=features)


if __name__ == "__main__":
    main()
