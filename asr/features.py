"""Stage 2: log-mel filterbank features of every split, and their statistics on train."""

import dataclasses
import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from lhotse import Features
from lhotse.cut import MonoCut
from tqdm import tqdm

from asr.audio.utterance import Utterance
from asr.cluster import SlurmJobs, check_cluster, worker_map
from asr.errors import UserError
from asr.files import atomic_write, write_json
from asr.filterbank.cuts import write_cuts
from asr.filterbank.fbank import LogMelFbank, LogMelFbankConfig
from asr.filterbank.sources import (
    STATISTICS,
    AudioPlace,
    ComputedFeaturesReader,
    compute_features,
)
from asr.filterbank.storage import (
    SUFFIXES,
    Extent,
    FlatFeaturesWriter,
    converted,
    item_bytes,
    load_cuts,
    read_cuts,
    read_features,
)
from asr.processes import WorkerDied
from asr.stages import StageResult, Workspace, run_stage

STAGE = "features"
# A mel bin without signal (audio that was sampled at 8 kHz, say) hardly varies; dividing by less
# than this would blow up its rounding noise. Speech has standard deviations of 2 to 5.
STD_FLOOR = 0.1
# A shard is what a process does at a time and what a killed run loses: seconds of work. An hour of
# 64 bins is 92 MB: 2,000 files of a 2000-hour corpus, which any file system holds in a folder.
SHARD_SECONDS = 3600.0

log = logging.getLogger("asr")


@dataclasses.dataclass(frozen=True)
class FeaturesConfig:
    """``speeds``: factors by which train is perturbed.

    ``store`` false keeps no features: the trainer computes them from audio, the same numbers, at
    every pass. ``dtype`` float16 halves what is stored, and rounds it by at most 0.008. ``jobs``:
    processes, None: one a core; ``cluster``: see ``worker_map``.
    """

    fbank: LogMelFbankConfig = dataclasses.field(default_factory=LogMelFbankConfig)
    speeds: list[float] = dataclasses.field(default_factory=lambda: [1.0])
    store: bool = True
    dtype: Literal["float32", "float16"] = "float32"
    jobs: int | None = None
    cluster: str | SlurmJobs | None = None

    def __post_init__(self) -> None:
        if 1.0 not in self.speeds or len(set(self.speeds)) != len(self.speeds):
            raise ValueError(f"speeds={self.speeds} must name each factor once, and 1.0 among them")
        if not all(0.5 <= speed <= 2.0 for speed in self.speeds):
            raise ValueError(f"speeds={self.speeds} must lie between 0.5 and 2.0")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs={self.jobs} must be 1 or more, or null for one a core")
        if self.dtype != "float32" and not self.store:
            raise ValueError(f"dtype={self.dtype} is for stored features; set store: true")
        check_cluster(self.cluster)


class Task(NamedTuple):
    """What a worker does at a time: the utterances of one shard.

    Their features go to ``output`` (None: nowhere), and with ``counted`` into the statistics.
    """

    utterances: list[Utterance]
    speed: float
    config: LogMelFbankConfig
    output: Path | None
    counted: bool

    @property
    def extents(self) -> list[Extent]:
        """Where each utterance's features lie in ``output``."""
        extents, offset = [], 0
        frame_bytes = self.config.bins * (item_bytes(self.output) if self.output else 0)
        for utterance in self.utterances:
            samples = utterance.samples_at(self.config.sampling_rate, self.speed)
            extents.append(Extent(offset, self.config.frames(samples), self.config.bins))
            offset += extents[-1].frames * frame_bytes
        return extents

    @property
    def seconds(self) -> float:
        """Duration of the audio, as recorded."""
        return sum(utterance.seconds for utterance in self.utterances)


class Part(NamedTuple):
    """A split at a speed, as the tasks that make its shards."""

    split: str
    speed: float
    counted: bool
    tasks: list[Task]

    @property
    def name(self) -> str:
        """Name of its manifest and of its folder of shards."""
        return _part_name(self.split, self.speed)


