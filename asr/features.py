"""Stage 2: log-mel filterbank features of every split, and their statistics on train."""

import dataclasses
import functools
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
import torchaudio
from lhotse import Features
from lhotse.augmentation import Speed
from lhotse.cut import MonoCut
from lhotse.utils import perturb_num_samples
from tqdm import tqdm

from asr.cuts import write_cuts
from asr.errors import UserError
from asr.fbank import LogMelFbank, LogMelFbankConfig
from asr.feature_storage import (
    DTYPE,
    Extent,
    FlatFeaturesWriter,
    load_cuts,
    read_cuts,
)
from asr.files import atomic_write, write_json
from asr.processes import worker_pool
from asr.stages import StageResult, Workspace, run_stage

STAGE = "features"
STATISTICS = "statistics.json"
# A mel bin without signal (audio that was sampled at 8 kHz, say) hardly varies; dividing by less
# than this would blow up its rounding noise. Speech has standard deviations of 2 to 5.
STD_FLOOR = 0.1
TASK_SECONDS = 60.0
SEEKS_EXACTLY = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "AIFF", "AU", "NIST"})

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class FeaturesConfig:
    """``speeds``: factors by which train is perturbed; ``jobs``: processes, None: one a core."""

    fbank: LogMelFbankConfig = dataclasses.field(default_factory=LogMelFbankConfig)
    speeds: list[float] = dataclasses.field(default_factory=lambda: [1.0])
    jobs: int | None = None

    def __post_init__(self) -> None:
        if 1.0 not in self.speeds or len(set(self.speeds)) != len(self.speeds):
            raise ValueError(f"speeds={self.speeds} must name each factor once, and 1.0 among them")
        if not all(0.5 <= speed <= 2.0 for speed in self.speeds):
            raise ValueError(f"speeds={self.speeds} must lie between 0.5 and 2.0")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs={self.jobs} must be 1 or more, or null for one a core")


class Utterance(NamedTuple):
    """A stretch of one channel of an audio file; all counts in samples of that file.

    ``channel`` None is the mean of all channels.
    """

    id: str
    path: Path
    channel: int | None
    start: int
    num_samples: int
    recording_samples: int
    sampling_rate: int

    def samples_at(self, rate: int, speed: float) -> int:
        """Samples after resampling to ``rate`` Hz and playing ``speed`` times as fast."""
        resampled = -(-self.num_samples * rate // self.sampling_rate)
        return perturb_num_samples(resampled, speed)


class Task(NamedTuple):
    """What a worker does at a time: utterances whose features follow each other in one file."""

    utterances: list[Utterance]
    speed: float
    config: LogMelFbankConfig
    output: Path
    offset: int


@dataclasses.dataclass
class Moments:
    """Frames with the sums of their values and squares, (bins,) float64."""

    frames: int
    total: np.ndarray
    squares: np.ndarray

    @staticmethod
    def of(features: np.ndarray) -> "Moments":
        """Moments of features (T, bins)."""
        wide = features.astype(np.float64)
        return Moments(len(wide), wide.sum(axis=0), np.einsum("tb,tb->b", wide, wide))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            self.frames + other.frames, self.total + other.total, self.squares + other.squares
        )

    def mean(self) -> np.ndarray:
        """Mean, (bins,)."""
        return self.total / self.frames

    def std(self) -> np.ndarray:
        """Standard deviation, (bins,), at least STD_FLOOR."""
        variance = self.squares / self.frames - self.mean() ** 2
        return np.sqrt(np.maximum(variance, STD_FLOOR**2))


def run(workspace: Workspace) -> None:
    """Extract the features of every split that stage 1 listed.

    Writes, for every split and speed, the cuts with features attached (``manifest_name``) and
    one file of features; and ``statistics.json``: mean and std (bins,) of train, unperturbed,
    with the configuration they hold for. Raises UserError for audio that vanished or changed
    since stage 1, for a full disk, and where stage 1 asked for another sampling rate: audio is
    resampled to that, by its ``resample``, and never unnoticed.
    """
    config = workspace.config(FeaturesConfig, STAGE)
    asked = workspace.require("manifests")["parameters"]["sample_rate"]
    if asked != config.fbank.sampling_rate:
        raise UserError(
            f"fbank.sampling_rate is {config.fbank.sampling_rate} Hz, but stage 1's sample_rate "
            f"{asked} Hz; make them the same in conf/features.yaml and conf/manifests.yaml"
        )
    splits = workspace.require("corpus")["counts"]["splits"]
    manifests = workspace.directory("manifests")

    def build(directory: Path) -> StageResult:
        return _build(directory, manifests, splits["train"], _other_splits(splits), config)

    # The number of processes does not change what they write.
    run_stage(workspace, STAGE, dataclasses.replace(config, jobs=None), ["manifests"], build)


