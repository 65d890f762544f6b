"""What the trainer reads: utterances, the plan of an epoch's batches, a worker's stream of them.

Everything random follows from (seed, epoch) or (seed, epoch, utterance id), so that a run can be
resumed at any step, and an utterance looks the same whichever worker has it.
"""

import array
import dataclasses
import functools
import logging
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from asr.errors import UserError
from asr.files import atomic_write, iterate_jsonl
from asr.filterbank.sources import FeatureSource, open_features, source_of
from asr.stages import Workspace
from asr.training.augment import SpecAugmentConfig, spec_augment, stable_seed

# Utterances of durations within this factor of each other are mixed at random. Larger makes
# batches differ more from epoch to epoch; smaller pads less.
DURATION_RATIO = 1.05
NO_BATCH = -1

log = logging.getLogger("asr")


def index_name(split: str) -> str:
    """File name of a split's index of arrays, in stage 3's folder."""
    return f"{split}.npz"


class UtteranceSet:
    """The utterances of one split: tokens in memory, features read when asked for.

    ``frames`` (n,) and ``speed_frames`` (n, speeds), int64, count 10 ms frames; ``corpora`` are the
    names that ``corpus`` (n,) counts from 0. Nothing but arrays is kept, so that forked workers
    share the memory.
    """

    def __init__(self, arrays: dict[str, np.ndarray], sources: Sequence[FeatureSource]) -> None:
        self._arrays, self._sources = arrays, list(sources)
        self.corpora: list[str] = arrays["corpora"].tolist()
        self.corpus = arrays["corpus"]
        self.speed_frames = np.stack([source.frames for source in self._sources], axis=1)
        self.frames = self.speed_frames[:, 0]

    @classmethod
    def of_files(cls, tokens: Path, features: Sequence[Path]) -> "UtteranceSet":
        """Join stage 3's ``<split>.jsonl`` with stage 2's manifests of the same utterances, one a
        speed, the unperturbed one first. UserError when they do not fit together.
        """
        ids: list[str] = []
        ends, flat, corpus = array.array("q", [0]), array.array("i"), array.array("i")
        numbers: dict[str, int] = {}  # of the corpora, as they come
        for row in iterate_jsonl(tokens):  # 700,000 rows at once would take gigabytes
            ids.append(row["id"])
            flat.extend(row["tokens"])
            ends.append(len(flat))
            corpus.append(numbers.setdefault(row["corpus"], len(numbers)))
        corpora = sorted(numbers)
        places = np.array([corpora.index(name) for name in numbers], dtype=np.int64)
        arrays = {
            "ids": np.array([name.encode() for name in ids], dtype=np.bytes_),
            "token_ends": np.array(ends),
            "tokens": np.array(flat),
            "corpora": np.array(corpora, dtype=np.str_),
            "corpus": places[np.array(corpus, dtype=np.int64)],
        }
        return cls(arrays, [open_features(manifest, ids) for manifest in features])

    @classmethod
    def of_split(cls, workspace: Workspace, split: str) -> "UtteranceSet":
        """A split at every speed that stage 2 made of it, from the index that stage 3 made."""
        path = workspace.directory("tokens") / index_name(split)
        return cls.of_index(path, workspace.directory("features"))

    @classmethod
    def of_index(cls, path: Path, features: Path) -> "UtteranceSet":
        """What ``write_index`` wrote, with the shards in the folder ``features``."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; run the tokens stage with --force") from None
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(
                f"{path}: cannot be read ({error}); rerun the tokens stage with --force"
            ) from None
        by_speed: dict[str, dict[str, np.ndarray]] = {}
        for name in [name for name in arrays if "/" in name]:
            speed, _, key = name.partition("/")
            by_speed.setdefault(speed, {})[key] = arrays.pop(name)
        return cls(arrays, [source_of(by_speed[speed], features) for speed in sorted(by_speed)])

    def write_index(self, path: Path) -> None:
        """Write what ``of_index`` reads in a fraction of the time that ``of_files`` takes."""
        arrays = dict(self._arrays)
        for number, source in enumerate(self._sources):
            arrays |= {f"{number:03}/{key}": array for key, array in source.arrays.items()}
        with atomic_write(path) as partial, open(partial, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._arrays["ids"])

    def id(self, index: int) -> str:
        """The utterance's id."""
        return self._arrays["ids"][index].decode()

    def tokens(self, index: int) -> np.ndarray:
        """The utterance's token ids, int32."""
        ends = self._arrays["token_ends"]
        return self._arrays["tokens"][ends[index] : ends[index + 1]]

    def load(self, index: int, speed_index: int = 0) -> np.ndarray:
        """Raw log-mel features (T, F) float32, read from disk or computed, as stage 2 stored."""
        return self._sources[speed_index].load(index)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The batches of one epoch.

    Batch ``b`` is ``order[starts[b]:starts[b + 1]]``, indices into the ``frames`` that were
    planned; ``steps`` (steps, workers) says which batch each worker takes at each step, NO_BATCH
    for none.
    """

    order: np.ndarray
    starts: np.ndarray
    steps: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int, worker: int) -> np.ndarray | None:
        """Indices that make up a worker's batch; None if it has none at this step."""
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
    return Plan(order, starts, _assign(np.arange(len(starts) - 1), workers, random))


