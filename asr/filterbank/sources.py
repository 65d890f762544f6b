"""Features of a manifest's utterances by index: read from shards, or computed from audio."""

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from lhotse.features.io import FeaturesReader, register_reader

from asr.audio.utterance import Utterance, read_audio
from asr.errors import UserError
from asr.files import read_json
from asr.filterbank.fbank import LogMelFbank, LogMelFbankConfig
from asr.filterbank.storage import Extent, feature_rows, located, read_features

STATISTICS = "statistics.json"  # of train, in stage 2's folder
MIXED = -1


class FeatureSource(Protocol):
    """Features of n utterances; ``frames`` (n,) int64 counts theirs. Keeps nothing but ``arrays``,
    from which ``source_of`` makes it again."""

    frames: np.ndarray
    arrays: dict[str, np.ndarray]

    def load(self, index: int) -> np.ndarray:
        """Features ``(frames, bins)`` float32 of one utterance; UserError where they are gone."""
        ...


def open_features(manifest: Path, ids: Sequence[str]) -> FeatureSource:
    """What stage 2 made of the utterances ``ids`` in ``manifest``, in the order of ``ids``.

    Raises UserError for a missing manifest, and for an utterance that it lacks.
    """
    places = {name: place for place, name in enumerate(ids)}
    storages, keys, kinds = [""] * len(ids), [""] * len(ids), set()
    for name, row in feature_rows(manifest):
        place = places.get(name)
        if place is not None:
            storages[place], keys[place] = row["storage_path"], row["storage_key"]
            kinds.add(row["storage_type"])
    if "" in keys:
        raise UserError(
            f"{manifest}: no features of utterance {ids[keys.index('')]}; rerun the features "
            "stage, then the tokens stage"
        )
    if kinds == {ComputedFeaturesReader.name}:
        return source_of(_audio_arrays(map(AudioPlace.parse, keys)), manifest.parent)
    names = sorted(set(storages))
    numbers = {name: number for number, name in enumerate(names)}
    extents = np.array([Extent.parse(key) for key in keys], dtype=np.int64)
    arrays = {
        "shards": np.array(names, dtype=np.str_),
        "numbers": np.array([numbers[name] for name in storages], dtype=np.int32),
        "extents": extents.reshape(len(keys), len(Extent._fields)),  # also without utterances
    }
    return source_of(arrays, manifest.parent)


def source_of(arrays: dict[str, np.ndarray], folder: Path) -> FeatureSource:
    """The source that has these ``arrays``, in stage 2's ``folder``."""
    return ComputedFeatures(folder, arrays) if "audio" in arrays else StoredFeatures(folder, arrays)


def _audio_arrays(places: Iterable["AudioPlace"]) -> dict[str, np.ndarray]:
    """Numbers, and texts one after the other: 700,000 of them are a few arrays."""
    audio, names, paths, speed = [], bytearray(), bytearray(), 1.0
    numbers: dict[bytes, int] = {}
    name_ends, path_ends = [0], [0]
    for place in places:
        speed, utterance = place.speed, place.utterance
        path = str(utterance.path).encode()
        if path not in numbers:
            numbers[path] = len(numbers)
            paths += path
            path_ends.append(len(paths))
        channel = MIXED if utterance.channel is None else utterance.channel
        audio.append((place.frames, numbers[path], channel, *utterance[3:]))
        names += utterance.id.encode()
        name_ends.append(len(names))
    return {
        "audio": np.array(audio, dtype=np.int64).reshape(len(audio), 7),
        "speed": np.array(speed),
        "names": np.frombuffer(bytes(names), np.uint8),
        "name_ends": np.array(name_ends),
        "paths": np.frombuffer(bytes(paths), np.uint8),
        "path_ends": np.array(path_ends),
    }