def manifest_name(split: str, speed: float = 1.0) -> str:
    """File name of a split's cuts with features, say ``train-sp0.9.jsonl.gz``."""
    return f"{_part_name(split, speed)}.jsonl.gz"


def _part_name(split: str, speed: float) -> str:
    return split if speed == 1.0 else f"{split}-sp{speed:g}"


def _other_splits(splits: dict) -> list[str]:
    return [splits["dev"], *splits["tests"]]


def _build(
    directory: Path, manifests: Path, train: str, others: list[str], config: FeaturesConfig
) -> StageResult:
    parts = [(train, speed) for speed in sorted(config.speeds, key=lambda s: (s != 1.0, s))]
    parts += [(split, 1.0) for split in others]
    outputs = [directory / STATISTICS]
    counts: dict[str, object] = {"speeds": sorted(config.speeds)}
    with worker_pool(config.jobs, preload=__name__) as pool:
        for split, speed in parts:
            manifest = directory / manifest_name(split, speed)
            storage = directory / f"{_part_name(split, speed)}.f32"
            if not manifest.exists():  # written last: it says that a killed run completed the part
                source = manifests / manifest_name(split)
                keys, moments = _extract(source, speed, config.fbank, pool, storage)
                if (split, speed) == (train, 1.0):
                    _write_statistics(directory / STATISTICS, moments, config.fbank)
                write_cuts(manifest, _with_features(source, speed, config.fbank, storage, keys))
            counts[_part_name(split, speed)] = _size(storage, config.fbank)
            outputs += [manifest, storage]
    return StageResult(counts=counts, outputs=outputs)


def _size(storage: Path, config: LogMelFbankConfig) -> dict[str, float]:
    frames = storage.stat().st_size // (DTYPE.itemsize * config.bins)
    return {"frames": frames, "hours": round(frames * config.frame_shift / 3600, 3)}


def _extract(
    source: Path, speed: float, config: LogMelFbankConfig, pool: ProcessPoolExecutor, storage: Path
) -> tuple[list[str], Moments]:
    """Write the features of a manifest's cuts to ``storage``; their storage keys, their moments.

    The tasks and their order follow from the manifest alone, so that the bytes do, too.
    """
    utterances = [_utterance(cut) for cut in load_cuts(source)]
    seconds = sum(utterance.num_samples / utterance.sampling_rate for utterance in utterances)
    keys: list[str] = []
    moments = Moments(0, np.zeros(config.bins), np.zeros(config.bins))
    begin = time.monotonic()
    with atomic_write(storage) as partial, _progress(storage.stem, seconds) as progress:
        partial.touch()
        tasks = list(_tasks(utterances, speed, config, partial))
        try:
            for task, (task_keys, task_moments) in zip(tasks, pool.map(_run, tasks), strict=True):
                keys += task_keys
                moments += task_moments
                progress.update(_seconds(task))
        except BrokenProcessPool:
            raise UserError(
                "a process that extracts features was killed (out of memory?); rerun the stage, "
                "with fewer processes if it happens again (jobs=1)"
            ) from None
    elapsed = time.monotonic() - begin
    log.info(
        "%s: %d utterances, %.2f h in %.1f s, %.0f times real time",
        *(storage.stem, len(keys), seconds / 3600, elapsed, seconds / elapsed),
    )
    return keys, moments


def _progress(name: str, seconds: float) -> tqdm:
    return tqdm(desc=f"fbank {name}", total=round(seconds), unit="s", unit_scale=True)


def _utterance(cut: MonoCut) -> Utterance:
    recording = cut.recording
    mixed = cut.custom is not None and cut.custom.get("mix", False)
    if len(recording.sources) != 1 or recording.sources[0].type != "file":
        raise UserError(f"utterance {cut.id}: its audio must be one file, not {recording.sources}")
    return Utterance(
        id=cut.id,
        path=Path(recording.sources[0].source),
        channel=None if mixed else cut.channel,
        start=round(cut.start * recording.sampling_rate),
        num_samples=cut.num_samples,
        recording_samples=recording.num_samples,
        sampling_rate=recording.sampling_rate,
    )


def _tasks(
    utterances: list[Utterance], speed: float, config: LogMelFbankConfig, output: Path
) -> Iterator[Task]:
    """Cut a split into tasks of about TASK_SECONDS, each with its place in the output."""
    task = Task([], speed, config, output, offset=0)
    for utterance in utterances:
        task.utterances.append(utterance)
        if _seconds(task) >= TASK_SECONDS:
            yield task
            task = Task([], speed, config, output, task.offset + _bytes(task))
    if task.utterances:
        yield task


def _seconds(task: Task) -> float:
    return sum(u.num_samples / u.sampling_rate for u in task.utterances)


def _bytes(task: Task) -> int:
    lengths = [u.samples_at(task.config.sampling_rate, task.speed) for u in task.utterances]
    return sum(map(task.config.frames, lengths)) * task.config.bins * DTYPE.itemsize