@dataclasses.dataclass
class Moments:
    """Frames with the sums of their values and squares, (bins,) float64."""

    frames: int
    total: np.ndarray
    squares: np.ndarray

    @staticmethod
    def none(bins: int) -> "Moments":
        """Moments of no frames."""
        return Moments(0, np.zeros(bins), np.zeros(bins))

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


class Result(NamedTuple):
    """What a task gives: the moments of its features if they count, and if it made them now."""

    moments: Moments
    made: bool


def run(workspace: Workspace) -> None:
    """Extract the features of every split that stage 1 listed.

    Writes, for every split and speed, the cuts with features attached (``manifest_name``) and
    a folder of shards; and ``statistics.json``: mean and std (bins,) of train, unperturbed,
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

    # Which processes extract does not change what they write.
    request = dataclasses.replace(config, jobs=None, cluster=None)
    run_stage(workspace, STAGE, request, ["manifests"], build)


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
    parts = list(_parts(directory, manifests, train, others, config))
    # Written last: a manifest says that a killed run completed its part.
    lacking = [part for part in parts if not (directory / f"{part.name}.jsonl.gz").exists()]
    _extract(directory, manifests, lacking, config)
    outputs = [directory / STATISTICS]
    counts: dict[str, object] = {"speeds": sorted(config.speeds)}
    for part in parts:
        frames = sum(extent.frames for task in part.tasks for extent in task.extents)
        hours = round(frames * config.fbank.frame_shift / 3600, 3)
        counts[part.name] = {"frames": frames, "hours": hours}
        outputs.append(directory / f"{part.name}.jsonl.gz")
        outputs += [task.output for task in part.tasks if task.output is not None]
    return StageResult(counts=counts, outputs=outputs)


def _parts(
    directory: Path, manifests: Path, train: str, others: list[str], config: FeaturesConfig
) -> Iterator[Part]:
    """The unperturbed train split first, whose statistics the rest relies on."""
    for split in [train, *others]:
        shards = list(_shards(manifests / manifest_name(split)))
        speeds = sorted(config.speeds, key=lambda s: (s != 1.0, s)) if split == train else [1.0]
        for speed in speeds:
            folder = directory / _part_name(split, speed)
            counted = (split, speed) == (train, 1.0)
            tasks = [
                Task(shard, speed, config.fbank, _output(folder, number, config), counted)
                for number, shard in enumerate(shards)
            ]
            yield Part(split, speed, counted, tasks)


def _output(folder: Path, number: int, config: FeaturesConfig) -> Path | None:
    suffix = ".f32" if config.dtype == "float32" else ".f16"
    return folder / f"{number:05}{suffix}" if config.store else None


def _shards(manifest: Path) -> Iterator[list[Utterance]]:
    """Cut a split into shards of about SHARD_SECONDS, which follow from the manifest alone."""
    shard: list[Utterance] = []
    seconds = 0.0
    for utterance in map(Utterance.of, load_cuts(manifest)):
        shard.append(utterance._replace(path=utterance.path.absolute()))
        seconds += utterance.seconds
        if seconds >= SHARD_SECONDS:
            yield shard
            shard, seconds = [], 0.0
    if shard:
        yield shard


def _extract(
    directory: Path, manifests: Path, parts: Sequence[Part], config: FeaturesConfig
) -> None:
    """Make the shards of ``parts``, then of each its manifest, and of train its statistics."""
    tasks = [
        # Workers on other machines run in other folders.
        task._replace(output=task.output and task.output.absolute())
        for part in parts
        for task in part.tasks
        if task.output or task.counted
    ]
    seconds = made = 0.0
    begin = time.monotonic()
    with (
        worker_map(config.jobs, config.cluster, preload=__name__) as mapped,
        _progress(sum(task.seconds for task in tasks)) as progress,
    ):
        results = iter(mapped(_run, tasks))
        for part in parts:
            moments = Moments.none(config.fbank.bins)
            for task in part.tasks:
                if task.output or task.counted:
                    result = _next_result(results, task)
                    moments += result.moments
                    seconds += task.seconds
                    made += result.made * task.seconds
                    progress.update(task.seconds)
            _finish(directory, manifests, part, moments, config)
    elapsed = time.monotonic() - begin
    log.info(
        "features of %.2f h in %.1f s, %.0f times real time; %.2f h were there before",
        *(made / 3600, elapsed, made / elapsed, (seconds - made) / 3600),
    )


def _progress(seconds: float) -> tqdm:
    return tqdm(desc="fbank", total=math.ceil(seconds), unit="s", unit_scale=True)


def _next_result(results: Iterator[Result], task: Task) -> Result:
    try:
        return next(results)
    except WorkerDied:
        first, last = task.utterances[0].id, task.utterances[-1].id
        raise UserError(
            f"a process that extracts features was killed (out of memory?), at utterances {first} "
            f"to {last} or soon after; rerun the stage, which takes up what is finished, with "
            "fewer processes if it happens again (jobs=1)"
        ) from None


def _finish(
    directory: Path, manifests: Path, part: Part, moments: Moments, config: FeaturesConfig
) -> None:
    """Write what says that a part is complete."""
    for task in part.tasks:
        if task.output is not None and not task.output.exists():
            raise UserError(
                f"{task.output}: a worker wrote it, but it is not here; put --dir on a file "
                "system that all machines of the cluster see"
            )
    if part.counted:
        _write_statistics(directory / STATISTICS, moments, config.fbank)
    source = manifests / manifest_name(part.split)
    write_cuts(directory / f"{part.name}.jsonl.gz", _with_features(source, part))


def _run(task: Task) -> Result:
    """In a worker: make a task's shard unless it is there."""
    made = task.output is None or not task.output.exists()
    source: Iterator[np.ndarray] = iter(())
    if task.output is None:
        source = _computed(task)
    elif made:
        source = _written(task, task.output)
    elif task.counted:
        source = (read_features(task.output, extent) for extent in task.extents)
    moments = Moments.none(task.config.bins)
    for features in source:
        if task.counted:
            moments += Moments.of(features)
    return Result(moments, made)


