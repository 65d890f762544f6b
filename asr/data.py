"""What the trainer reads: utterances, the plan of an epoch's batches, a worker's stream of them.

Everything random follows from (seed, epoch) or (seed, epoch, utterance id), so that a run can be
resumed at any step, and an utterance looks the same whichever worker has it.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from asr.augment import SpecAugmentConfig, spec_augment, stable_seed
from asr.errors import UserError
from asr.feature_storage import Extent, feature_extents, read_features
from asr.features import manifest_name
from asr.files import read_jsonl
from asr.stages import Workspace

# Utterances of durations within this factor of each other are mixed at random. Larger makes
# batches differ more from epoch to epoch; smaller pads less.
DURATION_RATIO = 1.05
NO_BATCH = -1

log = logging.getLogger("asr")


class UtteranceSet:
    """The utterances of one split: tokens in memory, features read when asked for.

    ``tokens`` is stage 3's ``<split>.jsonl``; ``features`` are stage 2's manifests of the same
    utterances, one a speed, the unperturbed one first. ``frames`` (n,) and ``speed_frames``
    (n, speeds), int64, count 10 ms frames. Raises UserError when the files do not fit together.
    Nothing but arrays is kept, so that forked workers share the memory.
    """

    def __init__(self, tokens: Path, features: Sequence[Path]) -> None:
        rows = read_jsonl(tokens)
        self._ids = np.array([row["id"].encode() for row in rows], dtype=np.bytes_)
        self._token_ends = np.cumsum([0, *(len(row["tokens"]) for row in rows)])
        self._tokens = np.array([token for row in rows for token in row["tokens"]], dtype=np.int32)
        self._paths: list[Path] = []
        self._extents = np.zeros((len(rows), len(features), 3), dtype=np.int64)
        for speed, manifest in enumerate(features):
            path, extents = feature_extents(manifest)
            self._paths.append(path)
            for index, row in enumerate(rows):
                if row["id"] not in extents:
                    raise UserError(
                        f"{manifest}: no features of utterance {row['id']} of {tokens}; "
                        "rerun the features stage, then the tokens stage"
                    )
                self._extents[index, speed] = extents[row["id"]]
        self.speed_frames = self._extents[:, :, 1].copy()
        self.frames = self.speed_frames[:, 0]

    @classmethod
    def of_split(cls, workspace: Workspace, split: str) -> "UtteranceSet":
        """A split at every speed that stage 2 made of it."""
        speeds = workspace.require("features")["counts"]["speeds"]
        folder = workspace.directory("features")
        perturbed = [folder / manifest_name(split, speed) for speed in speeds if speed != 1.0]
        manifests = [folder / manifest_name(split), *(path for path in perturbed if path.exists())]
        return cls(workspace.directory("tokens") / f"{split}.jsonl", manifests)

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, index: int) -> str:
        """The utterance's id."""
        return self._ids[index].decode()

    def tokens(self, index: int) -> np.ndarray:
        """The utterance's token ids, int32."""
        return self._tokens[self._token_ends[index] : self._token_ends[index + 1]]

    def load(self, index: int, speed_index: int = 0) -> np.ndarray:
        """Raw log-mel features (T, F) float32, read from disk."""
        extent = Extent(*self._extents[index, speed_index].tolist())
        return read_features(self._paths[speed_index], extent)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The batches of one epoch.

    Batch ``b`` is ``order[starts[b]:starts[b + 1]]``, indices of utterances; ``steps`` (steps,
    workers) says which batch each worker takes at each step, NO_BATCH for none.
    """

    order: np.ndarray
    starts: np.ndarray
    steps: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int, worker: int) -> np.ndarray | None:
        """Indices of the utterances of a worker's batch; None if it has none at this step."""
        number = self.steps[step, worker]
        if number == NO_BATCH:
            return None
        return self.order[self.starts[number] : self.starts[number + 1]]


