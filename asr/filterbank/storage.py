"""Cut manifests that survive a move of their folder, and the flat files that hold features.

Of Lhotse's stores only ``numpy_files`` works without further packages; it makes one file an
utterance. Here features of many utterances are one file of floats, a shard, which any process
reads with one seek, without an index and without keeping the file open. docs/data.md compares
stores.
"""

import dataclasses
import functools
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from lhotse import CutSet
from lhotse.cut import MonoCut
from lhotse.features.io import FeaturesReader, FeaturesWriter, register_reader, register_writer

from asr.errors import UserError

# What a shard holds, by its suffix; little-endian.
SUFFIXES = {".f32": torch.float32, ".f16": torch.float16}


class Extent(NamedTuple):
    """Where one utterance's features lie: ``offset`` in bytes, then ``frames`` x ``bins``."""

    offset: int
    frames: int
    bins: int

    @staticmethod
    def parse(key: str) -> "Extent":
        """The inverse of ``key``."""
        return Extent(*map(int, key.split(",")))

    @property
    def key(self) -> str:
        """Lhotse's storage key."""
        return ",".join(map(str, self))


def item_bytes(shard: Path) -> int:
    """Bytes of one value in ``shard``."""
    return SUFFIXES[shard.suffix].itemsize


def read_features(path: Path, extent: Extent) -> np.ndarray:
    """Features ``(frames, bins)`` float32; UserError when the file is missing or too short."""
    count, dtype = extent.frames * extent.bins, f"<f{item_bytes(path)}"
    try:
        values = np.fromfile(path, dtype=dtype, count=count, offset=extent.offset)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; rerun the features stage with --force") from None
    if len(values) != count:
        raise UserError(f"{path}: file is cut short; rerun the features stage with --force")
    return converted(values, torch.float32).reshape(extent.frames, extent.bins)


def converted(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """``values`` in another type; by torch, which takes a tenth of numpy's time for 16 bits."""
    return torch.from_numpy(values).to(dtype).numpy()


@register_writer
class FlatFeaturesWriter(FeaturesWriter):
    """Writes one utterance after the other into a file of its own, in the type of its suffix."""

    name = "flat_floats"

    def __init__(self, storage_path: Path) -> None:
        self._path = Path(storage_path)
        self._offset = 0
        self._file: IO[bytes] = open(self._path, "wb")  # noqa: SIM115 (closed by __exit__)

    @property
    def storage_path(self) -> str:
        """The file written to."""
        return str(self._path)

    def write(self, key: str, value: np.ndarray) -> str:
        """Append ``value`` (frames, bins); returns the storage key that reads it back."""
        extent = Extent(self._offset, *value.shape)
        stored = np.ascontiguousarray(converted(value, SUFFIXES[self._path.suffix]))
        self._offset += self._file.write(stored.data)
        return extent.key

    def __exit__(self, *exception: object) -> None:
        self._file.close()


@register_reader
class FlatFeaturesReader(FeaturesReader):
    """Reads what FlatFeaturesWriter wrote."""

    name = FlatFeaturesWriter.name

    def __init__(self, storage_path: Path) -> None:
        self._path = Path(storage_path)

    def read(
        self, key: str, left_offset_frames: int = 0, right_offset_frames: int | None = None
    ) -> np.ndarray:
        """Frames ``left_offset_frames`` to ``right_offset_frames`` (exclusive; None: the end)."""
        extent = Extent.parse(key)
        first, last, _ = slice(left_offset_frames, right_offset_frames).indices(extent.frames)
        skipped = first * extent.bins * item_bytes(self._path)
        return read_features(
            self._path, Extent(extent.offset + skipped, max(last - first, 0), extent.bins)
        )


def load_cuts(path: Path) -> CutSet:
    """The cuts of a manifest, lazily, with audio and feature paths that open from here.

    Feature paths in a manifest are relative to its folder, so that an experiment can be moved.
    So may audio paths be; one that does not exist there is left as it is (absolute, or relative
    to the working directory). Raises UserError when the manifest is missing.
    """
    return read_cuts(path).map(functools.partial(opening_from, folder=path.parent))


def read_cuts(path: Path) -> CutSet:
    """The cuts of a manifest, lazily, with paths as they stand in it."""
    if not path.exists():
        raise UserError(f"{path}: no such file; run the stage that writes it")
    return CutSet.from_jsonl_lazy(path)


def opening_from(cut: MonoCut, folder: Path) -> MonoCut:
    """A cut of a manifest in ``folder``, with audio and feature paths that open from here."""
    sources = [
        dataclasses.replace(source, source=located(source.source, folder))
        if source.type == "file"
        else source
        for source in cut.recording.sources
    ]
    features = cut.features and dataclasses.replace(
        cut.features, storage_path=str(folder / cut.features.storage_path)
    )
    recording = dataclasses.replace(cut.recording, sources=sources)
    return dataclasses.replace(cut, recording=recording, features=features)


def located(source: str, folder: Path) -> str:
    """An audio path of a manifest in ``folder``, as it opens from here."""
    beside = folder / source
    return str(beside) if beside.exists() else source


def feature_rows(manifest: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ids of a manifest's cuts, and their ``Features`` as they stand there.

    Reads the JSON alone, which is several times as fast as making Lhotse's objects of 700,000
    lines. Raises UserError for a missing manifest.
    """
    if not manifest.exists():
        raise UserError(f"{manifest}: no such file; run the features stage")
    with gzip.open(manifest, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["id"], row["features"]
