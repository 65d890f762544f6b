"""Tables of errors: by group of utterances, by word, by pair of words. Counts alone, no files."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from asr.scoring.align import Alignment, ErrorCounts, Pair

Group = TypeVar("Group", str, int)
# Seconds; the last bin has no end.
DURATION_BINS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclasses.dataclass(frozen=True)
class GroupCounts:
    """Utterances of a group, how many have an error, and the counts of their words."""

    utterances: int = 0
    sentence_errors: int = 0
    counts: ErrorCounts = dataclasses.field(default_factory=ErrorCounts)

    def __add__(self, other: "GroupCounts") -> "GroupCounts":
        return GroupCounts(
            self.utterances + other.utterances,
            self.sentence_errors + other.sentence_errors,
            self.counts + other.counts,
        )


@dataclasses.dataclass(frozen=True)
class WordCounts:
    """How often a word of the reference was right, replaced or left out, and how often put in."""

    right: int = 0
    substituted: int = 0
    deleted: int = 0
    inserted: int = 0

    @property
    def errors(self) -> int:
        """Errors that the word has part in."""
        return self.substituted + self.deleted + self.inserted


def counts_by(members: Iterable[tuple[Group, ErrorCounts]]) -> dict[Group, GroupCounts]:
    """Sums by group, sorted by group, of each utterance's (group, counts)."""
    sums: dict[Group, GroupCounts] = defaultdict(GroupCounts)
    for group, counts in members:
        sums[group] += GroupCounts(1, int(counts.errors > 0), counts)
    return dict(sorted(sums.items()))


def duration_bin(seconds: float) -> int:
    """Index of the bin in ``DURATION_BINS`` that a duration belongs to; its start is part of it."""
    return sum(seconds >= start for start in DURATION_BINS) - 1


def pair_counts(alignments: Iterable[Alignment]) -> Counter[Pair]:
    """How often each (reference word, hypothesis word) stands in the alignments; None for no word.

    >>> pair_counts([[("a", "a"), ("b", None)], [("a", "a")]])
    Counter({('a', 'a'): 2, ('b', None): 1})
    """
    return Counter(pair for alignment in alignments for pair in alignment)


def word_counts(pairs: Mapping[Pair, int]) -> dict[str, WordCounts]:
    """``WordCounts`` of every word of the references, and of every inserted word, sorted.

    A substitution counts with the word that was said; the one that was heard shows in the
    confusions.
    """
    table: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (reference, hypothesis), number in pairs.items():
        if reference is None:
            assert hypothesis is not None  # no pair is empty
            table[hypothesis]["inserted"] += number
        elif hypothesis is None:
            table[reference]["deleted"] += number
        else:
            table[reference]["right" if reference == hypothesis else "substituted"] += number
    return {word: WordCounts(**table[word]) for word in sorted(table)}


def confusions(pairs: Mapping[Pair, int], number: int) -> list[tuple[str, str, int]]:
    """The ``number`` most frequent substitutions: said, heard, how often; among equals by word."""
    rows = [
        (reference, hypothesis, count)
        for (reference, hypothesis), count in pairs.items()
        if reference is not None and hypothesis is not None and reference != hypothesis
    ]
    return sorted(rows, key=lambda row: (-row[2], row[0], row[1]))[:number]


def most_frequent(words: Mapping[str, WordCounts], what: str, number: int) -> list[tuple[str, int]]:
    """The ``number`` words most often ``what`` (say ``"deleted"``), with how often, above 0."""
    rows = [(word, getattr(counts, what)) for word, counts in words.items()]
    return sorted(filter(_occurs, rows), key=lambda row: (-row[1], row[0]))[:number]


def _occurs(row: Sequence[object]) -> bool:
    return bool(row[1])