class StoredFeatures:
    """Features in shards: file names ``shards`` below ``folder``, of each utterance its shard
    (``numbers`` (n,)) and place there (``extents`` (n, 3), as in ``Extent``)."""

    def __init__(self, folder: Path, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self._shards = [folder / name for name in arrays["shards"].tolist()]
        self.frames = arrays["extents"][:, 1].copy()

    def load(self, index: int) -> np.ndarray:
        """Read them."""
        extent = Extent(*self.arrays["extents"][index].tolist())
        return read_features(self._shards[self.arrays["numbers"][index]], extent)


class AudioPlace(NamedTuple):
    """The audio that features of ``frames`` frames are computed from, ``speed`` times as fast."""

    frames: int
    speed: float
    utterance: Utterance

    @staticmethod
    def parse(key: str | bytes) -> "AudioPlace":
        """The inverse of ``key``."""
        frames, speed, name, path, *numbers = json.loads(key)
        return AudioPlace(frames, speed, Utterance(name, Path(path), *numbers))

    @property
    def key(self) -> str:
        """Lhotse's storage key."""
        utterance = self.utterance._replace(path=str(self.utterance.path))  # type: ignore[arg-type]
        return json.dumps([self.frames, self.speed, *utterance], separators=(",", ":"))


class ComputedFeatures:
    """Features computed from audio, by the configuration in ``folder``'s statistics.

    ``audio`` (n, 7): frames, number of the path, channel (MIXED: the mean of all), start, samples,
    samples of the recording, its rate; ``speed``; names and paths as bytes with their ``_ends``.
    Paths may be relative to ``folder``.
    """

    def __init__(self, folder: Path, arrays: dict[str, np.ndarray]) -> None:
        self.arrays, self._folder = arrays, folder
        self._config = _configuration(folder / STATISTICS)
        self.frames = arrays["audio"][:, 0].copy()

    def load(self, index: int) -> np.ndarray:
        """Compute them."""
        frames, path, channel, *samples = self.arrays["audio"][index].tolist()
        utterance = Utterance(
            self._text("name", index),
            Path(self._text("path", path)),
            None if channel == MIXED else channel,
            *samples,
        )
        place = AudioPlace(frames, self.arrays["speed"].item(), utterance)
        return _computed(place, self._folder, self._config)

    def _text(self, kind: str, index: int) -> str:
        ends = self.arrays[f"{kind}_ends"]
        return self.arrays[f"{kind}s"][ends[index] : ends[index + 1]].tobytes().decode()


@register_reader
class ComputedFeaturesReader(FeaturesReader):
    """For Lhotse: features that are not stored, but computed from ``AudioPlace`` when loaded."""

    name = "log_mel_of_audio"

    def __init__(self, storage_path: Path) -> None:
        self._folder = Path(storage_path).parent
        self._config = _configuration(Path(storage_path))

    def read(
        self, key: str, left_offset_frames: int = 0, right_offset_frames: int | None = None
    ) -> np.ndarray:
        """Frames ``left_offset_frames`` to ``right_offset_frames`` (exclusive; None: the end)."""
        features = _computed(AudioPlace.parse(key), self._folder, self._config)
        return features[left_offset_frames:right_offset_frames]


def _configuration(statistics: Path) -> LogMelFbankConfig:
    return LogMelFbankConfig.from_dict(read_json(statistics)["features"])


def _computed(place: AudioPlace, folder: Path, config: LogMelFbankConfig) -> np.ndarray:
    path = Path(located(str(place.utterance.path), folder))
    return compute_features(place.utterance._replace(path=path), config, place.speed)


def compute_features(utterance: Utterance, config: LogMelFbankConfig, speed: float) -> np.ndarray:
    """Decode an utterance and compute its features ``(frames, bins)`` float32.

    Raises UserError, with utterance and file, for audio that is not what stage 1 saw.
    """
    samples = read_audio(utterance, config.sampling_rate, speed)
    try:
        return _extractor(config).extract(samples, config.sampling_rate)
    except ValueError as error:
        raise UserError(f"utterance {utterance.id} ({utterance.path}): {error}") from None


@functools.cache
def _extractor(config: LogMelFbankConfig) -> LogMelFbank:
    return LogMelFbank(config)