def _computed(task: Task) -> Iterator[np.ndarray]:
    for utterance, extent in zip(task.utterances, task.extents, strict=True):
        features = compute_features(utterance, task.config, task.speed)
        if features.shape != (extent.frames, extent.bins):  # the next would lie elsewhere
            raise RuntimeError(f"{utterance}: features {features.shape}, planned {extent}")
        yield features


def _written(task: Task, output: Path) -> Iterator[np.ndarray]:
    """Compute the features; at the end they are in ``output``, or nothing is."""
    try:
        with atomic_write(output) as partial, FlatFeaturesWriter(partial) as writer:
            for features in _computed(task):
                writer.write("", features)
                # As they will be read, lest statistics differ once a run has been killed.
                yield converted(converted(features, SUFFIXES[output.suffix]), torch.float32)
    except OSError as error:
        raise UserError(f"{output}: cannot write features: {error.strerror}") from None


def _with_features(source: Path, part: Part) -> Iterator[MonoCut]:
    """The cuts of ``source``, perturbed under their old ids, each with its Features attached."""
    places = ((task, extent) for task in part.tasks for extent in task.extents)
    for cut, (task, extent) in zip(read_cuts(source), places, strict=True):
        kind, path, key = _storage(cut, task, extent)
        if part.speed != 1.0:
            cut = cut.perturb_speed(part.speed, affix_id=False)
        cut.features = Features(
            type=LogMelFbank.name,
            num_frames=extent.frames,
            num_features=extent.bins,
            frame_shift=task.config.frame_shift,
            sampling_rate=task.config.sampling_rate,
            start=cut.start,
            duration=cut.duration,
            storage_type=kind,
            storage_path=path,
            storage_key=key,
            recording_id=cut.recording_id,
            channels=cut.channel,
        )
        yield cut


def _storage(cut: MonoCut, task: Task, extent: Extent) -> tuple[str, str, str]:
    """Lhotse's type, path and key of the features of an unperturbed cut."""
    if task.output is None:
        key = AudioPlace(extent.frames, task.speed, Utterance.of(cut)).key
        return ComputedFeaturesReader.name, STATISTICS, key
    return FlatFeaturesWriter.name, f"{task.output.parent.name}/{task.output.name}", extent.key


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
