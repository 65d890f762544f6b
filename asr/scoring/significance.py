"""How sure an error rate is, and a difference between two: mathematics alone, on counts of errors.

The bootstrap draws as many utterances as there are, with replacement, many times, and asks how the
rate varies (Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation", ICASSP 2004). Two systems are compared on the same draws, so that what makes an
utterance hard for both cancels. Utterances of one speaker are alike: with ``groups``, whole
speakers are drawn instead (blocked bootstrap), which mostly gives wider intervals.

The matched-pairs test asks the same of segments that can be taken for independent (Gillick and
Cox, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP 1989).

All results depend on the seed and on what the utterances hold, not on their order. They cover the
choice of utterances; another training seed moves the rates as well, and ``..._over_seeds`` draws
seeds, too.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asr.scoring.align import Alignment

COVERAGE = (2.5, 97.5)  # percentiles: 95 % intervals
# So many reference words in a row, right in both systems, end a segment; sclite's default too.
SEPARATING_WORDS = 2
_DRAWN_TOGETHER = 1_000_000  # numbers in memory at a time


class Interval(NamedTuple):
    """Ends of a 95 % interval, in the unit of what it belongs to."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """How many more errors one system makes than a baseline; below 0 it is better.

    ``difference`` and ``interval`` are in points of word error rate; ``relative`` and
    ``relative_interval`` in per cent of the baseline's rate. ``relative`` is None where only the
    baseline makes no error, its interval also where that is so in too many replicas for an upper
    end. ``probability_better`` is the share of replicas with fewer errors, ties counted half.
    """

    difference: float
    interval: Interval
    relative: float | None
    relative_interval: Interval | None
    probability_better: float


@dataclasses.dataclass(frozen=True)
class MatchedPairs:
    """The matched-pairs test of two systems.

    ``segments``: how many there are; ``mean`` and ``deviation`` of the difference in errors by
    segment; ``z``: mean by its standard error; ``p``: two-sided, by the normal distribution, which
    Gillick and Cox ask 50 segments or more for. ``z`` and ``p`` are None where there is no
    deviation to measure a difference by: one segment, or the same difference in each.
    """

    segments: int
    mean: float
    deviation: float
    z: float | None
    p: float | None


def bootstrap_interval(
    counts: np.ndarray, replicas: int, seed: int, groups: np.ndarray | None = None
) -> Interval | None:
    """Percentile interval of the word error rate, in per cent.

    ``counts`` ``(U, 2)`` int: errors and reference words by utterance. ``groups`` ``(U,)`` int:
    the speaker of each, to draw whole speakers. None without reference words, and where there is
    one utterance, or group, alone: it cannot tell how others differ. Replicas that happen to have
    no reference words are left out.
    """
    units = _units(counts, groups)
    if len(units) < 2 or not units[:, 1].sum():
        return None
    errors, words = resampled_sums(units, replicas, seed).T
    spoken = words > 0
    return _interval(100 * errors[spoken] / words[spoken])


def paired_bootstrap(
    mine: np.ndarray,
    theirs: np.ndarray,
    replicas: int,
    seed: int,
    groups: np.ndarray | None = None,
) -> PairedDifference | None:
    """Compare a system with a baseline on the same drawn utterances.

    ``mine`` and ``theirs`` ``(U, 2)`` int: errors and reference words of the same utterances, in
    the same order; ``groups`` as for ``bootstrap_interval``, and None for the same reasons.
    ValueError if the reference words differ.
    """
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    if not np.array_equal(mine[:, 1], theirs[:, 1]):
        raise ValueError("the two systems were scored on different references")
    units = _units(np.column_stack([mine[:, 0], theirs]), groups)
    my_errors, their_errors, words = units.sum(axis=0)
    if len(units) < 2 or not words:
        return None
    sums = resampled_sums(units, replicas, seed)
    my_sums, their_sums, word_sums = sums[sums[:, 2] > 0].T
    more = my_sums - their_sums
    relative = _relative(my_sums, their_sums)
    whole = float(_relative(np.array([my_errors]), np.array([their_errors]))[0])
    return PairedDifference(
        difference=float(100 * (my_errors - their_errors) / words),
        interval=_interval(100 * more / word_sums),
        relative=whole if math.isfinite(whole) else None,
        relative_interval=_finite(_interval(relative)) if math.isfinite(whole) else None,
        probability_better=float(np.mean(more < 0) + np.mean(more == 0) / 2),
    )


def interval_over_seeds(
    errors: np.ndarray, words: np.ndarray, groups: np.ndarray, replicas: int, seed: int
) -> Interval | None:
    """Interval of a system's mean word error rate over training seeds, in per cent.

    ``errors`` ``(S, U)`` int: of each utterance with the model of each seed; ``words`` ``(U,)``;
    ``groups`` ``(U,)``: the speaker. A replica draws whole speakers and, apart from them, seeds.
    With one seed it covers the choice of speakers alone; with few, resampling knows little of how
    seeds vary: it makes the variance (S - 1)/S of what it is. None for one speaker, or no words.
    """
    drawn = _SeededSums([errors], words, groups, replicas, seed)
    return _interval(100 * drawn.errors[0] / drawn.words) if drawn.any else None


def difference_over_seeds(
    mine: np.ndarray,
    theirs: np.ndarray,
    words: np.ndarray,
    groups: np.ndarray,
    replicas: int,
    seed: int,
) -> PairedDifference | None:
    """Compare a system's mean over seeds with a baseline's: the same speakers, seeds apart.

    ``mine`` ``(S, U)`` and ``theirs`` ``(S', U)``, and the rest, as for ``interval_over_seeds``.
    """
    drawn = _SeededSums([mine, theirs], words, groups, replicas, seed)
    if not drawn.any:
        return None
    more = drawn.errors[0] - drawn.errors[1]
    relative = _relative(*drawn.errors)
    whole = float(_relative(*(np.array([e.sum() / len(e)]) for e in (mine, theirs)))[0])
    return PairedDifference(
        difference=float(100 * (mine.sum() / len(mine) - theirs.sum() / len(theirs)) / words.sum()),
        interval=_interval(100 * more / drawn.words),
        relative=whole if math.isfinite(whole) else None,
        relative_interval=_finite(_interval(relative)) if math.isfinite(whole) else None,
        probability_better=float(np.mean(more < 0) + np.mean(more == 0) / 2),
    )


class _SeededSums:
    """Replicas' words (R,), and for each system its errors (R,), a mean over the seeds drawn."""

    def __init__(
        self,
        systems: Sequence[np.ndarray],
        words: np.ndarray,
        groups: np.ndarray,
        replicas: int,
        seed: int,
    ) -> None:
        generator = np.random.default_rng(seed)
        by_group = _units(np.column_stack([words, *(row for s in systems for row in s)]), groups)
        number = len(by_group)
        self.any = number > 1 and bool(words.sum())
        times = generator.multinomial(number, np.full(number, 1 / number), size=replicas)
        sums = times @ by_group  # (R, 1 + all seeds)
        sums = sums[sums[:, 0] > 0]
        self.words, self.errors, first = sums[:, 0], [], 1
        for system in systems:
            seeds = len(system)
            weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(sums))
            self.errors.append((weights * sums[:, first : first + seeds]).sum(axis=1) / seeds)
            first += seeds