def short_first(plan: Plan) -> Plan:
    """The plan with its steps by ascending duration, but for a last one that not all have part in.

    CTC learns from short utterances sooner (Amodei et al., "Deep Speech 2", ICML 2016, SortaGrad).
    """
    # Batches are numbered by duration.
    whole = len(plan.steps) - int(NO_BATCH in plan.steps[-1:])
    order = np.argsort(plan.steps[:whole].max(axis=1), kind="stable")
    return Plan(plan.order, plan.starts, np.concatenate([plan.steps[order], plan.steps[whole:]]))


def deal_again(plan: Plan, done: int, workers: int, random: np.random.Generator) -> Plan:
    """The plan of the batches that are left after ``done`` steps, for another number of workers."""
    left = plan.steps[done:]
    return Plan(plan.order, plan.starts, _assign(np.sort(left[left != NO_BATCH]), workers, random))


def weighted(corpus: np.ndarray, weights: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Indices of the utterances of an epoch, ascending, where each corpus has its weight.

    ``corpus`` (n,) says which of the ``weights`` (corpora,) is an utterance's. At weight 2.3 all
    of a corpus are in it twice, and a random 30 % once more; at 1 all once.
    """
    chosen = []
    for number, weight in enumerate(weights.tolist()):
        members = np.flatnonzero(corpus == number)
        chosen += [members] * int(weight)
        more = round((weight - int(weight)) * len(members))
        chosen.append(random.choice(members, more, replace=False) if more else members[:0])
    return np.sort(np.concatenate(chosen))


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


def _assign(numbers: np.ndarray, workers: int, random: np.random.Generator) -> np.ndarray:
    """Deal batches, their numbers ascending by duration, to (steps, workers)."""
    full, left = divmod(len(numbers), workers)
    # The batches that do not fill a step come from anywhere, lest they always be the longest.
    first = workers * random.integers(full, endpoint=True)
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


class EpochPlan(NamedTuple):
    """``plan`` of an epoch's batches over ``members`` (m,), indices of utterances, one of which
    may stand there several times, each time at a speed of its own (``speeds`` (m,))."""

    plan: Plan
    members: np.ndarray
    speeds: np.ndarray


class BatchStream:
    """One worker's batches over ``epochs`` epochs, None at a step where only others have one.

    Every worker's stream has the same number of steps, ``len(stream)``, resumed or not. With
    ``augment``, masked cells take ``mean`` (F,). ``weights`` (by corpus, 1 where none is given)
    say how often an epoch has a corpus' utterances. The first ``sorted_epochs`` take short
    utterances first (``short_first``). Iterating goes on from the current position,
    which ``state_dict`` saves and ``load_state_dict`` restores without reading the batches before
    it. Raises UserError for an utterance longer than ``batch_frames`` (10 ms frames), and for
    weights of a corpus that there is none of.
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
        weights: Mapping[str, float] | None = None,
        sorted_epochs: int = 0,
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
        self.weights = _by_corpus(utterances, weights or {})
        self.sorted_epochs = sorted_epochs
        self._epoch = 0
        self._step = 0
        # Worlds of other sizes that had this epoch before: (workers, steps that they did of it).
        self._before: tuple[tuple[int, int], ...] = ()
        # The last epoch's plan only: they are large.
        self._planned = functools.lru_cache(maxsize=1)(self._make_plan)
        self._counted = functools.cache(self._count_steps)

    def __len__(self) -> int:
        return sum(map(self._steps_of, range(self.epochs)))

    def __iter__(self) -> Iterator[Batch | None]:
        while self._epoch < self.epochs:
            planned = self._planned(self._epoch, self._before)
            while self._step < len(planned.plan):
                indices = planned.plan.batch(self._step, self.worker)
                self._step += 1
                yield None if indices is None else self._load(indices, planned)
            self._epoch, self._step, self._before = self._epoch + 1, 0, ()

    def plan(self, epoch: int) -> Plan:
        """The batches of an epoch, of all workers; of the current one, those left to this world."""
        return self._planned(epoch, self._before if epoch == self._epoch else ()).plan

    def largest_batch(self) -> Batch:
        """The current epoch's batch of the most frames, padding included, whoever has it."""
        planned = self._planned(self._epoch, self._before)
        lengths = self.utterances.speed_frames[planned.members, planned.speeds]
        order, starts = planned.plan.order, planned.plan.starts
        padded = np.maximum.reduceat(lengths[order], starts[:-1]) * np.diff(starts)
        number = int(np.argmax(padded))
        return self._load(order[starts[number] : starts[number + 1]], planned)

    @property
    def done(self) -> float:
        """The share of all epochs handed out, from 0 to 1, whatever the number of workers."""
        if self._epoch == self.epochs:
            return 1.0
        plan = self.plan(self._epoch)
        earlier = 0.0
        if self._before:
            earlier = 1 - np.count_nonzero(plan.steps != NO_BATCH) / (len(plan.starts) - 1)
        # A world that takes over at an epoch's end may have nothing left of it.
        share = earlier + (1 - earlier) * self._step / max(1, len(plan))
        return (self._epoch + share) / self.epochs

    @property
    def remaining(self) -> int:
        """Steps that are still to come."""
        if self._epoch == self.epochs:
            return 0
        later = range(self._epoch + 1, self.epochs)
        return len(self.plan(self._epoch)) - self._step + sum(map(self._steps_of, later))

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch handed out last."""
        return {
            "epoch": self._epoch,
            "step": self._step,
            "workers": self.workers,
            "before": [list(world) for world in self._before],
            "batches_of": self._batches_of(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position. Another number of workers shares what is left of the epoch, so
        that every utterance is still in it as often as it would have been. Where other batches
        would be made, of other data or by other settings, the epoch begins anew."""
        self._epoch, self._step = state["epoch"], state["step"]
        self._before = tuple((workers, steps) for workers, steps in state["before"])
        then, now = state["batches_of"], self._batches_of()
        if then != now:
            changed = ", ".join(key for key in now if then.get(key) != now[key])
            log.warning(
                "resumed with other batches (%s): epoch %d begins anew", changed, self._epoch + 1
            )
            self._step, self._before = 0, ()
        elif state["workers"] != self.workers:
            self._before += ((state["workers"], self._step),)
            self._step = 0
            log.warning(
                "resumed with %d workers instead of %d: they share what is left of epoch %d, "
                "%d steps",
                *(self.workers, state["workers"], self._epoch + 1, len(self.plan(self._epoch))),
            )

    def _batches_of(self) -> dict[str, Any]:
        """What an epoch's batches follow from, but for the number of workers."""
        return {
            "seed": self.seed,
            "batch_frames": self.batch_frames,
            "sorted_epochs": self.sorted_epochs,
            "corpus_weights": None if self.weights is None else self.weights.tolist(),
            "utterances": len(self.utterances),
            "frames": self.utterances.speed_frames.sum(axis=0).tolist(),
        }

    def _steps_of(self, epoch: int) -> int:
        """Steps of an epoch that these workers have from its beginning."""
        same = self.utterances.speed_frames.shape[1] == 1 and self.weights is None
        return self._counted(0 if same else epoch)

    def _count_steps(self, epoch: int) -> int:
        members, speeds = self._draw(epoch)
        lengths = np.sort(_rounded_up(self.utterances.speed_frames[members, speeds]))
        batches = len(_batch_starts(lengths, self.batch_frames)) - 1
        return -(-batches // self.workers)

    def _draw(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the epoch's utterances, and the speed index of each."""
        members = np.arange(len(self.utterances))
        if self.weights is not None:
            random = np.random.default_rng([self.seed, epoch, 2])
            members = weighted(self.utterances.corpus, self.weights, random)
        choices = self.utterances.speed_frames.shape[1]
        # All at once: a seed for each of 700,000 utterances would take seconds an epoch.
        random = np.random.default_rng([self.seed, epoch, 1])
        return members, random.integers(choices, size=len(members))

    def _make_plan(self, epoch: int, before: tuple[tuple[int, int], ...]) -> EpochPlan:
        members, speeds = self._draw(epoch)
        frames = self.utterances.speed_frames[members, speeds]
        worlds = [workers for workers, _ in before] + [self.workers]
        plan = epoch_plan(frames, epoch, self.seed, self.batch_frames, worlds[0])
        plan = self._ordered(plan, epoch)
        for number, (_, steps) in enumerate(before):
            random = np.random.default_rng([self.seed, epoch, 3, number])
            plan = self._ordered(deal_again(plan, steps, worlds[number + 1], random), epoch)
        return EpochPlan(plan, members, speeds)

    def _ordered(self, plan: Plan, epoch: int) -> Plan:
        return short_first(plan) if epoch < self.sorted_epochs else plan

    def _load(self, indices: np.ndarray, planned: EpochPlan) -> Batch:
        # An epoch's last batch has been handed out while self._epoch still is its epoch.
        epoch, members = self._epoch, planned.members[indices].tolist()
        speeds = planned.speeds[indices].tolist()
        features = [self.utterances.load(*which) for which in zip(members, speeds, strict=True)]
        if self.augment is not None and self.mean is not None:
            # Which of its occurrences in the epoch this is.
            copies = indices - np.searchsorted(planned.members, planned.members[indices])
            for position, index in enumerate(members):
                seed = self._mask_seed(epoch, index, int(copies[position]))
                features[position] = spec_augment(
                    features[position], self.augment, self.mean, np.random.default_rng(seed)
                )
        ids = [self.utterances.id(index) for index in members]
        return collate(ids, features, [self.utterances.tokens(index) for index in members])

    def _mask_seed(self, epoch: int, index: int, copy: int) -> int:
        occurrence = ("augment", self.seed, epoch, self.utterances.id(index))
        return stable_seed(*occurrence, copy) if copy else stable_seed(*occurrence)


def _by_corpus(utterances: UtteranceSet, weights: Mapping[str, float]) -> np.ndarray | None:
    """The weights (corpora,) of an utterance set's corpora; None where all are 1."""
    unknown = sorted(set(weights) - set(utterances.corpora))
    if unknown:
        raise UserError(
            f"corpus_weights: there is no corpus {unknown[0]!r} in train; it has "
            f"{', '.join(utterances.corpora)}"
        )
    if all(weight == 1 for weight in weights.values()):
        return None
    found = np.array([weights.get(name, 1.0) for name in utterances.corpora])
    if not len(weighted(utterances.corpus, found, np.random.default_rng(0))):
        raise UserError(f"corpus_weights={dict(weights)} leave no utterance to train on")
    return found


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