def epoch_plan(frames: np.ndarray, epoch: int, seed: int, batch_frames: int, workers: int) -> Plan:
    """Divide utterances of ``frames`` (n,) into batches of at most ``batch_frames`` when padded.

    Every utterance is in one batch. Batches hold utterances of similar duration, mixed anew by
    (seed, epoch); their number does not change with the epoch. The batches of one step are of
    similar duration, too, so that no worker waits for another; steps come in random order, and
    only the last may leave some workers without a batch. Takes O(n log n), and the batches do
    not depend on the number of workers. Raises ValueError for an utterance without frames, or
    of more than ``batch_frames``.
    """
    if len(frames) and not 0 < frames.min() <= frames.max() <= batch_frames:
        raise ValueError(
            f"utterances of {frames.min()} to {frames.max()} frames do not fit into batches of "
            f"{batch_frames}"
        )
    random = np.random.default_rng([seed, epoch])
    lengths = _rounded_up(frames)
    shuffled = random.permutation(len(frames))
    order = shuffled[np.argsort(lengths[shuffled], kind="stable")]
    starts = _batch_starts(lengths[order], batch_frames)
    return Plan(order, starts, _assign(len(starts) - 1, workers, random))


def _rounded_up(frames: np.ndarray) -> np.ndarray:
    """For each utterance the longest one of about its duration (within DURATION_RATIO)."""
    if not len(frames):
        return frames
    group = (np.log(frames) / math.log(DURATION_RATIO)).astype(np.int64)
    longest = np.zeros(group.max() + 1, dtype=np.int64)
    np.maximum.at(longest, group, frames)
    return longest[group]


def _batch_starts(lengths: np.ndarray, batch_frames: int) -> np.ndarray:
    """Where batches start in ascending ``lengths``, and the end of the last one."""
    starts = [0] if len(lengths) else []
    for position, length in enumerate(lengths.tolist()):
        if length * (position + 1 - starts[-1]) > batch_frames:
            starts.append(position)
    return np.array([*starts, len(lengths)])


def _assign(batches: int, workers: int, random: np.random.Generator) -> np.ndarray:
    """Deal batches, ascending by duration, to (steps, workers)."""
    full, left = divmod(batches, workers)
    # The batches that do not fill a step come from anywhere, lest they always be the longest.
    first = workers * random.integers(full, endpoint=True)
    numbers = np.arange(batches)
    last = numbers[first : first + left]
    steps = np.concatenate([numbers[:first], numbers[first + left :]]).reshape(full, workers)
    steps = random.permutation(random.permuted(steps, axis=1))
    if not left:
        return steps
    padded = np.concatenate([last, np.full(workers - left, NO_BATCH)])
    return np.concatenate([steps, random.permutation(padded)[None]])


@dataclasses.dataclass(frozen=True)
class Batch:
    """``features`` (N, T, F) float32, padded with zeros after ``feature_lengths`` (N,) frames;
    ``tokens`` of all utterances one after the other, ``token_lengths`` (N,); lengths int64."""

    ids: list[str]
    features: torch.Tensor
    feature_lengths: torch.Tensor
    tokens: torch.Tensor
    token_lengths: torch.Tensor