def not_worse(relative_interval: Interval | None, margin: float) -> bool:
    """Whether a system is shown to be less than ``margin`` per cent worse than the baseline.

    The test: the upper end of the interval of the relative difference is under the margin. Without
    an interval nothing is shown.
    """
    return relative_interval is not None and relative_interval.high < margin


def segment_pairs(mine: Sequence[Alignment], theirs: Sequence[Alignment]) -> np.ndarray:
    """Errors of two systems by segment, ``(S, 2)`` int, from alignments of the same utterances.

    A segment is a stretch of an utterance that holds errors of either system. Two segments are
    ``SEPARATING_WORDS`` or more reference words apart that both systems have right, without an
    insertion between these words; utterances bound segments, too. ValueError if the alignments
    are not of the same references.
    """
    segments = [
        segment
        for first, second in zip(mine, theirs, strict=True)
        for segment in _segments(first, second)
    ]
    return np.array(segments, dtype=np.int64).reshape(-1, 2)


def mapsswe(segments: np.ndarray) -> MatchedPairs:
    """Matched-pairs sentence-segment word error test on ``segment_pairs``' ``(S, 2)`` errors.

    The mean is of the first system's errors less the second's. Without any difference (no segment
    among that) ``z`` is 0 and ``p`` is 1.
    """
    differences = segments[:, 0] - segments[:, 1]
    number = len(differences)
    mean = float(differences.mean()) if number else 0.0
    deviation = float(differences.std(ddof=1)) if number > 1 else 0.0
    if not differences.any():
        return MatchedPairs(number, mean, deviation, z=0.0, p=1.0)
    if not deviation:
        return MatchedPairs(number, mean, deviation, z=None, p=None)
    z = mean / (deviation / math.sqrt(number))
    # Twice the upper tail of the normal distribution; erfc keeps its digits where it is small.
    return MatchedPairs(number, mean, deviation, z, p=math.erfc(abs(z) / math.sqrt(2)))


