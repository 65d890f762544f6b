"""Word alignment: the one place where insertions, deletions and substitutions are told apart.

Alignments of least cost (each error costs 1) are rarely unique, and another choice among them
gives other insertions, deletions and substitutions at the same total. The choice here is fixed.
Both texts are read from left to right; at each place, of the steps that can still reach the
least total, the first of this list is taken:

1. both words, a match or a substitution;
2. the reference word alone, a deletion;
3. the hypothesis word alone, an insertion.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

Pair = tuple[str | None, str | None]
Alignment = list[Pair]

_BOTH, _DELETION, _INSERTION = 0, 1, 2
_FEW = 64  # words of a hypothesis; for more, numpy's rows are faster than a loop
GAP = "***"  # what stands in the place of no word, as in Kaldi's listings


@dataclasses.dataclass(frozen=True)
class ErrorCounts:
    """Words of the reference, and how the hypothesis differs from them. Counts add up with +."""

    words: int = 0
    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    hits: int = 0

    @classmethod
    def of(cls, alignment: Alignment) -> "ErrorCounts":
        """Count the words and errors of an alignment."""
        insertions = sum(word is None for word, _ in alignment)
        deletions = sum(word is None for _, word in alignment)
        hits = sum(reference == hypothesis for reference, hypothesis in alignment)
        words = len(alignment) - insertions
        return cls(words, insertions, deletions, words - deletions - hits, hits)

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            self.words + other.words,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.substitutions + other.substitutions,
            self.hits + other.hits,
        )

    @property
    def errors(self) -> int:
        """Insertions, deletions and substitutions together."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def rate(self) -> float | None:
        """Errors by reference words, 0.07 for 7 %; above 1 where insertions outnumber words.

        None when there are no reference words (an empty reference, a speaker of only such): a
        rate of nothing is not defined, whatever was inserted. Its insertions still count in the
        totals that this is added to.
        """
        return self.errors / self.words if self.words else None


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> Alignment:
    """Align two lists of words at the least number of errors, ties as the module says.

    Gives pairs (reference word, hypothesis word) in the order of the texts; None stands in the
    hypothesis' place for a deletion and in the reference's for an insertion. Time is the product
    of the lengths, and so is memory, at one byte a pair of words.
    """
    same = _equal_at_start(reference, hypothesis)
    pairs: Alignment = [(word, word) for word in reference[:same]]
    reference, hypothesis = reference[same:], hypothesis[same:]
    moves = (_moves if len(hypothesis) > _FEW else _moves_of_few)(reference, hypothesis)
    i, j = len(reference), len(hypothesis)
    while i or j:
        move = moves[i][j]
        pairs.append(
            (
                reference[-i] if move != _INSERTION else None,
                hypothesis[-j] if move != _DELETION else None,
            )
        )
        i -= move != _INSERTION
        j -= move != _DELETION
    return pairs


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """Align two lists of words and count the errors."""
    return ErrorCounts.of(align(reference, hypothesis))


def total_errors(references: Mapping[str, str], hypotheses: Mapping[str, str]) -> ErrorCounts:
    """The errors of all ``hypotheses`` together, each against the reference of its id."""
    counts = (count_errors(references[i].split(), heard.split()) for i, heard in hypotheses.items())
    return sum(counts, ErrorCounts())


def operations(alignment: Alignment) -> list[str]:
    """One letter a pair: C correct, S substitution, I insertion, D deletion."""
    letters = []
    for reference, hypothesis in alignment:
        if reference is None:
            letters.append("I")
        elif hypothesis is None:
            letters.append("D")
        else:
            letters.append("C" if reference == hypothesis else "S")
    return letters


def aligned_lines(alignment: Alignment) -> tuple[str, str, str]:
    """Reference, hypothesis and operations, each a line, with the pairs below one another."""
    rows = [
        (reference or GAP, hypothesis or GAP, operation)
        for (reference, hypothesis), operation in zip(alignment, operations(alignment), strict=True)
    ]
    widths = [max(map(len, row)) for row in rows]
    lines = (
        " ".join(row[k].ljust(width) for row, width in zip(rows, widths, strict=True)).rstrip()
        for k in range(3)
    )
    reference_line, hypothesis_line, operation_line = lines
    return reference_line, hypothesis_line, operation_line


def _equal_at_start(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """How many words at the start are equal: the first step of the list always matches these."""
    for place, (one, other) in enumerate(zip(reference, hypothesis, strict=False)):
        if one != other:
            return place
    return min(len(reference), len(hypothesis))


def _moves_of_few(reference: Sequence[str], hypothesis: Sequence[str]) -> list[list[int]]:
    """``_moves`` of short texts, cell by cell."""
    heard = hypothesis[::-1]
    cost = list(range(len(heard) + 1))
    moves = [[_INSERTION] * len(cost)]
    for word in reference[::-1]:
        diagonal, row = cost[0], [_DELETION]
        cost[0] += 1
        for j, other in enumerate(heard, start=1):
            best, move = diagonal + (word != other), _BOTH
            if cost[j] + 1 < best:
                best, move = cost[j] + 1, _DELETION
            if cost[j - 1] + 1 < best:
                best, move = cost[j - 1] + 1, _INSERTION
            diagonal, cost[j] = cost[j], best
            row.append(move)
        moves.append(row)
    return moves


def _moves(reference: Sequence[str], hypothesis: Sequence[str]) -> np.ndarray:
    """The step to take when i reference and j hypothesis words are left, ``(R + 1, H + 1)``.

    Row by row, ``cost[j]`` is the least number of errors between the last i words of the
    reference and the last j of the hypothesis.
    """
    numbers: dict[str, int] = {}
    ref = [numbers.setdefault(word, len(numbers)) for word in reversed(reference)]
    hyp = np.array(
        [numbers.setdefault(word, len(numbers)) for word in reversed(hypothesis)], dtype=np.int32
    )
    columns = np.arange(len(hyp) + 1, dtype=np.int32)
    moves = np.full((len(ref) + 1, len(hyp) + 1), _INSERTION, dtype=np.uint8)
    moves[1:, 0] = _DELETION
    cost = columns
    for i, word in enumerate(ref, start=1):
        both = cost[:-1] + (hyp != word)
        deletion = cost + 1
        best = deletion.copy()
        np.minimum(best[1:], both, out=best[1:])
        # Insertions run along the row: cost[j] = min over k <= j of best[k] + (j - k).
        cost = np.minimum.accumulate(best - columns) + columns
        moves[i, cost == deletion] = _DELETION
        moves[i, 1:][cost[1:] == both] = _BOTH
    return moves