def _run(task: Task) -> tuple[list[str], Moments]:
    """In a worker: extract and write one task; storage keys and moments of its utterances."""
    extractor = _extractor(task.config)
    keys = []
    moments = Moments(0, np.zeros(task.config.bins), np.zeros(task.config.bins))
    try:
        with FlatFeaturesWriter(task.output, task.offset) as writer:
            for utterance in task.utterances:
                samples = read_audio(utterance, task.config.sampling_rate, task.speed)
                features = _checked_extract(extractor, utterance, samples)
                keys.append(writer.write(utterance.id, features))
                moments += Moments.of(features)
    except OSError as error:
        raise UserError(f"{task.output}: cannot write features: {error.strerror}") from None
    return keys, moments


@functools.cache
def _extractor(config: LogMelFbankConfig) -> LogMelFbank:
    return LogMelFbank(config)


def _checked_extract(
    extractor: LogMelFbank, utterance: Utterance, samples: np.ndarray
) -> np.ndarray:
    try:
        return extractor.extract(samples, extractor.config.sampling_rate)
    except ValueError as error:
        raise UserError(f"utterance {utterance.id} ({utterance.path}): {error}") from None


def read_audio(utterance: Utterance, rate: int, speed: float = 1.0) -> np.ndarray:
    """One utterance's samples, float32 in [-1, 1], at ``rate`` Hz, played ``speed`` times as fast.

    Raises UserError, with utterance and file, when the file does not hold what stage 1 saw.
    """
    samples = _read_stretch(utterance)
    samples = samples.mean(axis=1) if utterance.channel is None else samples[:, utterance.channel]
    samples = np.ascontiguousarray(samples)
    if utterance.sampling_rate != rate:
        old, wave = utterance.sampling_rate, torch.from_numpy(samples)
        samples = torchaudio.functional.resample(wave, old, rate).numpy()
    if speed != 1.0:
        samples = Speed(speed)(samples[None], rate)[0]
    # The resamplers round lengths up, the manifest to the nearest sample.
    return samples[: utterance.samples_at(rate, speed)]


def _read_stretch(utterance: Utterance) -> np.ndarray:
    """``(samples, channels)``."""
    problem = f"utterance {utterance.id}: {utterance.path}"
    remedy = "; put the file back, or rerun the manifests stage with --force to leave it out"
    try:
        with soundfile.SoundFile(utterance.path) as file:
            if file.samplerate != utterance.sampling_rate or file.channels <= (
                utterance.channel or 0
            ):
                raise UserError(f"{problem} changed its format since stage 1{remedy}")
            # One sample more than wanted, to notice a file that grew.
            samples = _read_from(file, utterance.start, utterance.num_samples + 1)
    except (soundfile.LibsndfileError, OSError) as error:
        raise UserError(f"{problem} cannot be read: {error}{remedy}") from None
    left = utterance.recording_samples - utterance.start
    if len(samples) != min(utterance.num_samples + 1, left):
        raise UserError(f"{problem} changed its length since stage 1{remedy}")
    return samples[: utterance.num_samples]


def _read_from(file: soundfile.SoundFile, start: int, samples: int) -> np.ndarray:
    """``(samples, channels)`` or fewer, as decoding from the beginning gives them.

    A lossy decoder that seeks begins with other samples (MP3: the first 5,000, measured), and
    soundfile seeks after every read: there all that stands before is decoded with them.
    """
    skipped = 0 if file.format in SEEKS_EXACTLY and file.seekable() else start
    if start and not skipped:  # a seek makes FLAC decode a frame for nothing
        file.seek(start)
    return file.read(skipped + samples, dtype="float32", always_2d=True)[skipped:]


def _with_features(
    source: Path, speed: float, config: LogMelFbankConfig, storage: Path, keys: list[str]
) -> Iterator[MonoCut]:
    """The cuts of ``source``, perturbed under their old ids, each with its Features attached."""
    for cut, key in zip(read_cuts(source), keys, strict=True):
        if speed != 1.0:
            cut = cut.perturb_speed(speed, affix_id=False)
        extent = Extent.parse(key)
        cut.features = Features(
            type=LogMelFbank.name,
            num_frames=extent.frames,
            num_features=extent.bins,
            frame_shift=config.frame_shift,
            sampling_rate=config.sampling_rate,
            start=cut.start,
            duration=cut.duration,
            storage_type=FlatFeaturesWriter.name,
            storage_path=storage.name,
            storage_key=key,
            recording_id=cut.recording_id,
            channels=cut.channel,
        )
        yield cut


def _write_statistics(path: Path, moments: Moments, config: LogMelFbankConfig) -> None:
    if moments.frames == 0:
        raise UserError("the train split has no utterance; see manifests/rejected.jsonl for why")
    write_json(
        path,
        {
            "mean": moments.mean().tolist(),
            "std": moments.std().tolist(),
            "frames": moments.frames,
            "features": config.to_dict(),
        },
    )