def resampled_sums(counts: np.ndarray, replicas: int, seed: int) -> np.ndarray:
    """Column sums of ``counts`` ``(U, C)`` over U rows drawn with replacement, ``(replicas, C)``.

    The result does not depend on the order of the rows. Where many rows are equal (utterances of
    as many words and errors), how often each kind is drawn comes from the multinomial
    distribution, which is the same in law and costs less.
    """
    kinds, occurrences = np.unique(counts, axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    number = len(counts)
    few = 8 * len(kinds) < number  # a binomial draw takes about 8 times that of an index
    at_a_time = max(1, _DRAWN_TOGETHER // (len(kinds) if few else number))
    columns = np.ascontiguousarray(np.repeat(kinds, occurrences, axis=0).T)
    parts = []
    for start in range(0, replicas, at_a_time):
        size = min(at_a_time, replicas - start)
        if few:
            parts.append(generator.multinomial(number, occurrences / number, size=size) @ kinds)
        else:
            rows = generator.integers(number, size=(size, number))
            parts.append(np.stack([column[rows].sum(axis=1) for column in columns], axis=1))
    return np.concatenate(parts)


def _units(counts: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """What is drawn: the rows of ``counts``, or their sums by group."""
    counts = np.asarray(counts, dtype=np.int64)
    if groups is None:
        return counts
    names, numbers = np.unique(groups, return_inverse=True)
    sums = np.zeros((len(names), counts.shape[1]), dtype=np.int64)
    np.add.at(sums, numbers, counts)
    return sums


def _relative(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Difference in per cent of ``theirs``: 0 where neither has errors, infinite where one has."""
    more = mine - theirs
    none = np.where(more > 0, math.inf, 0.0)
    return np.where(theirs > 0, 100 * more / np.maximum(theirs, 1), none)


def _interval(values: np.ndarray) -> Interval:
    with np.errstate(invalid="ignore"):  # between two infinite values
        low, high = np.percentile(values, COVERAGE)
    return Interval(float(low), float(high))


def _finite(interval: Interval) -> Interval | None:
    return interval if all(map(math.isfinite, interval)) else None


def _segments(first: Alignment, second: Alignment) -> list[list[int]]:
    """One utterance's segments: errors of the first and of the second system in each."""
    if _reference(first) != _reference(second):
        raise ValueError("the two systems were scored on different references")
    segments: list[list[int]] = []
    right = SEPARATING_WORDS  # the start of the utterance separates as well as these
    for place, errors in enumerate(zip(_places(first), _places(second), strict=True)):
        if any(errors):
            if right >= SEPARATING_WORDS:
                segments.append([0, 0])
            segments[-1][0] += errors[0]
            segments[-1][1] += errors[1]
            right = 0
        else:
            right += place % 2
    return segments


def _places(alignment: Alignment) -> list[int]:
    """Errors by place: insertions before the first word, on the word, after it, and so on."""
    places = [0]
    for reference, hypothesis in alignment:
        if reference is None:
            places[-1] += 1
        else:
            places += [int(reference != hypothesis), 0]
    return places


def _reference(alignment: Alignment) -> list[str]:
    return [word for word, _ in alignment if word is not None]