def pad(features: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (T_i, F) of N >= 1 utterances as (N, T, F), zeros behind, and lengths (N,)."""
    padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(f) for f in features], True)
    return padded, torch.tensor([len(f) for f in features])


def collate(
    ids: Sequence[str], features: Sequence[np.ndarray], tokens: Sequence[np.ndarray]
) -> Batch:
    """Make a batch of N >= 1 utterances: features (T_i, F), token ids (U_i,)."""
    padded, lengths = pad(features)
    return Batch(
        ids=list(ids),
        features=padded,
        feature_lengths=lengths,
        tokens=torch.from_numpy(np.concatenate(tokens).astype(np.int64)),
        token_lengths=torch.tensor([len(t) for t in tokens]),
    )


class BatchStream:
    """One worker's batches over ``epochs`` epochs, None at a step where only others have one.

    Every worker's stream has the same number of steps, ``len(stream)``, resumed or not. With
    ``augment``, masked cells take ``mean`` (F,). Iterating goes on from the current position,
    which ``state_dict`` saves and ``load_state_dict`` restores without reading the batches
    before it. Raises UserError for an utterance longer than ``batch_frames`` (10 ms frames).
    """

    def __init__(
        self,
        utterances: UtteranceSet,
        *,
        worker: int,
        workers: int,
        epochs: int,
        seed: int,
        batch_frames: int,
        augment: SpecAugmentConfig | None = None,
        mean: np.ndarray | None = None,
    ) -> None:
        if augment is not None and mean is None:
            raise ValueError("augment needs the mean that masked cells take")
        _check_lengths(utterances, batch_frames)
        self.utterances = utterances
        self.worker = worker
        self.workers = workers
        self.epochs = epochs
        self.seed = seed
        self.batch_frames = batch_frames
        self.augment = augment
        self.mean = mean
        self._epoch = 0
        self._step = 0
        # The last epoch's plan only: they are large.
        self._planned = functools.lru_cache(maxsize=1)(self._make_plan)

    def __len__(self) -> int:
        if self.utterances.speed_frames.shape[1] == 1:
            return self.epochs * len(self.plan(0))
        return sum(len(self.plan(epoch)) for epoch in range(self.epochs))

    def __iter__(self) -> Iterator[Batch | None]:
        while self._epoch < self.epochs:
            plan, speeds = self._planned(self._epoch)
            while self._step < len(plan):
                indices = plan.batch(self._step, self.worker)
                self._step += 1
                yield None if indices is None else self._load(indices, speeds)
            self._epoch, self._step = self._epoch + 1, 0

    def plan(self, epoch: int) -> Plan:
        """The batches of an epoch, of all workers."""
        return self._planned(epoch)[0]

    @property
    def done(self) -> float:
        """The share of all epochs handed out, from 0 to 1, whatever the number of workers."""
        if self._epoch == self.epochs:
            return 1.0
        return (self._epoch + self._step / len(self.plan(self._epoch))) / self.epochs

    @property
    def remaining(self) -> int:
        """Steps that are still to come."""
        later = range(self._epoch, self.epochs)
        return sum(len(self.plan(epoch)) for epoch in later) - self._step

    def state_dict(self) -> dict[str, int]:
        """The position after the batch handed out last."""
        return {"epoch": self._epoch, "step": self._step, "workers": self.workers}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a saved position; under another number of workers, to the nearest one.

        There the rest of the epoch may repeat some utterances and lack others.
        """
        self._epoch, self._step = state["epoch"], state["step"]
        if state["workers"] != self.workers:
            self._step = self._step * state["workers"] // self.workers
            log.warning(
                "resumed with %d workers instead of %d: epoch %d goes on at step %d with other "
                "batches",
                *(self.workers, state["workers"], self._epoch + 1, self._step),
            )

    def _make_plan(self, epoch: int) -> tuple[Plan, np.ndarray]:
        """The plan, and the speed index of every utterance."""
        frames = self.utterances.speed_frames
        speeds = self._choose_speeds(epoch)
        chosen = frames[np.arange(len(frames)), speeds]
        return epoch_plan(chosen, epoch, self.seed, self.batch_frames, self.workers), speeds

    def _choose_speeds(self, epoch: int) -> np.ndarray:
        utterances, choices = len(self.utterances), self.utterances.speed_frames.shape[1]
        # All at once: a seed for each of 700,000 utterances would take seconds an epoch.
        return np.random.default_rng([self.seed, epoch, 1]).integers(choices, size=utterances)

    def _load(self, indices: np.ndarray, speeds: np.ndarray) -> Batch:
        # An epoch's last batch has been handed out while self._epoch still is its epoch.
        epoch, members = self._epoch, indices.tolist()
        features = [self.utterances.load(index, speeds[index]) for index in members]
        if self.augment is not None and self.mean is not None:
            for position, index in enumerate(members):
                generator = np.random.default_rng(self._seed("augment", epoch, index))
                features[position] = spec_augment(
                    features[position], self.augment, self.mean, generator
                )
        ids = [self.utterances.id(index) for index in members]
        return collate(ids, features, [self.utterances.tokens(index) for index in members])

    def _seed(self, purpose: str, epoch: int, index: int) -> int:
        return stable_seed(purpose, self.seed, epoch, self.utterances.id(index))


def _check_lengths(utterances: UtteranceSet, batch_frames: int) -> None:
    longest = utterances.speed_frames.max(axis=1, initial=0)
    too_long = np.flatnonzero(longest > batch_frames)
    if len(too_long):
        index = int(too_long[np.argmax(longest[too_long])])
        raise UserError(
            f"utterance {utterances.id(index)} has {longest[index]} frames of 10 ms, more than a "
            f"batch may hold (batch_frames={batch_frames}; {len(too_long)} utterances like it): "
            f"set batch_frames={longest[index]} or more, or leave out long utterances in the "
            "manifests stage (max_seconds)"
        )
